"""Statistics of noisy curves that a few wild points cannot move: medians, slopes of pairs, ranks.

All take finite values. A long curve is reduced to at most MAX_BLOCKS medians of equal blocks first, which also takes
out most of the correlation between neighbours that makes trends look surer than they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch

from isentrope.run import Series

MAX_BLOCKS = 60
MAD_TO_STD = 1.4826  # of a normal distribution
SURE = 2.6  # standard errors of Kendall's rank statistic: one false trend in about 100 curves of noise
STANDING = 10  # points without a trend; fewer cannot show that there is none
MIN_POINTS = 8  # below, nothing is said about trends


def blocks(series: Series, most: int = MAX_BLOCKS) -> Series:
    """At most `most` points: medians of equally long blocks of neighbours."""
    n = len(series)
    if n <= most:
        return series
    edges = [round(i * n / most) for i in range(most + 1)]
    parts = list(pairwise(edges))
    return Series(
        tuple(median(series.steps[a:b]) for a, b in parts), tuple(median(series.values[a:b]) for a, b in parts)
    )


def noise(values: Sequence[float]) -> float:
    """Standard deviation of a curve around its course, from the spread of the differences of neighbours."""
    steps = [b - a for a, b in pairwise(values)]
    if len(steps) < 2:
        return 0.0
    middle = median(steps)
    return MAD_TO_STD * median(abs(d - middle) for d in steps) / math.sqrt(2)


def start(series: Series, share: float = 0.1) -> float:
    """The level at which a curve begins: median of its first tenth, of at least 3 points."""
    return median(series.values[: max(3, round(share * len(series)))])


def end(series: Series, share: float = 0.1) -> float:
    """The level at which a curve ends."""
    return median(series.values[-max(3, round(share * len(series))) :])


@dataclass(frozen=True)
class Trend:
    """A straight course: `slope` a step, `change` over all steps, `z` standard errors of Kendall's rank statistic."""

    slope: float
    change: float
    z: float

    @property
    def is_sure(self) -> bool:
        """Whether noise alone would hardly show such a course."""
        return abs(self.z) >= SURE


def trend(series: Series) -> Trend:
    """Theil-Sen slope and Kendall's z of a curve; all zero for fewer than MIN_POINTS points.

    >>> trend(Series(tuple(range(10)), tuple(2.0 * x for x in range(10)))).slope
    2.0
    """
    few = blocks(series)
    n = len(few)
    if n < MIN_POINTS:
        return Trend(0.0, 0.0, 0.0)
    steps, values = (torch.tensor(x, dtype=torch.float64) for x in (few.steps, few.values))
    i, j = torch.triu_indices(n, n, offset=1)
    rises = values[j] - values[i]
    slope = float((rises / (steps[j] - steps[i])).median())
    spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return Trend(slope, slope * (few.steps[-1] - few.steps[0]), float(rises.sign().sum()) / spread)


def log_trend(series: Series) -> Trend:
    """The trend of the logarithm; values at or below 1e-6 count as 1e-6."""
    return trend(Series(series.steps, tuple(math.log(max(x, 1e-6)) for x in series.values)))


def direction(series: Series, share: float = 0.5, least: float = 0.03) -> int:
    """1 where the last `share` of a curve rises, -1 where it falls, 0 where neither can be said.

    A course counts that is surer than noise and amounts to `least` of the curve's size (its largest absolute value).
    """
    course = trend(series.last(share))
    size = max(abs(x) for x in blocks(series).values)
    if not course.is_sure or abs(course.change) < least * size:
        return 0
    return 1 if course.change > 0 else -1


def course(series: Series, share: float = 0.5, least: float = 0.05) -> int | None:
    """As `direction`, but 0 only where a curve surely stands: None where it is too noisy or too short to tell.

    A curve stands where its rise over the last `share`, and 2 standard errors more, amount to less than `least` of
    its size.
    """
    if len(series) < MIN_POINTS:
        return None
    heads = direction(series, share)
    if heads:
        return heads
    late = series.last(share)
    if len(late) < STANDING:
        return None
    size = max(abs(x) for x in blocks(series).values)
    doubt = 2.0 * noise(late.values) * math.sqrt(12 / len(late))  # of a straight line's rise through noisy points
    return 0 if trend(late).change + doubt < least * size else None


@dataclass(frozen=True)
class Jump:
    """A sudden and lasting change between two points: at `step`, from one level to another."""

    step: float
    before: float
    after: float


def jump(series: Series, width: int = 6, least: float = 1.3, noises: float = 8.0) -> Jump | None:
    """The largest jump of a positive curve, None where there is none; judged on its logarithm.

    A jump is made between two neighbours, is `least` times up or down and `noises` times beyond the noise, and both
    sides keep their level for `width` points, and for twice as many where there are so many.
    """
    if len(series) < 2 * width:
        return None
    floor = max(0.01 * median(series.values), 1e-6)  # values near or below 0 are another detector's
    x, best, size = [math.log(max(v, floor)) for v in series.values], None, 0.0
    bound = max(noises * noise(x), math.log(least))
    for i in range(width, len(x) - width + 1):
        before, after = x[max(0, i - 2 * width) : i], x[i : i + 2 * width]
        low, high = median(before), median(after)
        change = abs(high - low)
        if change <= max(bound, size) or abs(x[i] - x[i - 1]) < change / 2:
            continue
        if _keeps(before, low, change) and _keeps(after, high, change):
            best, size = Jump(series.steps[i], math.exp(low), math.exp(high)), change
    return best


def _keeps(values: Sequence[float], level: float, change: float) -> bool:
    """Whether nearly all values lie within a third of a change of their level; one of ten may be wild."""
    return sum(abs(v - level) >= change / 3 for v in values) <= len(values) // 10


@dataclass(frozen=True)
class Wave:
    """A sustained oscillation: half the height between crests and troughs, the period in steps, how many there are."""

    amplitude: float
    period: float
    count: float


def wave(series: Series, least: float = 0.15) -> Wave | None:
    """The oscillation in a curve's later two thirds, None where there is none.

    It has an amplitude of `least` of the level and 2 times the noise, comes back at least 2.5 times with an
    autocorrelation of .4 or more at one period and -.25 or less at half of it, and does not die down.
    """
    late = blocks(series.last(2 / 3), 160)
    n = len(late)
    if n < 24:
        return None
    rest = _detrended(late.values)
    lag = _period(rest)
    amplitude = _amplitude(rest)
    level = abs(median(late.values))
    if lag is None or n < 2.5 * lag or amplitude < max(least * level, 2 * noise(late.values)):
        return None
    if _amplitude(rest[-n // 3 :]) < 0.5 * _amplitude(rest[: n // 3]):
        return None
    spacing = (late.steps[-1] - late.steps[0]) / (n - 1)
    return Wave(amplitude, lag * spacing, n / lag)


def _detrended(values: Sequence[float]) -> list[float]:
    line = trend(Series(tuple(map(float, range(len(values)))), tuple(values)))
    flat = [v - line.slope * i for i, v in enumerate(values)]
    middle = median(flat)
    return [v - middle for v in flat]


def _amplitude(values: Sequence[float]) -> float:
    """Half the distance between the tenth and the ninetieth percentile."""
    ranked = sorted(values)
    return (ranked[int(0.9 * (len(ranked) - 1))] - ranked[int(0.1 * (len(ranked) - 1))]) / 2


def _period(values: Sequence[float]) -> int | None:
    """The lag of the first crest of the autocorrelation that follows a trough."""
    n = len(values)
    total = sum(v * v for v in values)
    if total <= 0:
        return None
    x = torch.tensor(values, dtype=torch.float64)
    acf = [float((x[k:] * x[: n - k]).sum()) / total * n / (n - k) for k in range(n * 2 // 5 + 1)]
    trough = next((k for k in range(1, len(acf)) if acf[k] < -0.25), None)
    if trough is None:
        return None
    crests = [k for k in range(trough + 1, len(acf) - 1) if acf[k] >= 0.4 and acf[k - 1] <= acf[k] >= acf[k + 1]]
    return crests[0] if crests else None


def together(a: Series, b: Series) -> float:
    """Pearson correlation of two curves at the steps that both have, block by block; NaN below MIN_POINTS."""
    both = dict(zip(b.steps, b.values, strict=True))
    pairs = [(s, v, both[s]) for s, v in zip(a.steps, a.values, strict=True) if s in both]
    if len(pairs) < MIN_POINTS:
        return math.nan
    steps, x, y = zip(*pairs, strict=True)
    matrix = torch.tensor([blocks(Series(steps, x)).values, blocks(Series(steps, y)).values], dtype=torch.float64)
    if bool((matrix.std(1) == 0).any()):
        return math.nan
    return float(torch.corrcoef(matrix)[0, 1])
