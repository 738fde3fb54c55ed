"""A chart as data: what it draws, its axes with units, its text alternative, and how it shrinks to a size.

The page's script draws three kinds: "lines" (over steps, or over samples for pass@k), "areas" (signed shares stacked
away from zero) and "scatter".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from isentrope.report.data import Curve

DIGITS = 5  # significant ones; a pixel is worth about three


@dataclass(frozen=True)
class Axis:
    """label with its unit in words. share: shown as percent. log: base-2 logarithm. low, high: fixed ends."""

    label: str
    share: bool = False
    log: bool = False
    low: float | None = None
    high: float | None = None


STEPS = Axis("optimizer step")


@dataclass(frozen=True)
class Series:
    """Points of one colour. run: index of the run that it belongs to. tone: 0 to 3, instead of the run's colour.

    dash: 0 solid, 1 dashed, 2 dotted. dots: mark every point. low, high: ends of a bar through each point.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    run: int
    tone: int | None = None
    dash: int = 0
    dots: bool = False
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"Series {self.name!r}: {len(self.x)} x and {len(self.y)} y; they must be equally many")


@dataclass(frozen=True)
class Mark:
    """A horizontal line at `y` that belongs to a run."""

    y: float
    label: str
    run: int


@dataclass(frozen=True)
class Chart:
    """id: unique in the page. about: a sentence for the reader. missing: what to switch on, where there is no data.

    scale: charts of the same name share a y axis that is symmetric about 0 and leaves out the furthest points.
    """

    id: str
    title: str
    about: str
    y: Axis
    series: tuple[Series, ...] = ()
    x: Axis = STEPS
    kind: str = "lines"
    marks: tuple[Mark, ...] = ()
    missing: str = ""
    notes: tuple[str, ...] = ()
    scale: str = ""

    def __post_init__(self) -> None:
        if not self.series and not self.missing:
            raise ValueError(f"Chart {self.id}: no series, and `missing` does not say what to switch on")

    @property
    def alternative(self) -> str:
        """What the chart shows, in words."""
        spoken = {"lines": _course, "areas": _course, "scatter": _cloud}[self.kind]
        head = f"{self.title}: {self.y.label} against {self.x.label}."
        return " ".join([head, *(spoken(series) for series in self.series[:12])])

    def thinned(self, budget: int) -> Chart:
        """The same with at most `budget` points a series (see `thin`); a scatter takes every n-th point."""
        if self.kind == "lines":
            return replace(self, series=tuple(_thin_line(series, budget) for series in self.series))
        return replace(self, series=tuple(_every(series, budget) for series in self.series))

    def to_dict(self) -> dict[str, Any]:
        """What the page's script reads; numbers with five significant digits."""
        return {
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "x": _axis(self.x),
            "y": _axis(self.y),
            "overSteps": self.x is STEPS,
            "scale": self.scale,
            "series": [_series(series) for series in self.series],
            "marks": [{"y": short(mark.y), "label": mark.label, "run": mark.run} for mark in self.marks],
        }


def short(x: float) -> float:
    """The number with five significant digits, whole where it is whole.

    >>> short(0.123456789), short(12.0), short(1234567.0)
    (0.12346, 12, 1234600)
    """
    rounded = float(f"{x:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def thin(curve: Curve, budget: int) -> Curve:
    """At most `budget` points that keep every peak: the lowest and the highest of each of budget / 2 equal parts."""
    if len(curve) <= budget:
        return curve
    parts = max(1, budget // 2)
    kept: list[int] = []
    for part in range(parts):
        inside = range(part * len(curve) // parts, (part + 1) * len(curve) // parts)
        ends = {min(inside, key=curve.values.__getitem__), max(inside, key=curve.values.__getitem__)}
        kept += sorted(ends)
    return Curve(tuple(curve.steps[i] for i in kept), tuple(curve.values[i] for i in kept))


def _thin_line(series: Series, budget: int) -> Series:
    if series.low or len(series.x) <= budget:
        return series
    found = thin(Curve(tuple(series.x), tuple(series.y)), budget)
    return replace(series, x=found.steps, y=found.values)


def _every(series: Series, budget: int) -> Series:
    stride = max(1, math.ceil(len(series.x) / budget))
    return replace(series, x=series.x[::stride], y=series.y[::stride])


def _axis(axis: Axis) -> dict[str, Any]:
    return {"label": axis.label, "share": axis.share, "log": axis.log, "low": axis.low, "high": axis.high}


def _series(series: Series) -> dict[str, Any]:
    found: dict[str, Any] = {"name": series.name, "run": series.run, "x": _shorts(series.x, exact=True)}
    found["y"] = _shorts(series.y)
    extras = {"tone": series.tone, "dash": series.dash, "dots": series.dots}
    found |= {name: value for name, value in extras.items() if value not in (None, 0, False) or name == "tone"}
    if series.low:
        found |= {"low": _shorts(series.low), "high": _shorts(series.high)}
    return found


def _shorts(values: Sequence[float], exact: bool = False) -> list[float]:
    """exact: steps stay whole however large."""
    return [int(x) if exact and float(x).is_integer() else short(x) for x in values]


def _course(series: Series) -> str:
    if not len(series.y):
        return f"{series.name}: no points."
    return (
        f"{series.name}: {series.y[0]:.3g} at {series.x[0]:g}, {series.y[-1]:.3g} at {series.x[-1]:g};"
        f" lowest {min(series.y):.3g}, highest {max(series.y):.3g}."
    )


def _cloud(series: Series) -> str:
    if not len(series.y):
        return f"{series.name}: no points."
    return f"{series.name}: {len(series.y)} points, from {min(series.y):.3g} to {max(series.y):.3g}."
