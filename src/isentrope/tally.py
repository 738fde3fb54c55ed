"""Tallies: sums and counts by name, so that a mean over all tokens is one number however the tokens were split.

A tally of one part of the data plus that of another is the tally of both; means, shares, covariances and correlations
are read off at the end. Everything is float64: a long run adds up 1e9 tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tally:
    """Named sums and counts, each a vector of bins ([K], K = 1 without bins).

    sums[name] / counts[name] is the mean of `name` in each bin. `+` merges; shorter vectors are filled up with empty
    bins.
    """

    sums: Mapping[str, Tensor] = field(default_factory=dict)
    counts: Mapping[str, Tensor] = field(default_factory=dict)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(_merge(self.sums, other.sums), _merge(self.counts, other.counts))

    def __contains__(self, name: str) -> bool:
        return name in self.sums

    def mean(self, name: str, index: int = 0) -> float:
        """The mean of a name in one bin; NaN for an empty one."""
        return float(self.means(name)[index])

    def means(self, name: str) -> Tensor:
        """The mean of a name in every bin, [K]; NaN in empty ones."""
        return self.sums[name] / self.counts[name]

    def total(self, name: str) -> float:
        """The sum of a name over all bins."""
        return float(self.sums[name].sum())

    def covariance(self, x: str, y: str) -> float:
        """Population covariance of two quantities whose product was tallied as "x*y"."""
        product = f"{x}*{y}" if f"{x}*{y}" in self else f"{y}*{x}"
        return self.mean(product) - self.mean(x) * self.mean(y)

    def correlation(self, x: str, y: str) -> float:
        """Pearson correlation of two quantities, from "x*y", "x*x" and "y*y"; NaN where one is constant."""
        spread = self.covariance(x, x) * self.covariance(y, y)
        return self.covariance(x, y) / spread**0.5 if spread > 0 else float("nan")

    def state(self) -> dict[str, Any]:
        """Plain lists, for JSON or a checkpoint."""
        return {name: [self.sums[name].tolist(), self.counts[name].tolist()] for name in self.sums}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Tally":
        """The inverse of `state`."""
        vectors = {n: [torch.tensor(x, dtype=torch.float64) for x in pair] for n, pair in state.items()}
        return cls({n: s for n, (s, _) in vectors.items()}, {n: c for n, (_, c) in vectors.items()})


def _merge(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, Tensor]:
    merged = dict(a)
    for name, vector in b.items():
        merged[name] = _longer(merged[name], vector) if name in merged else vector
    return merged


def _longer(a: Tensor, b: Tensor) -> Tensor:
    if len(a) < len(b):
        a, b = b, a
    return a if not len(b) else torch.cat([a[: len(b)] + b, a[len(b) :]])


def tally(values: Mapping[str, Tensor], index: Tensor | None = None, num_bins: int = 1) -> Tally:
    """Tally of values [N], in one bin or in the bins that `index` [N] names; those not finite are left out.

    >>> t = tally({"x": torch.tensor([1.0, 3.0, float("nan")])}, torch.tensor([0, 1, 1]), num_bins=3)
    >>> t.means("x").tolist(), (t + t).counts["x"].tolist()
    ([1.0, 3.0, nan], [2.0, 2.0, 0.0])
    """
    sums, counts = {}, {}
    for name, x in values.items():
        usable = torch.isfinite(x)
        holes = not bool(usable.all())
        clean = torch.where(usable, x, 0) if holes else x
        if index is None:
            sums[name] = clean.sum(dtype=torch.float64).reshape(1)
            counts[name] = usable.sum().double().reshape(1)
        else:
            sums[name] = torch.bincount(index, clean.double(), minlength=num_bins)
            counts[name] = torch.bincount(index[usable] if holes else index, minlength=num_bins).double()
    return Tally(sums, counts)


def merge(tallies: Iterable[Tally]) -> Tally:
    """The tally of all parts."""
    whole = Tally()
    for part in tallies:
        whole = whole + part
    return whole
