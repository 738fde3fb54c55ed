"""A pool of worker processes that can be killed: for verifiers that may hang, eat memory or crash.

A worker is a script that answers one JSON line with one JSON line (`math_worker.py`). It is started with `subprocess`,
not `multiprocessing`: that works in threads, in daemonic processes (data loaders), in Ray workers, and never imports
the caller's main module again. A forked child starts workers of its own.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from isentrope.errors import IsentropeError

START_SECONDS = 120.0  # wall clock for a worker's imports, on a machine that is busy with other things
WALL_FACTOR = 10.0  # wall clock that a request may take, in units of its CPU limit: a starved worker is not a hung one
CHUNK = 1 << 16

_pools: "WeakSet[Pool]" = WeakSet()


class WorkerLost(Exception):
    """A worker was killed or died over a request; the message is the reason in a few words."""


class Pool:
    """Up to `size` workers that run `script`, started when they are first needed and kept.

    seconds: CPU time of a worker for one request; the kernel kills it there, whatever it is doing. memory: bytes of
    address space of a worker. Both are arguments of the script.
    """

    def __init__(self, script: Path, size: int, seconds: float, memory: int) -> None:
        self.script, self.size, self.seconds, self.memory = script, size, seconds, memory
        self._forget()
        _pools.add(self)

    def _forget(self) -> None:
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._starting = 0
        self._changed = threading.Condition()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply of a worker to a request; waits while all are busy.

        Raises WorkerLost when the worker ran out of time, memory or died; it is replaced at the next request. Raises
        IsentropeError when a worker cannot start.
        """
        worker = self._take()
        try:
            reply = worker.ask(request, self.seconds * WALL_FACTOR)
        except BaseException:
            self._drop(worker)
            raise
        if reply.get("error") == "memory":  # what it holds is not given back
            self._drop(worker)
            raise WorkerLost("out of memory")
        with self._changed:
            self._busy.remove(worker)
            self._idle.append(worker)
            self._changed.notify()
        return reply

    def _take(self) -> "_Worker":
        with self._changed:
            while not self._idle and len(self._busy) + self._starting >= self.size:
                self._changed.wait()
            if self._idle:
                self._busy.append(self._idle.pop())
                return self._busy[-1]
            self._starting += 1
        try:
            worker = _Worker(self.script, self.seconds, self.memory)
        except BaseException:
            with self._changed:
                self._starting -= 1
                self._changed.notify()
            raise
        with self._changed:
            self._starting -= 1
            self._busy.append(worker)
        return worker

    def _drop(self, worker: "_Worker") -> None:
        worker.kill()
        with self._changed:
            if worker in self._busy:  # `close` may have been faster
                self._busy.remove(worker)
            self._changed.notify()

    def processes(self) -> list[int]:
        """The ids of the worker processes."""
        with self._changed:
            return [worker.process.pid for worker in (*self._idle, *self._busy)]

    def close(self) -> None:
        """Kill all workers and wait for their end; the pool can be used again."""
        with self._changed:
            workers = [*self._idle, *self._busy]
            self._idle, self._busy = [], []
        for worker in workers:
            worker.kill()

    def abandon(self) -> None:
        """Forget the workers without touching them: in a forked child they are the parent's."""
        for worker in (*self._idle, *self._busy):
            worker.abandon()
        self._forget()


class _Worker:
    """One process and the pipes to it."""

    def __init__(self, script: Path, seconds: float, memory: int) -> None:
        # -P: the folder of the script is not importable, its modules have names of the standard library's
        command = [sys.executable, "-P", str(script), str(seconds), str(memory)]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            process_group=0,  # Ctrl-C is the parent's
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )
        try:
            ready = self._read_line(time.monotonic() + START_SECONDS)
        except BaseException as error:
            self.kill()
            if isinstance(error, WorkerLost):
                raise IsentropeError(f"a worker of {script.name} cannot start: {error}") from error
            raise
        if "error" in ready:
            self.kill()
            raise IsentropeError(f"a worker of {script.name} cannot start: {ready['error']}")

    def ask(self, request: Mapping[str, Any], wall: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError:
            raise WorkerLost(self._cause_of_death()) from None
        return self._read_line(time.monotonic() + wall)

    def _read_line(self, deadline: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        line = b""
        while not line.endswith(b"\n"):
            poll = select.poll()  # not select(): it fails on descriptors above 1023
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise WorkerLost("time-out")
            part = os.read(descriptor, CHUNK)
            if not part:
                raise WorkerLost(self._cause_of_death())
            line += part
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _cause_of_death(self) -> str:
        try:
            code = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "the worker closed its pipe"
        return "time-out" if code == -signal.SIGPROF else f"the worker died with code {code}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._close_pipes()

    def abandon(self) -> None:
        self.process.returncode = 0  # not our child: nothing to wait for, nothing to warn of
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.abandon()


def _at_exit() -> None:
    for pool in list(_pools):
        pool.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
