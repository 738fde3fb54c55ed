"""Sequential learning: how fast each stage of a run was learnt, against the entropy that the stages before it left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from isentrope.report.chart import Axis, Chart, Series
from isentrope.report.data import Curve, RunData

ENTROPY = ("exact/entropy", "entropy/current_exact", "entropy")


@dataclass(frozen=True)
class Learnt:
    """A stage after the first. entropy_left: at the end of the stage before, nats. gain: mean reward over the stage
    minus that of its first rollout batch. number: 2 = the second.
    """

    number: int
    tasks: str
    entropy_left: float
    gain: float


def learnt(run: RunData) -> list[Learnt]:
    """The stages of a run that it reached, from the second on; none where its recipe lists none."""
    stages, reward, entropy = run.setting("stage"), run.curve("reward"), run.curve(*ENTROPY)
    found, start = [], 0
    for number, stage in enumerate(stages if isinstance(stages, list) else [], start=1):
        end = start + stage["steps"]
        own, before = _within(reward, start, end), _within(entropy, 0, start)
        if own and before:
            tasks = ", ".join(map(str, stage["tasks"]))
            found.append(Learnt(number, tasks, before[-1], fmean(own) - own[0]))
        start = end
    return found


def _within(curve: Curve, start: float, end: float) -> list[float]:
    """The values of steps after `start`, up to `end`."""
    return [x for step, x in zip(curve.steps, curve.values, strict=True) if start < step <= end]


def speed(runs: Sequence[RunData]) -> list[Chart]:
    """Learning speed of the later stages against the entropy left; nothing where no run has stages."""
    series = tuple(_series(runs))
    if not series:
        return []
    return [
        Chart(
            "stages",
            "Learning speed of a stage against the entropy left for it",
            "Each point is a stage after the first: how much the mean reward over it exceeds that of its first rollout"
            " batch. A policy that the stage before left without entropy learns little.",
            Axis("mean gain of reward"),
            series,
            x=Axis("entropy at the end of the stage before, nats"),
            kind="scatter",
        )
    ]


def _series(runs: Sequence[RunData]) -> Iterator[Series]:
    for i, run in enumerate(runs):
        found = learnt(run)
        if found:
            name = f"{run.name} ({'; '.join(f'{stage.number}: {stage.tasks}' for stage in found)})"
            yield Series(name, [x.entropy_left for x in found], [x.gain for x in found], i, dots=True)
