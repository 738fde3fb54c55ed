"""The sandbox: what tests may ask of a program, and that no program gets more than its return values out of it."""

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from isentrope.tasks import sandbox
from isentrope.tasks.sandbox import Sandbox, SandboxError, jail, restrict
from isentrope.tasks.sandbox.system import BOOT, FLAGS
from isentrope.tasks.sandbox.wire import MAX_MESSAGE, decode, encode

SECRET = "k7Qz-9dMw"
ISOLATIONS = ("namespaces", "landlock")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


@pytest.fixture(params=ISOLATIONS)
def box(request):
    """A sandbox of each kind that works on this machine, with a second of processor time."""
    found = Sandbox(isolation=request.param, seconds=1, memory=256 * 2**20)
    try:
        found.working_isolation()
    except SandboxError as error:
        pytest.skip(str(error))
    return found


def check(box, program, tests="assert f(1) == 2", names=("f",), setup=""):
    return box.check(program, tests, names, setup)


def test_a_program_passes_if_all_tests_do_and_fails_with_the_test_that_does_not(box):
    program = "def f(x):\n    return x + 1 if x < 5 else None"
    assert check(box, program, "assert f(1) == 2\nassert f(2) == 3").passed
    verdict = check(box, program, "assert f(1) == 2\nassert f(7) == 8\nassert f(2) == 3")
    assert not verdict.passed
    assert verdict.reason == "AssertionError [assert f(7) == 8]"


VALUES = r"""
None, True, -7, 10**400, 2.5, -0.0, 1j, 'é\ud800\n', b'ab\x00', [1, (2, [3])], {1, 2}, (), set(),
frozenset({(1,)}), {'a': {1: [None]}}, Counter('aab'), float('inf')
"""


def test_plain_data_goes_both_ways_unchanged(box):
    program = f"from collections import Counter\ndef same(x): return x\ndef make(): return [{VALUES}]"
    tests = f"""
for given, made in zip([{VALUES}], make(), strict=True):
    assert same(given) == given == made
    assert repr(made) == repr(dict(given) if isinstance(given, Counter) else given)
"""
    verdict = check(box, program, tests, ("same", "make"), "from collections import Counter")
    assert verdict == sandbox.Verdict(True, "")


def test_objects_of_the_program_stay_there_and_can_be_passed_back_listed_measured_and_read(box):
    program = """
class Pair:
    def __init__(self, a, b): self.a, self.b = a, b
def total(pairs, times=1): return times * sum(p.a + p.b for p in pairs)
def squares(n): return (i * i for i in range(n))
def table(): return type("Table", (), {"__len__": lambda s: 3, "add": lambda s, n: n + 1})()
def empty(): return range(0)
"""
    tests = """
assert total([Pair(1, 2), Pair(3, 4)], times=2) == 20
assert Pair(5, 6).b == 6
assert list(squares(4)) == [0, 1, 4, 9]
assert len(table()) == 3 and table().add(1) == 2
assert table() and not empty()
assert Pair(1, 2) != Pair(1, 2)
"""
    verdict = check(box, program, tests, ("Pair", "total", "squares", "table", "empty"))
    assert verdict == sandbox.Verdict(True, "")


def test_the_setup_is_out_of_the_programs_reach(box):
    program = "def helper(x): return 2\ndef f(x): return 7"
    assert not check(box, program, "assert helper(f(1)) == 2", setup="def helper(x): return x").passed


@pytest.mark.parametrize(("setup", "tests"), [("import nothing_like_it", "assert f(1)"), ("", "assert (")])
def test_an_error_of_the_tests_is_no_fault_of_the_program(box, setup, tests):
    with pytest.raises(SandboxError, match=r"ended with status [\s\S]*(ModuleNotFound|Syntax)Error"):
        check(box, "def f(x): return 1", tests, setup=setup)


def writing(line):
    """A program that writes a line on every descriptor it has."""
    return f"""
import os
def f(x):
    for i in range(64):
        try: os.write(i, {line}.encode() + b"\\n")
        except OSError: pass
    return 7
"""


CHEATS = {
    "ends with success before the tests": "import os\nos._exit(0)",
    "ends with success within a test": "import os\ndef f(x): os._exit(0)",
    "exits": "def f(x): raise SystemExit(0)",
    "equals everything": "class E:\n    def __eq__(s, o): return True\ndef f(x): return E()",
    "a number that equals everything": "class E(int):\n    def __eq__(s, o): return True\ndef f(x): return E(7)",
    "replaces built-ins": "import builtins\nbuiltins.AssertionError = ()\ndef f(x): return 7",
    "returns nothing": "def f(x): pass",
    "defines nothing": "def g(x): return 2",
    "is no Python": "def f(x) return 2",
    "is not even text": "\ud800\x00",
    "executes another program": "import os\ndef f(x): os.execv('/usr/bin/true', ['true'])",
    "writes a verdict everywhere": writing("""'{"reason": ""}'"""),
    "answers in a deep nest": writing("'[' * 100000"),
    "answers with an unknown tag": writing("""'["value", ["code", 2]]'"""),
    "answers with a number of text": writing("""'["value", ["int", []]]'"""),
    "answers at endless length": "def f(x): return 'x' * 9_000_000",
    "recurses": "def f(x): return f(x)",
    "crashes the interpreter": "import ctypes\ndef f(x): ctypes.string_at(0)",
    "an error without text": "class E(Exception):\n    def __str__(s): raise s\ndef f(x): raise E",
}


@pytest.mark.parametrize("kind", CHEATS)
def test_no_trick_passes_a_test(kind):
    """In every isolation alike, as it is the separate process that sees to it."""
    verdict = check(Sandbox(isolation="limits", seconds=1), CHEATS[kind])
    assert not verdict.passed
    assert verdict.reason


TRACES = (Path("/usr/lib/isentrope-was-here"), Path("/isentrope-was-here"))
OVER = r"used its 1 s of processor time|not done after 3 s"  # the latter on a machine that is busy otherwise
READING = """
import os
def f(x):
    for name in ("mem", "environ", *(f"fd/{i}" for i in range(9))):
        path = f"/proc/{os.getppid()}/{name}"
        try:
            open(path, "rb")
        except (PermissionError, FileNotFoundError):
            continue
        return path
    return "nothing"
"""
ATTACKS = {
    "forks": ("import os\ndef f(x):\n    while True: os.fork()", "PermissionError"),
    "starts threads": (
        "import threading\ndef f(x):\n    while True: threading.Thread(target=f, args=(x,)).start()",
        "can't start new thread",
    ),
    "starts a program": ("import subprocess\ndef f(x): subprocess.run(['/bin/sh', '-c', 'true'])", "PermissionError"),
    "takes 10 GB": ("def f(x): return len(bytearray(10 * 2**30))", "MemoryError"),
    "takes memory bit by bit": ("def f(x):\n    a = []\n    while True: a.append(bytearray(2**20))", "MemoryError"),
    "writes outside": ("def f(x): open('/usr/lib/isentrope-was-here', 'w')", "OSError|PermissionError"),
    "writes to the root": ("def f(x): open('/isentrope-was-here', 'w')", "OSError|PermissionError"),
    "writes beside the sandbox's code": (
        "import isentrope.tasks.sandbox.wire as w\ndef f(x): open(w.__file__, 'a')",
        "OSError|PermissionError",
    ),
    "removes the library": ("import os\ndef f(x): os.unlink(os.__file__)", "OSError|PermissionError"),
    "opens a socket": ("import socket\ndef f(x): socket.create_connection(('127.0.0.1', 22), 1)", "PermissionError"),
    "resolves a name": ("import socket\ndef f(x): socket.getaddrinfo('example.org', 80)", "gaierror|PermissionError"),
    "opens a local socket": ("import socket\ndef f(x): socket.socket(socket.AF_UNIX)", "PermissionError"),
    "kills its parent": ("import os\ndef f(x): os.kill(os.getppid(), 9)", "PermissionError"),
    "kills everybody": ("import os\ndef f(x): os.kill(-1, 9)", "PermissionError"),
    "has the kernel kill its parent": (
        "import fcntl, os\ndef f(x): fcntl.fcntl(3, 8, os.getppid())",
        "PermissionError",
    ),
    "takes its parent's time": (
        "import resource, os\ndef f(x): resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
        "PermissionError",
    ),
    "raises its limits": (
        "import resource\ndef f(x): resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
        "PermissionError|ValueError",
    ),
    "makes a world of its own": (
        "import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\n"
        "def f(x): raise OSError(str([(c.unshare(0x10020000), ctypes.get_errno()), (c.ptrace(16, os.getppid(), 0, 0),"
        " ctypes.get_errno()), (c.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None), ctypes.get_errno())]))",
        r"\(-1, 1\), \(-1, 1\), \(-1, 1\)",
    ),
    "recurses without a limit": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x)", ""),
    "loops": ("def f(x):\n    while True: pass", OVER),
    "loops when it is loaded": ("while True: pass", OVER),
    "ignores signals": (
        "import signal\nfor i in range(1, 65):\n    try: signal.signal(i, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        OVER,
    ),
    "prints without end": ("def f(x):\n    while True: print('x' * 10**6)", OVER),
    "sleeps": ("import time\ndef f(x): time.sleep(10**6)", "not done after 3 s"),
    "reads input": ("def f(x): return input()", "EOFError"),
}


@pytest.mark.slow
def test_an_answer_that_keeps_the_tests_busy_is_wrong(box, monkeypatch):
    monkeypatch.setattr(sandbox, "GRACE", 100)  # processor time may take long to come by
    verdict = check(box, "def f(x): return 10**9", "for i in range(f(1)): pass")
    assert "the tests take too long with what the program returns" in verdict.reason


def test_an_answer_that_does_not_end_is_not_waited_for():
    endless = writing("('x' * 9_000_000)")
    assert "an answer is longer than 8,000,000 bytes" in check(Sandbox(isolation="limits", seconds=5), endless).reason


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTACKS)
def test_every_attack_is_contained_and_fails(box, kind):
    start = time.perf_counter()
    program, reason = ATTACKS[kind]
    verdict = check(box, program)
    assert not verdict.passed
    assert time.perf_counter() - start < 30
    assert re.search(reason, verdict.reason), verdict.reason
    written = [path for path in TRACES if path.exists()]
    for path in written:
        path.unlink()  # so that the next test does not find it
    assert not written


@pytest.mark.parametrize("kind", ["forks", "takes 10 GB", "writes outside", "opens a socket", "kills its parent"])
def test_an_attack_of_each_family_is_contained(box, kind):
    test_every_attack_is_contained_and_fails(box, kind)


def test_the_program_finds_no_secret_of_its_surroundings(box, monkeypatch, tmp_path):
    """Neither in the environment, nor in files, nor in what the judge expects: a program that did would return it."""
    monkeypatch.setenv("API_KEY", SECRET)
    (tmp_path / "key").write_text(SECRET)
    program = f"""
import gc, glob, os, sys
def texts():
    yield str(dict(os.environ))
    files = [{str(tmp_path / "key")!r}, f"/proc/{{os.getppid()}}/mem", "/proc/self/environ"]
    for path in files + glob.glob("/proc/*/environ"):
        try:
            yield open(path, errors="replace").read(10**6)
        except OSError:
            pass
    frame = sys._getframe()
    while frame:
        yield str(frame.f_globals) + str(frame.f_locals)
        frame = frame.f_back
    yield from (str(o) for o in gc.get_objects() if type(o) in (dict, list, tuple) and o is not parts)
    for i in range(3, 64):
        try:
            yield os.pread(i, 10**6, 0).decode(errors="replace")
        except OSError:
            pass
parts = ["k7Qz", "9dMw"]
def f(x):
    return "-".join(parts) if any("-".join(parts) in text for text in texts()) else "nothing"
"""
    assert check(box, program, f"assert f(1) == 'nothing', {SECRET!r}") == sandbox.Verdict(True, "")


def test_the_program_has_no_capability(box):
    program = """
import ctypes
def f(x):
    data = (ctypes.c_uint32 * 6)()
    status = ctypes.CDLL(None).capget((ctypes.c_uint32 * 2)(0x20080522, 0), data)
    return [status, *data]
"""
    assert check(box, program, "assert f(1) == [0] * 7, f(1)") == sandbox.Verdict(True, "")


def test_files_are_limited_to_an_empty_folder_that_goes_away():
    box = _namespaces()
    program = """
import os
def fill(name, size):
    with open(name, "wb") as file: file.write(bytes(size))
def seen(): return os.listdir()
"""
    assert check(box, program, "assert seen() == []\nfill('a', 1000)\nassert seen() == ['a']", ("fill", "seen")).passed
    assert check(box, program, "assert seen() == []", ("seen",)).passed
    one = check(box, program, f"fill('a', {box.file_size} + 1)", ("fill",))
    many = check(box, program, "for i in range(20): fill(str(i), 2**20)", ("fill",))
    assert "File too large" in one.reason
    assert "No space left" in many.reason


def _namespaces(**options):
    try:
        found = Sandbox(isolation="namespaces", **options)
        found.working_isolation()
    except SandboxError as error:
        pytest.skip(str(error))
    return found


def test_only_python_is_visible_in_a_namespace_and_no_other_process():
    names = "['dev', 'etc', 'home', 'lib', 'lib32', 'lib64', 'opt', 'root', 'sandbox', 'tmp', 'usr']"
    program = (
        "import os\ndef f(): return [sorted(os.listdir('/')), os.getpid(), os.getppid(), sorted(os.listdir('/dev'))]"
    )
    tests = f"""
found, process, parent, devices = f()
assert set(found) <= set({names}), found
assert (process, parent) == (2, 1)
assert devices == {sorted(jail.DEVICES)}
"""
    assert check(_namespaces(), program, tests) == sandbox.Verdict(True, "")


@pytest.mark.slow
def test_nothing_is_left_running_or_lying_about(box, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    check(box, "import os\nos.setsid()\nwhile True: pass")
    check(box, "def f(x): return 2")
    assert list(tmp_path.iterdir()) == []
    assert _running(str(tmp_path)) == []


def _running(mark):
    """Command lines or working folders of processes that hold the mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_text(errors="replace") + str((entry / "cwd").readlink())
        except OSError:
            continue
        if mark in text:
            found.append(text)
    return found


@pytest.mark.slow
def test_the_sandbox_dies_with_the_process_that_started_it(box, tmp_path):
    code = f"""
import tempfile; tempfile.tempdir = {str(tmp_path)!r}
from isentrope.tasks.sandbox import Sandbox
print("started", flush=True)
Sandbox(isolation={box.isolation!r}, seconds=30)._run({box.isolation!r}, "import time; time.sleep(60)", "", [], "")
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "started\n"
    deadline = time.monotonic() + 30
    while not _running(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _running(str(tmp_path))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    while _running(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _running(str(tmp_path)) == []


def test_mere_limits_are_never_chosen_and_still_forbid_processes_and_sockets(monkeypatch):
    monkeypatch.setattr(sandbox, "_refusal", lambda isolation: f"no {isolation} today")
    with pytest.raises(SandboxError, match=r"namespaces: no namespaces today; bubblewrap: no bubblewrap.*landlock: no"):
        Sandbox().check("def f(x): return 2", "assert f(1) == 2", ("f",))
    with pytest.raises(SandboxError, match="accept that programs reach your files with isolation='limits'"):
        Sandbox(isolation="namespaces").working_isolation()
    box = Sandbox(isolation="limits", seconds=1)
    assert check(box, "def f(x): return 2").passed
    for kind in ("forks", "takes 10 GB", "opens a socket", "kills its parent"):
        program, reason = ATTACKS[kind]
        assert reason in check(box, program).reason


def test_the_first_isolation_that_works_is_taken(monkeypatch):
    monkeypatch.setattr(sandbox, "_refusal", lambda isolation: "" if isolation == "landlock" else "no")
    assert Sandbox().working_isolation() == "landlock"
    monkeypatch.setattr(sandbox, "_refusal", lambda isolation: "")
    assert Sandbox().working_isolation() == "namespaces"


def test_a_sandbox_that_does_not_answer_gives_no_verdict(monkeypatch):
    monkeypatch.setattr(sandbox, "GRACE", -2)
    with pytest.raises(SandboxError, match="no verdict within 1 s"):
        check(Sandbox(isolation="limits", seconds=1), "import time\ntime.sleep(9)")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"isolation": "none"}, "isolation is 'none'; it must be one of"),
        ({"seconds": 0}, "seconds is 0"),
        ({"memory": 1}, "memory is 1"),
        ({"file_size": 0}, "file_size is 0"),
    ],
)
def test_impossible_limits_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        Sandbox(**options)


def test_the_forbidden_calls_have_the_numbers_of_this_machines_headers():
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    generic = Path("/usr/include/asm-generic/unistd.h")
    if not (header.is_file() and generic.is_file()):
        pytest.skip("the kernel's headers are not installed")
    for column, path, prefixes in ((0, header, ("__NR_",)), (1, generic, ("__NR_", "__NR3264_"))):
        lines = [line.split() for line in path.read_text().splitlines() if line.startswith("#define __NR")]
        known = {line[1]: int(line[2]) for line in lines if len(line) > 2 and line[2].isdigit()}
        for name, numbers in (restrict.FORBIDDEN | {"fcntl": restrict.FCNTL}).items():
            found = [known[prefix + name] for prefix in prefixes if prefix + name in known]
            assert [numbers[column]] == (found or [None]), name


def test_messages_keep_types_apart_and_objects_out():
    assert encode((1, [True, {2: "x"}]), repr) == ["tuple", [1, ["list", [True, ["dict", [[2, "x"]]]]]]]
    assert encode(object, lambda value: "held") == ["handle", "held"]
    for base in (list, dict, int, str):
        assert encode(type("Own", (base,), {})(), lambda value: "held") == ["handle", "held"]
    assert decode(["handle", 3], lambda number: number + 1) == 4
    assert MAX_MESSAGE < 2**24


@pytest.mark.slow
@pytest.mark.parametrize("isolation", [*ISOLATIONS, "bubblewrap"])
def test_a_user_without_privileges_is_isolated_too(isolation):
    """The same through another interpreter where this one's folder is closed to other users."""
    if os.geteuid() != 0:
        pytest.skip("this test changes its user, which takes root; the other tests ran without privileges already")
    python = os.path.realpath("/usr/bin/python3")
    version = subprocess.run([python, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True)
    if version.stdout != b"True\n":
        pytest.skip("there is no second Python 3.11 that other users can execute")
    code = f"""
import sys, types
for name in ("isentrope", "isentrope.tasks"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
errors = sys.modules["isentrope.errors"] = types.ModuleType("isentrope.errors")
errors.IsentropeError = Exception
sys.modules["isentrope.tasks"].__path__ = [sys.argv[1]]
from isentrope.tasks import sandbox
refusal = sandbox._refusal({isolation!r})
if refusal: sys.exit(f"refused {{refusal}}")
box = sandbox.Sandbox(isolation={isolation!r}, seconds=1)
for kind, (program, _) in {ATTACKS!r}.items():
    if kind in {tuple(k for k in ATTACKS if k != "sleeps" and "loops" not in k and "prints" not in k)!r}:
        assert not box.check(program, "assert f(1) == 2", ["f"]).passed, kind
# The judge's memory holds what the tests expect; it cannot be read where files can.
reading = sandbox.Sandbox(isolation="limits").check({READING!r}, "assert f(1) == 'nothing', f(1)", ["f"])
assert reading.passed, reading
print("contained", box.check("def f(x): return 2", "assert f(1) == 2", ["f"]).passed)
"""
    nobody = pwd.getpwnam("nobody").pw_uid
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to other users
        os.chmod(folder, 0o755)
        shutil.copytree(sandbox.PACKAGE, f"{folder}/sandbox")
        done = subprocess.run(
            [python, "-c", code, folder], user=nobody, group=nobody, extra_groups=[], capture_output=True, text=True
        )
    if done.stderr.startswith("refused "):
        pytest.skip(done.stderr.strip())
    assert done.stdout == "contained True\n", done.stderr


def test_the_boot_code_imports_no_package(tmp_path):
    command = [
        sys.executable,
        *FLAGS,
        "-c",
        BOOT + "\nprint([m for m in sys.modules if m == 'torch'])",
        sandbox.PACKAGE,
    ]
    done = subprocess.run([*command, "wire"], capture_output=True, text=True)
    assert "has no attribute 'main'" in done.stderr
    assert "torch" not in done.stderr
