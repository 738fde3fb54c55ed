"""The progress of an evaluation: a bar with the time left in a terminal, a plain line every few seconds elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from isentrope.cli._display import LINE_INTERVAL, duration

Advance = Callable[[int], None]


@contextmanager
def progress(
    console: Console,
    label: str,
    total: int,
    done: int,
    interval: float = LINE_INTERVAL,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Advance]:
    """A function that counts problems, of which `done` of `total` were finished earlier, and shows how far it is."""
    if not console.is_terminal:
        yield Lines(console, label, total, done, interval, clock)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total, completed=done)
        yield lambda count: bar.advance(task, count)


class Lines:
    """A line for the first problems, the last, and one every `interval` seconds; time left at the mean speed."""

    def __init__(
        self, console: Console, label: str, total: int, done: int, interval: float, clock: Callable[[], float]
    ) -> None:
        self._console, self._label, self._total, self._interval, self._clock = console, label, total, interval, clock
        self._first = self._done = done
        self._start = clock()
        self._shown = float("-inf")

    def __call__(self, count: int) -> None:
        self._done += count
        now = self._clock()
        if now - self._shown >= self._interval or self._done == self._total:
            self._shown = now
            left = (now - self._start) / (self._done - self._first) * (self._total - self._done)
            text = f"{self._label}: {self._done}/{self._total} problems  left {duration(left)}"
            self._console.print(text, markup=False, soft_wrap=True)
