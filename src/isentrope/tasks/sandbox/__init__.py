"""Run a program that nobody trusts against tests, out of reach of everything else.

verdict = Sandbox().check(program="def double(x): return 2 * x", tests="assert double(2) == 4", names=("double",))

Three processes: this one; the judge, which runs the tests and trusts them; the guest, which runs the program and knows
nothing of the tests. The judge sends arguments and gets plain data back, so the program can change the values it
returns and nothing else: leaving early, replacing built-ins or equality, or writing a verdict of its own gain nothing.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from isentrope.errors import IsentropeError
from isentrope.tasks.sandbox import jail
from isentrope.tasks.sandbox.system import BOOT, FLAGS

Isolation = Literal["auto", "namespaces", "bubblewrap", "landlock", "limits"]

VARIABLE = "ISENTROPE_EXECUTE_CODE"
PACKAGE = str(Path(__file__).resolve().parent)
WALL = 3  # seconds on the clock for each second of processor time: a busy machine is no fault of the program
GRACE = 10  # seconds beyond the program's own limit, for two interpreters to start on a busy machine
LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache")  # what an interpreter is linked with
MAX_ERROR = 500  # characters of a failure that are repeated


class SandboxError(IsentropeError):
    """The sandbox did not work, so that nothing is known of the program."""


@dataclass(frozen=True)
class Verdict:
    """passed: every test ran and none failed. reason: why not, in one line; "" where it passed."""

    passed: bool
    reason: str


@dataclass(frozen=True)
class Sandbox:
    """Where and within what limits a program runs.

    isolation: "namespaces": no network, no other process, no file but Python's own (read-only) and an empty folder,
    made with the kernel's namespaces; "bubblewrap": the same through the program `bwrap`, for users who may not make
    namespaces themselves; "landlock": no file but Python's own can be read and none written, for containers that allow
    no namespaces (Linux 6.2); "auto": the first of these that works. "limits" accepts that a program reads and writes
    the user's files, and is never chosen by itself.
    seconds: processor time, whole seconds, so that a busy machine fails no program; on the clock three times that.
    memory: bytes of address space. file_size: bytes of a file, and of all files in namespaces.
    Whatever the isolation, the program starts no process or thread, opens no socket, signals and traces nobody, opens
    at most 64 files, reads no input, sees no environment, and what it prints is thrown away. x86-64 and arm64.
    """

    isolation: Isolation = "auto"
    seconds: int = 5
    memory: int = 512 * 2**20
    file_size: int = 16 * 2**20

    def __post_init__(self) -> None:
        if self.isolation not in get_args(Isolation):
            raise ValueError(f"Sandbox.isolation is {self.isolation!r}; it must be one of {get_args(Isolation)}")
        for name, least in (("seconds", 1), ("memory", 64 * 2**20), ("file_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"Sandbox.{name} is {getattr(self, name)}; it must be at least {least}")

    def check(self, program: str, tests: str, names: Sequence[str], setup: str = "") -> Verdict:
        """Run the program, then the tests against it.

        program: Python source, run with the standard library alone.
        tests: trusted Python source; it passes if it raises nothing. names: what it uses of the program. Calls of these
        go to the program with arguments that are plain data or objects that the program made; results are plain data,
        or objects that equal nothing but themselves, whose members, length, truth and attributes can be asked for.
        setup: trusted Python source that runs first and whose names the tests see.
        A program that fails a test, ends early, takes too long or too much memory has not passed.
        Raises SandboxError if the sandbox itself did not work, or setup or tests are no valid Python.
        """
        return self._run(self.working_isolation(), program, tests, names, setup)

    def working_isolation(self) -> str:
        """The isolation that a program gets here. Raises SandboxError, with the reasons, if there is none."""
        if self.isolation == "limits":
            return "limits"
        wanted = ("namespaces", "bubblewrap", "landlock") if self.isolation == "auto" else (self.isolation,)
        refusals = {name: _refusal(name) for name in wanted}
        for name, refusal in refusals.items():
            if not refusal:
                return name
        found = "; ".join(f"{name}: {refusal}" for name, refusal in refusals.items())
        raise SandboxError(
            f"programs cannot be isolated on this machine ({found}). Allow user namespaces, install bubblewrap, use "
            "Linux 6.2, or accept that programs reach your files with isolation='limits'"
        )

    def _run(self, isolation: str, program: str, tests: str, names: Sequence[str], setup: str) -> Verdict:
        with tempfile.TemporaryDirectory(prefix="isentrope-") as folder:
            python = os.path.realpath(sys.executable)
            package = jail.SANDBOX if isolation == "bubblewrap" else PACKAGE
            work = {"program": program, "tests": tests, "setup": setup, "names": list(names)}
            place = {"isolation": isolation, "folder": os.path.realpath(folder), "package": package}
            world = {"python": python, "sources": _sources(), "limits": self._limits(), "parent": os.getpid()}
            job = work | place | world
            prefix = _bubblewrap(self.file_size) if isolation == "bubblewrap" else []
            command = [*prefix, python, *FLAGS, "-c", BOOT, package, "judge"]
            return _verdict(command, job, folder, WALL * self.seconds + GRACE)

    def _limits(self) -> dict[str, int]:
        limits = {"seconds": self.seconds, "wall_seconds": WALL * self.seconds, "memory": self.memory}
        return limits | {"file_size": self.file_size, "files": 64}


def _verdict(command: Sequence[str], job: dict[str, Any], folder: str, seconds: int) -> Verdict:
    pipe = subprocess.PIPE
    # a session of its own, to be killed as a whole; -1 of a killed judge takes the guest along
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd=folder, start_new_session=True, text=True
    )
    try:
        output, errors = process.communicate(json.dumps(job), seconds)
    except subprocess.TimeoutExpired:
        raise SandboxError(f"the sandbox gave no verdict within {seconds} s") from None
    finally:
        _kill(process)
    if process.returncode or not output:
        raise SandboxError(f"the sandbox ended with status {process.returncode}: {errors.strip()[-MAX_ERROR:]}")
    reason = json.loads(output)["reason"]
    return Verdict(not reason, reason)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):  # where all of the group have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _sources() -> list[str]:
    """What the interpreter needs to see: its own folders and the libraries it is linked with."""
    prefix = os.path.realpath(sys.base_prefix)
    own = [f"{prefix}/{name}" for name in ("bin", "lib", "lib64")]
    return [path for path in own if not path.startswith(LIBRARIES)] + list(LIBRARIES)


def _bubblewrap(size: int) -> list[str]:
    """The command line of bwrap that makes what jail.enter makes."""
    shown = [part for path in _sources() for part in _shown(path)]
    return [
        *(shutil.which("bwrap") or "bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--as-pid-1"),
        *("--uid", str(jail.INSIDE_ID), "--gid", str(jail.INSIDE_ID), "--cap-drop", "ALL", "--clearenv"),
        *(*shown, "--ro-bind", PACKAGE, jail.SANDBOX, "--dev", "/dev", "--size", str(size), "--tmpfs", jail.WORK),
        *("--remount-ro", "/", "--chdir", jail.WORK),
    ]


def _shown(path: str) -> list[str]:
    return ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind-try", path, path]


@cache
def _refusal(isolation: str) -> str:
    """Why this isolation does not work here; "" if it does."""
    if sys.platform != "linux":
        return f"it needs Linux, and this is {sys.platform}"
    if isolation == "bubblewrap" and not shutil.which("bwrap"):
        return "there is no program bwrap"
    if isolation == "bubblewrap" and os.geteuid() == 0:
        return "root is exempt from limits inside it; use namespaces"
    try:
        Sandbox()._run(isolation, "def one(): return 1", "assert one() == 1", ["one"], "")
    except SandboxError as error:
        return str(error).splitlines()[-1]
    return ""


def require_consent(task: str, execute: bool) -> None:
    """Raise IsentropeError unless the user agreed to run programs: `execute`, or ISENTROPE_EXECUTE_CODE=1."""
    if not (execute or os.environ.get(VARIABLE) == "1"):
        raise IsentropeError(
            f"task {task} runs programs that a model wrote; agree to that with execute=true or {VARIABLE}=1"
        )
