"""Runs over seeds: the mean of a figure with its interval, and paired differences.

A run is the independent unit: figures of one run (steps, problems, samples) are not independent of each other. With so
few runs as people can afford, intervals are Student's; they assume that a figure's spread over seeds is about normal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

LEVEL = 0.95
DOUBLINGS = 64  # of the bracket of a quantile, until it holds it
BISECTIONS = 80  # to the last bit of a float


@dataclass(frozen=True)
class Estimate:
    """Mean over `count` runs and the ends of its interval; a single run has an interval of NaN."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def is_above(self, x: float) -> bool:
        """Whether the whole interval lies above x."""
        return self.low > x

    def is_below(self, x: float) -> bool:
        """Whether the whole interval lies below x."""
        return self.high < x

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "count": self.count}


def estimate(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Mean of one figure a run, and Student's interval: mean +- t s / sqrt(n), s the sample's standard deviation.

    Values that are not finite are left out (a figure that a run does not have is NaN). No value: all NaN.

    >>> found = estimate([1.0, 2.0, 3.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """
    known = [x for x in values if math.isfinite(x)]
    if not known:
        return Estimate(math.nan, math.nan, math.nan, 0)
    if len(known) == 1:
        return Estimate(known[0], math.nan, math.nan, 1)
    half = quantile((1 + level) / 2, len(known) - 1) * stdev(known) / math.sqrt(len(known))
    mean = fmean(known)
    return Estimate(mean, mean - half, mean + half, len(known))


def difference(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> Estimate:
    """second minus first, paired by seed: what makes a seed hard for both cancels.

    Raises ValueError for different numbers of runs. A pair with a value that is not finite is left out.

    >>> difference([1.0, 5.0], [2.0, 6.0])
    Estimate(mean=1.0, low=1.0, high=1.0, count=2)
    """
    if len(first) != len(second):
        raise ValueError(f"difference: {len(first)} and {len(second)} runs; pair those of the same seeds in one order")
    return estimate([b - a for a, b in zip(first, second, strict=True)], level)


def cumulative(t: float, freedom: int) -> float:
    """P(T <= t) of Student's distribution with a whole number of degrees of freedom, from 1.

    With theta = atan(t / sqrt(n)) it is 1/2 + A/2; for odd n A = 2/pi (theta + sin theta (cos theta + 2/3 cos^3 theta +
    ... up to cos^(n-2))), for even n A = sin theta (1 + 1/2 cos^2 theta + 3/8 cos^4 theta + ... up to cos^(n-2)).
    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.

    >>> round(cumulative(1.0, 1), 12), round(cumulative(2**0.5, 2), 12)
    (0.75, 0.853553390593)
    """
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine, odd = math.sin(angle), math.cos(angle), freedom % 2
    term, total = (cosine, cosine if freedom > 1 else 0.0) if odd else (1.0, 1.0)
    for power in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine**2 * (power - 1) / power
        total += term
    area = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + area) / 2


def quantile(p: float, freedom: int) -> float:
    """The t with P(T <= t) = p, by bisection. Raises ValueError for p outside (.5, 1) or no degree of freedom.

    >>> [round(quantile(0.975, n), 3) for n in (1, 2, 4, 9, 30)]
    [12.706, 4.303, 2.776, 2.262, 2.042]
    """
    if not 0.5 < p < 1 or freedom < 1:
        raise ValueError(f"quantile: p is {p} with {freedom} degrees of freedom; it takes p in (.5, 1) and at least 1")
    low, high = 0.0, 1.0
    for _ in range(DOUBLINGS):
        if cumulative(high, freedom) >= p:
            break
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if cumulative(middle, freedom) < p else (low, middle)
    return high
