"""Signals to a run under way, as wishes that it grants at the end of a step."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Ctrl-C and SIGTERM as a wish: the first sets `requested`, a second one raises KeyboardInterrupt at once."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.requested = False
        self._announce = announce

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._announce("stopping after this step to save a checkpoint; once more stops at once")


@contextmanager
def listening(interrupt: Interrupt) -> Iterator[None]:
    """Send SIGINT and SIGTERM to `interrupt` while the block runs."""
    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
