"""The pool of killable workers: what hangs or eats memory is killed, from any thread or process, and nothing stays."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from isentrope.errors import IsentropeError
from isentrope.tasks import workers
from isentrope.tasks.workers import Pool, WorkerLost

SCRIPT = """
import json, os, resource, signal, sys
memory = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
    request = json.loads(line)
    reply = {"pid": os.getpid()} | request
    if request.get("do") == "spin":
        while True:
            pass
    if request.get("do") == "die":
        os._exit(3)
    if request.get("do") == "allocate":
        try:
            bytearray(10 * memory)
        except MemoryError:
            reply = {"error": "memory"}
    print(json.dumps(reply), flush=True)
"""
NO_WORKER = [
    ("raise SystemExit(3)", "died with code 3"),
    ("import json; print(json.dumps({'error': 'no library'}))", "no library"),
]


@pytest.fixture
def pool(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    made = Pool(path, 2, 0.3, 1 << 30)
    yield made
    made.close()


def gone(pid, seconds=10.0):
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def test_a_worker_is_kept_and_answers_in_order(pool):
    replies = [pool.ask({"n": n}) for n in range(20)]
    assert [reply["n"] for reply in replies] == list(range(20))
    assert {reply["pid"] for reply in replies} == set(pool.processes())
    assert len(pool.processes()) == 1


@pytest.mark.parametrize(
    ("request_", "reason"), [("spin", "time-out"), ("die", "died with code 3"), ("allocate", "out of memory")]
)
def test_a_worker_that_hangs_dies_or_eats_memory_is_replaced_and_leaves_no_zombie(pool, request_, reason):
    before = pool.ask({})["pid"]
    with pytest.raises(WorkerLost, match=reason):
        pool.ask({"do": request_})
    assert not Path(f"/proc/{before}").exists()
    assert pool.ask({})["pid"] != before


def test_a_worker_killed_from_outside_is_replaced(pool):
    pid = pool.ask({})["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="died with code -9"):
        pool.ask({})
    assert pool.ask({})["pid"] != pid


def test_a_worker_that_is_stopped_is_killed_by_the_clock(pool, monkeypatch):
    pid = pool.ask({})["pid"]
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(workers, "WALL_FACTOR", 1.0)
    with pytest.raises(WorkerLost, match="time-out"):
        pool.ask({})
    assert gone(pid)


def test_threads_share_the_workers_and_never_more_than_there_may_be(pool):
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda n: pool.ask({"n": n}), range(100)))
    assert [reply["n"] for reply in replies] == list(range(100))
    assert 1 <= len({reply["pid"] for reply in replies}) <= 2


def test_threads_go_on_while_others_time_out(pool):
    def ask(n):
        try:
            return pool.ask({"n": n} | ({"do": "spin"} if n % 4 == 0 else {}))["n"]
        except WorkerLost:
            return None

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(ask, range(12)))
    assert found == [None if n % 4 == 0 else n for n in range(12)]
    assert len(pool.processes()) <= 2


def _in_a_child(pool, queue):
    queue.put(pool.ask({})["pid"])


def test_a_forked_daemonic_child_has_workers_of_its_own(pool):
    """As data loaders fork them; `multiprocessing` forbids children to such a process."""
    own = pool.ask({})["pid"]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_a_child, args=(pool, queue), daemon=True)
    child.start()
    theirs = queue.get()
    child.join()
    assert child.exitcode == 0
    assert theirs != own
    assert gone(theirs)  # its parent has ended
    assert pool.ask({})["pid"] == own


ENDS = {
    "by itself": "",
    "while a worker hangs": "import threading, time; "
    "threading.Thread(target=pool.ask, args=({'do': 'spin'},), daemon=True).start(); time.sleep(0.5)",
    "by an error": "raise RuntimeError('x')",
    "in os._exit": "import os; os._exit(0)",
    "by SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("end", ENDS)
def test_no_worker_outlives_its_interpreter(tmp_path, end):
    (tmp_path / "script.py").write_text(SCRIPT)
    package = Path(workers.__file__).parents[1]
    code = f"""
import sys, types
from pathlib import Path
for name, folder in (("isentrope", {str(package)!r}), ("isentrope.tasks", {str(package / "tasks")!r})):
    sys.modules[name] = types.ModuleType(name)  # without what the packages import: that takes seconds
    sys.modules[name].__path__ = [folder]
from isentrope.tasks.workers import Pool
pool = Pool(Path({str(tmp_path / "script.py")!r}), 1, 60.0, 1 << 30)
print(pool.ask({{}})["pid"], flush=True)
{ENDS[end]}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert gone(int(done.stdout))


@pytest.mark.parametrize(("script", "reason"), NO_WORKER)
def test_a_worker_that_cannot_start_is_an_error_with_the_reason(tmp_path, script, reason):
    path = tmp_path / "broken.py"
    path.write_text(script)
    pool = Pool(path, 1, 1.0, 1 << 30)
    for _ in range(2):  # the failed start holds no place in the pool
        with pytest.raises(IsentropeError, match=f"broken.py cannot start: .*{reason}"):
            pool.ask({})
    assert pool.processes() == []


def test_a_closed_pool_starts_again(pool):
    pid = pool.ask({})["pid"]
    pool.close()
    assert not Path(f"/proc/{pid}").exists()
    assert pool.ask({})["pid"] != pid
