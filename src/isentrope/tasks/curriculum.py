"""A curriculum by pass rate: problems that are neither solved nor hopeless come more often.

A group of completions that all pass, or all fail, teaches a group-relative objective nothing. So the running share of
passes of every problem decides how likely it is to be drawn next. The statistic is a plain list of numbers that goes
into the checkpoint; which problems are drawn depends on it, the seed and the number of the batch alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks.base import generator


@dataclass(frozen=True)
class Curriculum:
    """How likely a problem is to be drawn, by its running pass rate p.

    w(p) = 1 for low <= p <= high, else max(floor, exp(-(d / width)^2 / 2)), d the distance of p from the band.

    low, high: the band; equal ones make a target. width: how far outside it a problem still counts, in pass rate; 0
    lets only the floor through. floor: the least weight; above 0, so that a problem that was out of reach is tried
    again one day. keep: of the old rate when a new group was sampled, p <- keep * p + (1 - keep) * share of passes; 0
    knows the last group alone. passed: a completion passes with this reward or a higher one.
    A problem that was never sampled has weight 1.

    >>> rule = Curriculum(low=0.25, high=0.75, width=0.25, floor=0.1)
    >>> rule.weight(0.5), round(rule.weight(1.0), 3), rule.weight(None)
    (1.0, 0.607, 1.0)
    """

    low: float = 0.25
    high: float = 0.75
    width: float = 0.25
    floor: float = 0.1
    keep: float = 0.5
    passed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise IsentropeError(f"Curriculum: the band is {self.low} to {self.high}; it must lie in [0, 1], low first")
        if not (math.isfinite(self.width) and self.width >= 0):
            raise IsentropeError(f"Curriculum.width is {self.width}; it must be a number of at least 0")
        if not 0 < self.floor <= 1:
            raise IsentropeError(f"Curriculum.floor is {self.floor}; it must be above 0 and at most 1")
        if not 0 <= self.keep < 1:
            raise IsentropeError(f"Curriculum.keep is {self.keep}; it must be at least 0 and below 1")
        if not math.isfinite(self.passed):
            raise IsentropeError(f"Curriculum.passed is {self.passed}; it must be a finite reward")

    def weight(self, rate: float | None) -> float:
        """The weight of a problem; rate: its running pass rate in [0, 1], None if it was never sampled."""
        if rate is None or self.holds(rate):
            return 1.0
        distance = max(self.low - rate, rate - self.high)
        outside = math.exp(-((distance / self.width) ** 2) / 2) if self.width else 0.0
        return max(self.floor, outside)

    def holds(self, rate: float) -> bool:
        """Whether a pass rate lies in the band."""
        return self.low <= rate <= self.high


@dataclass
class PassRates:
    """The running pass rate of every problem, and the draw by it.

    curriculum: the rule. problems: of each row of the data set the number of its problem, 0 for the first; rows of the
    same problem share a number.
    """

    curriculum: Curriculum
    problems: Sequence[int]
    rates: list[float | None] = field(init=False)

    def __post_init__(self) -> None:
        self.rates = [None] * (max(self.problems, default=-1) + 1)

    def observe(self, problem: int, rewards: Sequence[float]) -> None:
        """Take the rewards of a problem's completions into account; none of them change nothing."""
        if not rewards:
            return
        passes = sum(reward >= self.curriculum.passed for reward in rewards) / len(rewards)
        old, keep = self.rates[problem], self.curriculum.keep
        self.rates[problem] = passes if old is None else keep * old + (1 - keep) * passes

    def draw(self, rows: Sequence[int], count: int, *seed: object) -> list[int]:
        """`count` of the rows, without replacement, each step with probabilities proportional to their weights.

        All rows, and then some again, where there are fewer than `count`. seed: anything that names the draw.
        Source: Efraimidis, Spirakis, Weighted random sampling with a reservoir, Inf. Process. Lett. 97 (2006): the rows
        with the largest u^(1/w), u uniform in (0, 1).
        """
        rng, found = generator("curriculum", *seed), list[int]()
        while len(found) < count:
            keys = {row: math.log(1.0 - rng.random()) / self._weight(row) for row in rows}
            found += sorted(rows, key=keys.__getitem__, reverse=True)[: count - len(found)]
        return found

    def _weight(self, row: int) -> float:
        return self.curriculum.weight(self.rates[self.problems[row]])

    def figures(self, rows: Sequence[int]) -> dict[str, tuple[float, int]]:
        """What is logged of a batch of rows, as (sum, number of terms), a name without terms left out.

        seen: share of the data's problems that were sampled. in_band: share of those within the band. pass_rate: mean
        running rate of the rows' problems that were sampled before. new: share of the rows' that were not.
        """
        known = [rate for rate in self.rates if rate is not None]
        drawn = [rate for row in rows if (rate := self.rates[self.problems[row]]) is not None]
        found = {
            "seen": (float(len(known)), len(self.rates)),
            "in_band": (float(sum(map(self.curriculum.holds, known))), len(known)),
            "pass_rate": (math.fsum(drawn), len(drawn)),
            "new": (float(len(rows) - len(drawn)), len(rows)),
        }
        return {name: pair for name, pair in found.items() if pair[1]}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, in types JSON has."""
        return {"rates": list(self.rates)}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`; IsentropeError for that of another number of problems."""
        rates = state.get("rates", [])
        if len(rates) != len(self.rates):
            raise IsentropeError(
                f"the pass rates are of {len(rates)} problems, the data set has {len(self.rates)}; resume with "
                "the same data"
            )
        self.rates = list(rates)
