"""The process that runs the tests. It trusts them, and asks another process for every value of the program under test.

The verdict goes to a descriptor that the guest never had, from a process that the guest can neither read nor trace nor,
where it is process 1 of its own namespace, kill. What the program returns arrives as plain data, so that an object that
claims to be equal to everything is equal to nothing here.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from types import CodeType, TracebackType
from typing import Any

from isentrope.tasks.sandbox import jail, restrict
from isentrope.tasks.sandbox.system import BOOT, FLAGS, SET_DEATH_SIGNAL, SET_DUMPABLE, control
from isentrope.tasks.sandbox.wire import Receiver, WireError, decode, encode, send

MAX_REASON = 300  # characters
JUDGE_RESERVE = 5  # seconds to write a verdict in, after the tests have used up theirs
READY = "ready"  # the guest's first message, before it has anything of the program
TESTS = "tests.py"


class GuestError(Exception):
    """The program raised an error."""


class GuestTypeError(GuestError, TypeError):
    """The program raised a TypeError, which list() takes to mean that an object has no length."""


class Guest:
    """The process that runs the program, seen from the judge."""

    def __init__(self, process: int, requests: int, receiver: Receiver) -> None:
        self.process = process
        self.requests = requests
        self.receiver = receiver

    def ask(self, operation: str, target: Any, content: Any = None) -> Any:
        """The value of a request, see guest.World; what is no plain data is Opaque.

        Raises GuestError with what the program raised, WireError if it is gone or talks nonsense, TimeoutError.
        """
        send(self.requests, [operation, target, content])
        reply = self.receiver.receive()
        try:
            kind, value = reply
            if kind == "value":
                return decode(value, lambda number: Opaque(self, number))
            text = str(value)[:MAX_REASON]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise WireError("an answer is malformed") from error
        raise GuestTypeError(text) if text.startswith("TypeError") else GuestError(text)


class TestsTookTooLong(Exception):
    """The tests do not come to an end with what the program returned."""


class Remote:
    """A function or class of the program, by name or as the `number` of an object it returned."""

    def __init__(self, guest: Guest, target: str | int) -> None:
        self._guest = guest
        self._target = target

    def __call__(self, *positional: Any, **named: Any) -> Any:
        return self._guest.ask("call", self._target, encode([positional, named], _number))


class Opaque(Remote):
    """An object of the program that is no plain data. It equals nothing but itself."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self._guest.ask("list", self._target))

    def __len__(self) -> int:
        return int(self._guest.ask("length", self._target))

    def __bool__(self) -> bool:
        return self._guest.ask("truth", self._target) is True

    def __getattr__(self, name: str) -> Any:
        return self._guest.ask("attribute", self._target, name)


def _number(value: Any) -> Any:
    if isinstance(value, Opaque):
        return value._target
    raise TypeError(f"a test passes {type(value).__name__}, which cannot be sent to the program")


def judge(job: dict[str, Any], guest: Guest) -> str:
    """Why the program fails the tests; "" if it passes.

    job: "program", the text to judge; "setup" and "tests", texts run here before and after the program is; "names",
    what the tests use of it. An error of the setup, or tests that do not compile, are no fault of the program: raised.
    """
    tests: CodeType = compile(job["tests"], TESTS, "exec")
    world: dict[str, Any] = {"__name__": "tests"}
    exec(compile(job["setup"], "setup.py", "exec"), world)
    try:
        guest.ask("program", job["program"])
        world |= {name: Remote(guest, name) for name in job["names"]}
        exec(tests, world)
    except TimeoutError:
        return f"the program is not done after {job['limits']['wall_seconds']} s"
    except WireError as error:
        return f"{error}: {_ending(guest.process, job['limits']['seconds'])}"
    except BaseException as error:
        return _described(error) + _place(error.__traceback__, job["tests"])
    return ""


def _described(error: BaseException) -> str:
    if isinstance(error, GuestError):
        return f"the program raises {error}"
    return f"{type(error).__name__}: {error}"[:MAX_REASON].removesuffix(": ")


def _ending(process: int, seconds: int) -> str:
    """How a process ended, which is killed unless it has."""
    os.kill(process, signal.SIGKILL)
    _, status, usage = os.wait4(process, 0)
    if usage.ru_utime + usage.ru_stime >= 0.9 * seconds:  # the kernel counts in ticks
        return f"the program used its {seconds} s of processor time"
    if os.WIFSIGNALED(status):
        return f"the program was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"the program ended itself with status {os.WEXITSTATUS(status)}"


def _place(trace: TracebackType | None, tests: str) -> str:
    """The line of the tests that failed, if one did."""
    line = 0
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == TESTS else line
        trace = trace.tb_next
    return f" [{tests.splitlines()[line - 1].strip()[:MAX_REASON]}]" if line else ""


def start_guest(job: dict[str, Any]) -> Guest:
    """Start the process that runs the program: within limits, and with nothing open but its two pipes."""
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    process = os.fork()
    if process == 0:
        _become_guest(job, theirs_in, theirs_out)
    os.close(theirs_in)
    os.close(theirs_out)
    if Receiver(ours_in).receive() != READY:
        raise OSError("the process of the program did not start")
    return Guest(process, ours_out, Receiver(ours_in, time.monotonic() + job["limits"]["wall_seconds"]))


def _become_guest(job: dict[str, Any], requests: int, replies: int) -> None:
    arguments = [job["python"], *FLAGS, "-c", BOOT, job["package"], "guest", str(requests), str(replies)]
    try:
        os.set_inheritable(requests, True)
        os.set_inheritable(replies, True)
        confine(job["limits"], job["limits"]["seconds"], processes=1)
        control(SET_DEATH_SIGNAL, signal.SIGKILL)
        jail.drop_capabilities()  # root's own, where there is no jail
        restrict.forbid_calls()
        if job["isolation"] == "landlock":
            restrict.forbid_files([*job["sources"], job["package"]])
        os.dup2(1, 2)
        os.execve(job["python"], arguments, {"PYTHONHASHSEED": "0"})  # sets in the same order in every run
    except OSError as error:
        os.write(2, f"{error}\n".encode())
        os._exit(1)


def _give_up(*_: object) -> None:
    raise TestsTookTooLong("the tests take too long with what the program returns")


def confine(limits: dict[str, int], seconds: int, processes: int | None = None, reserve: int = 0) -> None:
    """Set the limits of this process, for good; SIGXCPU after `seconds`, the end after `reserve` more."""
    wanted = {
        resource.RLIMIT_AS: limits["memory"],
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: limits["file_size"],
        resource.RLIMIT_NOFILE: limits["files"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if processes is not None:
        wanted[resource.RLIMIT_NPROC] = processes
    for kind, value in wanted.items():
        extra = reserve if kind == resource.RLIMIT_CPU else 0
        before = resource.getrlimit(kind)[1]
        hard = value + extra if before == resource.RLIM_INFINITY else min(value + extra, before)
        resource.setrlimit(kind, (min(value, hard), hard))


def main() -> None:
    """Read a job from the standard input, write the verdict as JSON to the standard output."""
    control(SET_DEATH_SIGNAL, signal.SIGKILL)
    job = json.load(sys.stdin)
    if job["isolation"] != "bubblewrap" and os.getppid() != job["parent"]:
        os._exit(1)  # the parent died before its death could be noticed
    verdict = os.dup(1)  # not inherited by what this process starts
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    if job["isolation"] == "namespaces":
        jail.enter(job["folder"], job["package"], job["sources"], job["limits"]["file_size"])
        job["package"] = jail.SANDBOX
    control(SET_DUMPABLE, 0)  # the guest has the same user; this keeps it from reading this process
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    guest = start_guest(job)
    confine(job["limits"], job["limits"]["seconds"] + 1, reserve=JUDGE_RESERVE)
    signal.signal(signal.SIGXCPU, _give_up)
    reason = judge(job, guest)
    os.write(verdict, json.dumps({"reason": reason}).encode())
    os._exit(0)
