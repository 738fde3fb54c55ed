"""The order of a mix: which problems a rollout batch holds, so that every batch keeps the weights of its tasks.

A shuffled data set keeps the weights on average; a batch of 16 prompts of four tasks may well lack one of them. Here
each batch holds `prompts * weight` problems of a task, rounded down or up, and what rounding took is given back in the
batches that follow. The problems of batch number n depend on the settings, the seed and n alone, so that a run that is
resumed anywhere goes on with the same ones. Stages draw from some of the tasks for a while, then from others.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from isentrope.errors import IsentropeError
from isentrope.tasks.base import generator
from isentrope.tasks.curriculum import Curriculum


@dataclass(frozen=True)
class Stretch:
    """Rollout batches in a row that draw from some tasks alone: `tasks` by name, `batches` of them."""

    tasks: tuple[str, ...]
    batches: int

    def __post_init__(self) -> None:
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise IsentropeError(f"Stretch.tasks is {self.tasks}; name one task or more, each once")
        if self.batches < 1:
            raise IsentropeError(f"Stretch.batches is {self.batches}; it must be at least 1")


@dataclass(frozen=True)
class Order:
    """How the prompts of rollout batches are chosen.

    weights: of each task, relative to the others'; None takes the shares that the tasks have in the data set.
    curriculum: prefers problems by their running pass rate (within each task); None goes through every task's problems
    in a shuffled order, newly shuffled when they are used up.
    stages: which tasks the first batches draw from, which the next, and so on; the last goes on for ever. Within a
    stage its tasks keep their weights; a task that comes again goes on through its problems. None: all tasks always.
    """

    weights: Mapping[str, float] | None = None
    curriculum: Curriculum | None = None
    stages: tuple[Stretch, ...] = ()

    def __post_init__(self) -> None:
        for task, weight in (self.weights or {}).items():
            if not (math.isfinite(weight) and weight > 0):
                raise IsentropeError(f"Order.weights gives task {task} the weight {weight}; it must be above 0")


def quotas(weights: Sequence[float], prompts: int) -> Iterator[list[int]]:
    """How many prompts of each task the batches hold, batch after batch, for ever.

    weights: one a task, above 0. prompts: of a batch.
    A batch holds floor(x) or floor(x) + 1 of a task, x = prompts * weight / sum of weights; the extra ones go to the
    tasks that are furthest behind x times the number of batches, so that the shares of a run are the weights.

    >>> counts = quotas([2, 1], prompts=4)
    >>> next(counts), next(counts), next(counts)
    ([3, 1], [2, 2], [3, 1])
    """
    total = math.fsum(weights)
    exact = [prompts * weight / total for weight in weights]
    least = [int(x) for x in exact]
    behind = [0.0] * len(weights)
    while True:
        behind = [b + x - n for b, x, n in zip(behind, exact, least, strict=True)]
        # rounded, so that equal tasks tie whatever the rounding errors of the sums, and the first takes its turn
        ahead = sorted(range(len(weights)), key=lambda i: (-round(behind[i], 9), i))[: prompts - sum(least)]
        behind = [b - (i in ahead) for i, b in enumerate(behind)]
        yield [n + (i in ahead) for i, n in enumerate(least)]


@dataclass
class Batches:
    """The rows of a data set that make up each rollout batch.

    tasks: the task of each row, in the order of the data set. prompts: problems of a batch. weights, stages: as in
    `Order`. Raises IsentropeError for weights of other tasks than the rows', a stage of a task without rows, and a
    batch without prompts.
    """

    tasks: Sequence[str]
    prompts: int
    seed: int
    weights: Mapping[str, float] | None = None
    stages: Sequence[Stretch] = ()
    _counts: list[list[int]] = field(default_factory=list, init=False)  # of the batches so far
    _starts: list[list[int]] = field(default_factory=list, init=False)  # problems of each task before a batch

    def __post_init__(self) -> None:
        if self.prompts < 1 or not self.tasks:
            raise IsentropeError(f"a batch of {self.prompts} prompts from {len(self.tasks)} rows; both must be above 0")
        self.rows: dict[str, list[int]] = {}
        for row, task in enumerate(self.tasks):
            self.rows.setdefault(task, []).append(row)
        given = self.weights or {task: float(len(rows)) for task, rows in self.rows.items()}
        if set(given) != set(self.rows):
            raise IsentropeError(
                f"the weights name {', '.join(sorted(given))}, the rows are of {', '.join(sorted(self.rows))}; name"
                " each task of the data set once"
            )
        for task in (task for stage in self.stages for task in stage.tasks):
            if task not in self.rows:
                raise IsentropeError(f"a stage draws from task {task}, the rows are of {', '.join(sorted(self.rows))}")
        self._quotas = self._all_quotas(given)

    def _all_quotas(self, weights: Mapping[str, float]) -> Iterator[list[int]]:
        """Batch after batch, how many problems of each task it holds."""
        *done, last = self.stages or [Stretch(tuple(self.rows), 1)]
        for stage in done:
            yield from islice(self._quotas_of(stage, weights), stage.batches)
        yield from self._quotas_of(last, weights)

    def _quotas_of(self, stage: Stretch, weights: Mapping[str, float]) -> Iterator[list[int]]:
        """The same for batches of one stage, for ever."""
        own = [task for task in self.rows if task in stage.tasks]
        for counts in quotas([weights[task] for task in own], self.prompts):
            held = dict(zip(own, counts, strict=True))
            yield [held.get(task, 0) for task in self.rows]

    def stage(self, number: int) -> int:
        """The stage that batch `number` belongs to, 1 the first; 0 where there are none."""
        done = 0
        for place, stage in enumerate(self.stages, start=1):
            done += stage.batches
            if number < done:
                return place
        return len(self.stages)

    def allowed(self, number: int) -> list[int]:
        """The rows that batch `number` may draw from, in the order of the data set."""
        stage = self.stage(number)
        tasks = self.stages[stage - 1].tasks if stage else tuple(self.rows)
        return sorted(row for task in tasks for row in self.rows[task])

    def counts(self, number: int) -> dict[str, int]:
        """How many problems of each task batch `number` holds; 0 is the first."""
        self._reach(number)
        return dict(zip(self.rows, self._counts[number], strict=True))

    def __call__(self, number: int) -> list[int]:
        """The rows of batch `number`, in random order, going through each task's rows pass after pass.

        A row stands twice in a batch only where a pass ends within it, or where a task has too few rows for a batch.
        """
        self._reach(number)
        chosen = [
            row
            for task, count, start in zip(self.rows, self._counts[number], self._starts[number], strict=True)
            for row in self._stretch(task, start, count)
        ]
        generator("mix order", self.seed, number).shuffle(chosen)
        return chosen

    def _reach(self, number: int) -> None:
        while len(self._counts) <= number:
            before = self._starts[-1] if self._starts else [0] * len(self.rows)
            last = self._counts[-1] if self._counts else [0] * len(self.rows)
            self._starts.append([start + count for start, count in zip(before, last, strict=True)])
            self._counts.append(next(self._quotas))

    def _stretch(self, task: str, start: int, count: int) -> list[int]:
        """`count` rows of a task from place `start` of its endless sequence of passes."""
        size, found = len(self.rows[task]), list[int]()
        while len(found) < count:
            number, place = divmod(start + len(found), size)
            order = generator("mix pass", self.seed, task, number).sample(self.rows[task], size)
            found += order[place : place + count - len(found)]
        return found
