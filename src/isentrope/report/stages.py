"""Sequential learning: how fast each stage of a run was learnt, against the entropy that the stages before it left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from isentrope.report.chart import Axis, Chart, Series
from isentrope.report.data import RunData

ENTROPY = ("exact/entropy", "entropy/current_exact", "entropy")


@dataclass(frozen=True)
class Learnt:
    """A stage after the first. entropy_left: at the end of the stage before, on its tasks, nats. gain: mean reward over
    the stage minus that of its first rollout batch. number: 2 = the second. entropy_own: on the held-out problems of
    this stage's tasks as it begins, nats; NaN where they were not measured then.
    """

    number: int
    tasks: str
    entropy_left: float
    gain: float
    entropy_own: float = math.nan


def learnt(run: RunData) -> list[Learnt]:
    """The stages of a run that it reached, from the second on; none where its recipe lists none."""
    reward, entropy = run.curve("reward"), run.curve(*ENTROPY)
    found, start = [], 0
    for number, (tasks, steps) in enumerate(_planned(run), start=1):
        end = start + steps
        own, before = reward.within(start, end), entropy.within(0, start)
        if own and before:
            held_out = _held_out(run, tasks, start)
            found.append(Learnt(number, ", ".join(tasks), before[-1], fmean(own) - own[0], held_out))
        start = end
    return found


def _planned(run: RunData) -> list[tuple[list[str], int]]:
    """Tasks and steps of the stages that a recipe lists; none where it holds something else under that name."""
    match run.setting("stage"):
        case [*stages] if all(_is_stage(stage) for stage in stages):
            return [(stage["tasks"], stage["steps"]) for stage in stages]
    return []


def _is_stage(stage: Any) -> bool:
    match stage:
        case {"tasks": [*tasks], "steps": int()}:
            return all(isinstance(task, str) for task in tasks)
    return False


def _held_out(run: RunData, tasks: Sequence[str], step: float) -> float:
    """Mean over tasks of the entropy that was measured at the end of a step; NaN where one of them was not."""
    found = {one.task: one.entropy for one in run.evaluations if one.step == step}
    return fmean(found.get(task, math.nan) for task in tasks)


def speed(runs: Sequence[RunData]) -> list[Chart]:
    """Learning speed of the later stages against the entropy left, and against that of their own tasks where it was
    measured between stages; nothing where no run has stages.
    """
    about = "Each point is a stage after the first: how much its mean reward exceeds that of its first rollout batch. "
    return [
        *_scatter(
            runs,
            lambda stage: stage.entropy_left,
            "stages",
            "Learning speed of a stage against the entropy left for it",
            f"{about}A policy that the stage before left without entropy learns little.",
            "entropy at the end of the stage before, nats",
        ),
        *_scatter(
            runs,
            lambda stage: stage.entropy_own,
            "stages-own",
            "Learning speed of a stage against the entropy of its own tasks",
            f"{about}A policy may have lost entropy on the tasks before and kept it on these.",
            "entropy on the stage's held-out problems as it begins, nats",
        ),
    ]


def _scatter(
    runs: Sequence[RunData], x: Callable[[Learnt], float], name: str, title: str, about: str, axis: str
) -> list[Chart]:
    series = tuple(_series(runs, x))
    if not series:
        return []
    return [Chart(name, title, about, Axis("mean gain of reward"), series, x=Axis(axis), kind="scatter")]


def _series(runs: Sequence[RunData], x: Callable[[Learnt], float]) -> Iterator[Series]:
    """The stages of each run of which x is known."""
    for i, run in enumerate(runs):
        found = [stage for stage in learnt(run) if math.isfinite(x(stage))]
        if found:
            name = f"{run.name} ({'; '.join(f'{stage.number}: {stage.tasks}' for stage in found)})"
            yield Series(name, [x(stage) for stage in found], [stage.gain for stage in found], i, dots=True)
