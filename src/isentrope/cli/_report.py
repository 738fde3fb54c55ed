"""What a run shows at its end: the table before and after, the curves, and what to do next."""

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from isentrope import record
from isentrope.cli import _stages
from isentrope.cli._charts import line_chart, smooth
from isentrope.cli._display import KEYS, duration
from isentrope.cli._output import program
from isentrope.recipe import Recipe
from isentrope.record import RunFolder

SMOOTHING = 5  # rollout batches or updates that a point of the terminal's reward curve averages


def brief(report: Mapping[str, Any]) -> str:
    """The main numbers of an evaluation of one task on one line."""
    numbers = ", ".join(f"{name} {text}" for name, text in _rows(report))
    return f"{report['task']}, {report['problems']} held-out problems: {numbers}"


def _rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    most = max(map(int, report["pass_at"]))
    return [
        ("pass@1", f"{report['pass_at']['1']:.3f}"),
        *([(f"pass@{most}", f"{report['pass_at'][str(most)]:.3f}")] if most > 1 else []),
        (f"distinct answers of {report['distinct_of']}", f"{report['distinct_answers']:.2f}"),
        (f"distinct right answers of {report['distinct_of']}", f"{report['distinct_right']:.2f}"),
        # a validation of verl's measures none
        *([] if math.isnan(report["entropy"]) else [("entropy, nats", f"{report['entropy']:.3f}")]),
    ]


def summary(folder: RunFolder, recipe: Recipe, seconds: float) -> dict[str, Any]:
    """What summary.json holds.

    run: the folder. steps, seed. seconds: of this process, evaluations included. interrupted: False. entropy, reward:
    first and last value logged, in nats and in the reward's unit, null where none was. before, after: the
    evaluations, one a task, [] if left out. stages, where the recipe lists some: of each but the last its tasks, its
    last step, and the evaluations there.
    """
    lines = _lines(folder) if folder.metrics.is_file() else []
    return {
        "run": str(folder.path),
        "steps": lines[-1]["step"] if lines else 0,
        "seed": recipe.seed,
        "seconds": round(seconds, 1),
        "interrupted": False,
        "entropy": _ends(lines, "entropy"),
        "reward": _ends(lines, "reward"),
        **{when: _evaluation(folder, when) for when in ("before", "after")},
        **({"stages": _stages.summary(folder, recipe)} if recipe.stage else {}),
    }


def _lines(folder: RunFolder) -> list[dict[str, Any]]:
    """The metrics, of each line what is shown here: a long run logs a hundred other numbers."""
    wanted = {"step", *KEYS["reward"], *KEYS["entropy"]}
    return [{key: x for key, x in line.items() if key in wanted} for line in record.iter_metrics(folder.metrics)]


def _ends(lines: list[dict[str, Any]], name: str) -> list[float] | None:
    _, values = curve(lines, name)
    return [values[0], values[-1]] if values else None


def curve(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of what the display calls `name`, under the first key that was logged."""
    found = (record.series(lines, key) for key in KEYS[name])
    return next(((steps, values) for steps, values in found if values), ([], []))


def _evaluation(folder: RunFolder, when: str) -> list[dict[str, Any]]:
    path = folder.evaluation(when)
    reports: list[dict[str, Any]] = record.read_json(path) if path.is_file() else []
    return reports


def show(console: Console, found: Mapping[str, Any], folder: RunFolder) -> None:
    """Print curves, table, and the way on."""
    lines = _lines(folder) if console.encoding.startswith("utf") else []
    for name, title in (("reward", "reward of the rollouts"), ("entropy", "entropy of the policy, nats")):
        steps, values = curve(lines, name)
        if not values:
            continue
        chart = line_chart(title, steps, smooth(values, SMOOTHING) if name == "reward" else values)
        console.print(chart, markup=False, highlight=False, soft_wrap=True)
    for number, before in enumerate(found["before"]):
        title = f"{before['task']}: {before['problems']} held-out problems, {before['samples']} samples each"
        console.print(title, markup=False, highlight=False, soft_wrap=True)
        console.print(table({when: reports[number] for when, reports in _evaluations(found).items()}))
    console.print(_close(found), markup=False, highlight=False, soft_wrap=True)


def _evaluations(found: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The evaluations of a summary, one a task, by when they were made."""
    between = {f"stage {n}": stage["evaluation"] for n, stage in enumerate(found.get("stages", ()), start=1)}
    return {"before": found["before"], **{n: e for n, e in between.items() if e}, "after": found["after"]}


def table(reports: Mapping[str, Mapping[str, Any]]) -> Table:
    """Evaluations of one task side by side, by when they were made."""
    made = Table("", *(Column(name, justify="right") for name in reports))
    for rows in zip(*map(_rows, reports.values()), strict=True):
        made.add_row(rows[0][0], *(text for _, text in rows))
    return made


def _close(found: Mapping[str, Any]) -> str:
    start, end = found["entropy"] or (math.nan, math.nan)
    return "\n".join(
        [
            f"entropy in training {start:.3f} -> {end:.3f} nats over {found['steps']} updates;"
            f" {duration(found['seconds'])} in all",
            f"run folder: {found['run']} (metrics.jsonl, curves.png, checkpoints)",
            f"a page on it: {program()} report {found['run']} -o report.html",
            f"the same with GRPO: {program()} train {found['run']}/recipe.toml --objective grpo",
        ]
    )


def draw(folder: RunFolder) -> None:
    """Write curves.png: reward and entropy over the steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = _lines(folder)
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for axis, name, label in zip(axes, ("reward", "entropy"), ("reward of the rollouts", "entropy, nats"), strict=True):
        steps, values = curve(lines, name)
        axis.plot(steps, values, linewidth=1.2)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("optimizer step")
    with record.replacing(folder.curves) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
