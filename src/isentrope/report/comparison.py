"""The page of a comparison: figures with intervals, curves that are means over seeds, accuracy against entropy kept."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

from isentrope import seeds
from isentrope.comparison import ENTROPY, FIGURES, KL, Comparison, Measured, measured, run_folder
from isentrope.record import write_text
from isentrope.report import page
from isentrope.report.chart import Axis, Chart, Series
from isentrope.report.data import Curve, RunData
from isentrope.report.overview import Row, number
from isentrope.seeds import Estimate

POINTS = 60  # of a mean curve; each is the mean over its part of the run

# id, title, about, axis, names of the curve in order of preference
CURVES: tuple[tuple[str, str, str, Axis, tuple[str, ...]], ...] = (
    ("entropy", "Entropy of the policy", "How much choice it keeps.", Axis("nats", low=0.0), ENTROPY),
    ("reward", "Reward", "Of the rollouts.", Axis("reward"), ("reward",)),
    ("kl", "KL to the start", "How far it went from the initial policy.", Axis("nats a token", low=0.0), KL),
    ("gradient", "Gradient norm", "Before clipping.", Axis("norm", low=0.0), ("grad_norm",)),
    ("clip-low", "Clipped at the lower bound", "", Axis("share of tokens", share=True, low=0.0), ("clip/low",)),
    ("clip-high", "Clipped at the upper bound", "", Axis("share of tokens", share=True, low=0.0), ("clip/high",)),
)


def write(out: Path, found: Comparison, path: Path) -> int:
    """Write the page on the runs in `out`; its size in bytes."""
    runs = {name: [measured(run_folder(out, name, seed)) for seed in found.seeds] for name in found.runs}
    made = build(found, runs)
    write_text(path, made)
    return len(made.encode())


def build(found: Comparison, runs: dict[str, list[Measured]]) -> str:
    """The page as text."""
    objectives = [RunData(name=name, path=Path(name)) for name in found.runs]
    curves = [chart for one in CURVES if (chart := _curves(runs, *one)) is not None]
    frontiers = [chart for chart in (_frontier(found, "pass_at_1"), _frontier(found, "pass_at_k")) if chart.series]
    count = f"{len(found.seeds)} seeds; \u00b1 is half a 95% interval over them"
    sections = [
        page.section(
            "overview",
            "Overview",
            f"{count}. Differences are to {objectives[0].name}, paired by seed.",
            page.table("Means over seeds", objectives, _means(found), mark=False),
            page.table(f"Difference to {objectives[0].name}", objectives, _differences(found)),
        ),
        page.section(
            "frontier",
            "Accuracy against entropy kept",
            "Each point is a run: held-out problems solved, against the entropy at its end.",
            page.grid(frontiers),
        ),
        page.section("curves", "Over training", "Means over seeds; bars are 95% intervals.", page.grid(curves)),
    ]
    charts = [chart.to_dict() for chart in (*frontiers, *curves)]
    data = {"runs": [run.name for run in objectives], "charts": charts, "tokens": {}}
    created = f"written {time.strftime('%Y-%m-%d %H:%M %Z')}"
    return page.render(f"Comparison of {', '.join(found.runs)}", created, objectives, sections, data)


def _means(found: Comparison) -> list[Row]:
    return [
        Row(FIGURES[figure].label, tuple(_text(found.mean(name, figure)) for name in found.runs))
        for figure in found.known()
    ]


def _differences(found: Comparison) -> list[Row]:
    return [
        Row(FIGURES[figure].label, tuple(_text(found.difference(name, figure), sign=True) for name in found.runs))
        for figure in found.known()
    ]


def _text(x: Estimate, sign: bool = False) -> str:
    if not x.count:
        return "\u2013"
    plus = "+" if sign and x.mean > 0 else ""
    return f"{plus}{number(x.mean)}" + ("" if math.isnan(x.half) else f" \u00b1 {number(x.half)}")


def _frontier(found: Comparison, figure: str) -> Chart:
    series = tuple(
        Series(name, found.values(name, "entropy_end"), found.values(name, figure), i, dots=True)
        for i, name in enumerate(found.runs)
        if all(map(math.isfinite, found.values(name, figure)))
    )
    title = f"{FIGURES[figure].label} against entropy kept"
    axis = Axis("share of problems solved", share=True)
    return Chart(
        f"frontier-{figure.replace('_', '-')}",
        title[0].upper() + title[1:],
        "Up and to the right is better.",
        axis,
        series,
        x=Axis("entropy at the end, nats"),
        kind="scatter",
        missing="leave evaluation.problems above 0 in the recipe",
    )


def _curves(
    runs: dict[str, list[Measured]], id_: str, title: str, about: str, axis: Axis, names: tuple[str, ...]
) -> Chart | None:
    """One mean curve an objective; None where no run logged it."""
    series = [
        mean_series(name, [run.curve(*names) for run in measured_runs], i)
        for i, (name, measured_runs) in enumerate(runs.items())
        if all(len(run.curve(*names)) for run in measured_runs)
    ]
    return Chart(f"mean-{id_}", title, about, axis, tuple(series)) if series else None


def mean_series(name: str, curves: Sequence[Curve], index: int, points: int = POINTS) -> Series:
    """The mean over runs at `points` places at most, with intervals; the runs log at the same steps.

    Steps that not all runs have are left out.
    """
    shared = sorted(set.intersection(*(set(curve.steps) for curve in curves)))
    tables = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
    parts = [shared[i * len(shared) // points : (i + 1) * len(shared) // points] for i in range(points)]
    parts = [part for part in parts if part] if len(shared) > points else [[step] for step in shared]
    found = [seeds.estimate([_average(table, part) for table in tables]) for part in parts]
    has_bars = len(curves) > 1
    return Series(
        name,
        [sum(part) / len(part) for part in parts],
        [one.mean for one in found],
        index,
        low=[one.low for one in found] if has_bars else (),
        high=[one.high for one in found] if has_bars else (),
    )


def _average(table: dict[float, float], steps: Sequence[float]) -> float:
    return math.fsum(table[step] for step in steps) / len(steps)
