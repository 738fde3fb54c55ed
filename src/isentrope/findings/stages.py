"""Runs of several stages: what one task leaves off, the next does not go on with."""

from __future__ import annotations

from itertools import pairwise

from isentrope.run import Run, Series


def begins(run: Run) -> list[float]:
    """The first steps of a run's stages after the first; none where it has no stages."""
    series = run.get("stage")
    if series is None:
        return []
    pairs = list(zip(series.steps, series.values, strict=True))
    return [step for (_, before), (step, now) in pairwise(pairs) if now != before]


def current(run: Run, series: Series | None) -> Series | None:
    """The part of a curve that belongs to the last stage."""
    found = begins(run)
    return series.since(found[-1]) if series is not None and found else series


def is_at_boundary(run: Run, before: float, step: float) -> bool:
    """Whether a stage begins after step `before`, at `step` at the latest."""
    return any(before < begin <= step for begin in begins(run))
