"""What the papers claim, and what the study's results say of it: figures with intervals, and a plain verdict.

A verdict follows from intervals by a rule that is fixed here, not by hand: a claim holds where every interval it rests
on lies on the claimed side, does not where one lies on the other, and cannot be told otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from isentrope import seeds
from isentrope.curves import correlation
from isentrope.seeds import Estimate
from isentrope.study.runs import Results

HOLDS, FAILS, OPEN = "holds here", "does not hold here", "cannot tell"
COMPARABLE = (0.8, 1.25)  # a ratio in this band is no difference
Study = Mapping[str, Results]  # by experiment
Test = tuple[Estimate, float, float]  # an estimate, and the ends of where the claim puts it
ABOVE: Callable[[Estimate], Test] = lambda x: (x, 0.0, math.inf)  # noqa: E731
BELOW: Callable[[Estimate], Test] = lambda x: (x, -math.inf, 0.0)  # noqa: E731


@dataclass(frozen=True)
class Claim:
    """A claim, the experiment that tests it, a table of figures, and the verdict with its reason in a sentence."""

    title: str
    source: str
    experiment: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    verdict: str
    reason: str
    picture: str = ""


def judge(*tests: Test) -> str:
    """The verdict of several tests (see the module's docstring).

    >>> up, down, wide = Estimate(1, 0.5, 1.5, 5), Estimate(-1, -1.5, -0.5, 5), Estimate(1, -1, 3, 5)
    >>> judge(ABOVE(up)), judge(ABOVE(up), ABOVE(down)), judge(ABOVE(up), ABOVE(wide))
    ('holds here', 'does not hold here', 'cannot tell')
    """
    if any(x.high < low or x.low > high for x, low, high in tests):
        return FAILS
    return HOLDS if all(low < x.low and x.high < high for x, low, high in tests) else OPEN


def text(x: Estimate, digits: int = 3) -> str:
    """Mean and half the interval's width, for a table.

    >>> text(Estimate(0.5, 0.4, 0.6, 5))
    '.500 ± .100'
    >>> text(Estimate(80.5, 79.5, 81.5, 3))
    '80.5 ± 1.0'
    >>> text(Estimate(0.0008, -0.02, 0.0216, 3)), text(Estimate(0.0002, 0.0001, 0.0003, 3))
    ('.0008 ± .0208', '.000200 ± .000100')
    """
    if not x.count:
        return "–"
    places = max(0, digits - 1 - math.floor(math.log10(abs(x.mean)))) if abs(x.mean) > 1e-9 else digits
    places = min(places, 4) if abs(x.mean) >= 1e-3 or x.half >= 1e-3 or x.mean == 0 else 6
    return re.sub(r"(?<!\d)0\.", ".", f"{x.mean:.{places}f} ± {x.half:.{places}f}")


def gap(results: Results, first: str, second: str, figure: str) -> Estimate:
    """second minus first, paired by seed."""
    return seeds.difference(results[first].figures[figure], results[second].figures[figure])


def quotient(results: Results, first: str, second: str, figure: str) -> Estimate:
    """second over first, seed by seed."""
    pairs = zip(results[first].figures[figure], results[second].figures[figure], strict=True)
    return seeds.estimate([b / a for a, b in pairs])


def across(results: Results, names: Sequence[str], x: str, y: str) -> Estimate:
    """Correlation of two figures over conditions, in each seed; the mean over seeds."""
    number = len(next(iter(results.values())).figures[x])
    return seeds.estimate(
        [
            correlation([results[n].figures[x][s] for n in names], [results[n].figures[y][s] for n in names])
            for s in range(number)
        ]
    )


def rows_of(results: Results, names: Sequence[str], figures: Sequence[str], head: str = "") -> list[tuple[str, ...]]:
    return [(head + name, *(text(results[name].mean(figure)) for figure in figures)) for name in names]


WORLDS = (("objectives", "bandits"), ("chains", "chains"))
COURSE = ("entropy_start", "entropy_middle", "entropy_end", "entropy_area")
COURSE_HEADS = ("", "entropy at the start", "in the middle", "at the end", "mean over the run")


def course(study: Study, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(row for world, label in WORLDS for row in rows_of(study[world], names, COURSE, f"{label}: "))
