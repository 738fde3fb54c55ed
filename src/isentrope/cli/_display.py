"""The progress of a run: what to show, gathered from the trainer's logs, and two ways to show it.

`Tracker` turns the logs of optimizer steps into `Progress` snapshots; `LiveDisplay` redraws a panel in a terminal, and
`LineDisplay` prints a plain line every few seconds where there is none.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_INTERVAL = 10.0  # seconds between the lines of a LineDisplay

# What is shown <- the keys of the trainer's log that hold it, in order of preference.
KEYS = {
    "reward": ("reward",),
    "entropy": ("entropy/current_exact", "entropy", "entropy/old_exact"),
    "clip_low": ("clip/low",),
    "clip_high": ("clip/high",),
}
CONTROLLER = "controller/"  # every number of the controllers' state is logged under this
NUM_TOKENS = "num_tokens"


@dataclass(frozen=True)
class Progress:
    """One snapshot; what is not known yet is NaN. Entropies in nats, clips as shares of tokens, times in seconds."""

    step: int
    steps: int
    reward: float = math.nan
    entropy: float = math.nan
    entropy_start: float = math.nan
    entropy_target: float = math.nan
    clip_low: float = math.nan
    clip_high: float = math.nan
    controllers: Mapping[str, float] = field(default_factory=dict)
    tokens_per_second: float = math.nan
    seconds_left: float = math.nan


class Tracker:
    """Follows the logs of a run of `steps` optimizer steps that starts after `first_step` of them, `num_tokens` in.

    Clip shares are means over the last `window` steps: the first update on a rollout batch never clips.
    Numbers that a step does not log (rewards come once per rollout batch) keep their last value. Speed and time left
    are over the whole run so far.
    """

    def __init__(
        self,
        steps: int,
        first_step: int = 0,
        num_tokens: float = 0,
        window: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps, self.first_step = steps, first_step
        self._clips = {name: deque[float](maxlen=window) for name in ("clip_low", "clip_high")}
        self._first_tokens = num_tokens
        self._clock = clock
        self._start = clock()
        self._last: dict[str, float] = {}
        self._entropy_start = math.nan

    def recall(self, earlier: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Take in the logs of the steps before this process: where the run started and what stood last."""
        for step, logs in earlier:
            self.update(step, {key: value for key, value in logs.items() if key != NUM_TOKENS})

    def update(self, step: int, logs: Mapping[str, Any]) -> Progress:
        """The snapshot after the logs of `step`."""
        numbers = {key: float(value) for key, value in logs.items() if isinstance(value, int | float)}
        self._last |= numbers
        shown = {name: self._find(keys) for name, keys in KEYS.items()}
        for name, recent in self._clips.items():
            recent.append(shown[name])
            shown[name] = sum(recent) / len(recent)
        if math.isnan(self._entropy_start):
            self._entropy_start = shown["entropy"]
        return Progress(
            step=step,
            steps=self.steps,
            entropy_start=self._entropy_start,
            entropy_target=next((x for key, x in self._state(".target")), math.nan),
            controllers=dict(self._state(".value")),
            tokens_per_second=self._speed(),
            seconds_left=self._left(step),
            **shown,
        )

    def _find(self, keys: tuple[str, ...]) -> float:
        return next((self._last[key] for key in keys if key in self._last), math.nan)

    def _state(self, end: str) -> list[tuple[str, float]]:
        """Slot and number of the controllers' state whose name ends so."""
        found = [(key, x) for key, x in self._last.items() if key.startswith(CONTROLLER) and key.endswith(end)]
        return [(key.removeprefix(CONTROLLER).removesuffix(end), x) for key, x in found]

    def _speed(self) -> float:
        elapsed = self._clock() - self._start
        return (self._last.get(NUM_TOKENS, math.nan) - self._first_tokens) / elapsed if elapsed > 0 else math.nan

    def _left(self, step: int) -> float:
        done = step - self.first_step
        return (self._clock() - self._start) / done * (self.steps - step) if done > 0 else math.nan


class Display(Protocol):
    """Shows snapshots between `start` and `stop`."""

    def start(self) -> None: ...

    def show(self, progress: Progress) -> None: ...

    def note(self, text: str) -> None: ...

    def stop(self) -> None: ...


class LiveDisplay:
    """A panel in the terminal that is drawn anew with every snapshot."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def start(self) -> None:
        self._live.start()

    def show(self, progress: Progress) -> None:
        self._live.update(panel(progress), refresh=True)

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def stop(self) -> None:
        self._live.stop()


class LineDisplay:
    """A plain line for the first snapshot, the last one, and one every `interval` seconds between."""

    def __init__(
        self, console: Console, interval: float = LINE_INTERVAL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._interval, self._clock = console, interval, clock
        self._shown = -math.inf

    def start(self) -> None:
        """Nothing to set up."""

    def show(self, progress: Progress) -> None:
        now = self._clock()
        if now - self._shown >= self._interval or progress.step == progress.steps:
            self._shown = now
            self.note(line(progress))

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Nothing to take down."""


def fields(progress: Progress) -> list[tuple[str, str]]:
    """Labels and texts of what is known, in the order in which they are shown."""
    target = [("entropy target", _number(progress.entropy_target))] if not math.isnan(progress.entropy_target) else []
    return [
        ("reward", _number(progress.reward)),
        ("entropy", f"{_number(progress.entropy)} (start {_number(progress.entropy_start)})"),
        *target,
        ("clipped low/high", f"{_percent(progress.clip_low)}/{_percent(progress.clip_high)}"),
        *((name, _number(value)) for name, value in progress.controllers.items()),
        ("tokens/s", "-" if math.isnan(progress.tokens_per_second) else f"{progress.tokens_per_second:.0f}"),
        ("left", duration(progress.seconds_left)),
    ]


def line(progress: Progress) -> str:
    """The snapshot on one line of text."""
    return f"step {progress.step}/{progress.steps}  " + "  ".join(f"{name} {text}" for name, text in fields(progress))


def panel(progress: Progress) -> Group:
    """The snapshot as a bar and a table."""
    head = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=progress.steps, completed=progress.step, width=40)
    head.add_row(Text(f"step {progress.step}/{progress.steps}", style="bold"), bar)
    body = Table.grid(padding=(0, 2))
    for name, text in fields(progress):
        body.add_row(Text(name, style="dim"), Text(text))
    return Group(head, body)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f}%"


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    >>> duration(75), duration(7320), duration(float("nan"))
    ('1:15', '2 h 02 min', '-')
    """
    if math.isnan(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
