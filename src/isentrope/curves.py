"""Numbers of series: how two go together, and the area under one."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson correlation over the pairs in which both are finite; NaN for fewer than 3 or a constant series."""
    finite = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    pairs = torch.tensor(finite, dtype=torch.float64)
    if len(pairs) < 3 or (pairs.std(0) == 0).any():
        return math.nan
    return float(torch.corrcoef(pairs.T)[0, 1])


def cumulative_entropy(entropies: Sequence[float], steps: Sequence[float]) -> float:
    """Area under the entropy curve, in nats times steps, by trapezoids; points that are not finite are left out."""
    points = [(s, h) for s, h in zip(steps, entropies, strict=True) if math.isfinite(h)]
    return sum((b - a) * (x + y) / 2 for (a, x), (b, y) in pairwise(points))
