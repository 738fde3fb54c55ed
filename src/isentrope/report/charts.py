"""Which charts a report has, and what each takes from the runs. A chart without data says what to switch on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from isentrope.curves import correlation
from isentrope.diagnostics import QUADRANTS
from isentrope.report.also import EXTRAS, SHARE
from isentrope.report.chart import Axis, Chart, Mark, Series
from isentrope.report.data import Curve, Evaluation, RunData
from isentrope.report.stages import speed

Runs = Sequence[RunData]

# How a reader gets the curves that a run does not have.
LIVE = "switch on live diagnostics: output.diagnostics_every in the recipe, diagnostics_interval of the trainer"
EVALUATE = "leave evaluation.problems above 0 in the recipe"
SEVERAL_UPDATES = "it needs several updates per rollout batch: trainer.minibatches or trainer.passes above 1"

NATS = Axis("nats")
SOLVED = Axis("share of problems solved", share=True, low=0.0, high=1.0)


def reward(runs: Runs) -> list[Chart]:
    """Mean reward of the rollouts, overall and by task."""
    missing = "no run logged a reward; pass a reward function to the trainer"
    overall = Chart(
        "reward",
        "Reward of the rollouts",
        "Mean over the completions of a step. Training reward: it is not what the model can do on new problems.",
        Axis("reward"),
        tuple(_overlay(runs, "reward")),
        missing=missing,
    )
    return [overall, *_by_task(runs, "reward", ("reward/",), "Reward", Axis("reward"))]


def held_out(runs: Runs) -> list[Chart]:
    """pass@1 and pass@k of every task over training, and against k before and after it."""
    tasks = sorted({one.task for run in runs for one in run.evaluations})
    if not tasks:
        about = "Share of held-out problems solved in one sample, and within k."
        return [Chart("pass", "Held-out pass@1 and pass@k", about, SOLVED, missing=f"not evaluated: {EVALUATE}")]
    return [chart for task in tasks for chart in (_pass_over_steps(runs, task), _pass_over_k(runs, task))]


def _pass_over_steps(runs: Runs, task: str) -> Chart:
    series = [one for i, run in enumerate(runs) for one in _pass_series(i, run.name, _of_task(run, task))]
    return Chart(
        f"pass-{slug(task)}",
        f"Held-out pass@1 and pass@k: {task}",
        "Solid: solved by one sample, with its 95% interval over problems. Dashed: solved within k samples.",
        SOLVED,
        tuple(series),
        missing=EVALUATE,
    )


def _of_task(run: RunData, task: str) -> list[Evaluation]:
    return [one for one in run.evaluations if one.task == task]


def _pass_series(index: int, name: str, evaluations: list[Evaluation]) -> Iterable[Series]:
    for k in sorted({k for one in evaluations for k in (1, max(one.pass_at, default=1))}):
        found = [one for one in evaluations if k in one.pass_at]
        bars = [one.interval for one in found if k == 1 and one.interval]
        has_bars = len(bars) == len(found)
        yield Series(
            f"{name}, pass@{k}",
            [one.step for one in found],
            [one.pass_at[k] for one in found],
            index,
            dash=int(k > 1),
            dots=True,
            low=[low for low, _ in bars] if has_bars else (),
            high=[high for _, high in bars] if has_bars else (),
        )


def _pass_over_k(runs: Runs, task: str) -> Chart:
    series = []
    for i, run in enumerate(runs):
        found = _of_task(run, task)
        for one in [found[0], found[-1]] if len(found) > 1 else found:
            when = "before" if one.step == 0 else f"after step {one.step:g}"
            dash = 2 if one is found[0] and len(found) > 1 else 0
            series.append(
                Series(f"{run.name}, {when}", list(one.pass_at), list(one.pass_at.values()), i, dash=dash, dots=True)
            )
    return Chart(
        f"passk-{slug(task)}",
        f"pass@k against k: {task}",
        "Dotted: before training. Where a run gains at k = 1 and loses at large k, it bought certainty with variety.",
        SOLVED,
        tuple(series),
        x=Axis("k, samples a problem", log=True),
        missing=EVALUATE,
    )


ENTROPY = ("entropy/current_exact", "entropy", "diagnostics/entropy")


def entropy(runs: Runs) -> list[Chart]:
    """Entropy of the policy, overall with start and targets, and by task."""
    whole = Chart(
        "policy-entropy",
        "Entropy of the policy",
        f"{_kinds(runs)}, token mean over what the policy wrote, at the temperature of the rollouts. Dotted: where"
        " a run started. Dashed: what its controller aims at.",
        replace(NATS, low=0.0),
        tuple(_overlay(runs, *ENTROPY)),
        marks=tuple(_levels(runs)),
        missing="no run logged an entropy; TRL and verl log one by default",
    )
    prefixes = ("entropy/current_exact/", "diagnostics/entropy/", "entropy/")
    return [whole, *_by_task(runs, "entropy", prefixes, "Entropy", replace(NATS, low=0.0))]


def _kinds(runs: Runs) -> str:
    kinds = {run.entropy_kind for run in runs if len(run.curve(*ENTROPY))}
    if kinds == {"exact"}:
        return "Exact softmax entropy"
    if kinds == {"estimate"}:
        return "An estimate of the entropy (mean of -logp)"
    named = {"exact": "exact", "estimate": "an estimate (mean of -logp)", "": "of unknown kind"}
    return "Entropy, " + "; ".join(f"{run.name}: {named.get(run.entropy_kind, run.entropy_kind)}" for run in runs)


def _levels(runs: Runs) -> Iterable[Mark]:
    for i, run in enumerate(runs):
        curve = run.curve(*ENTROPY)
        if len(curve):
            yield Mark(curve.values[0], "start", i)
        targets = {curve.values[-1] for name, curve in run.under("controller/").items() if name.endswith(".target")}
        yield from (Mark(level, "target", i) for level in sorted(targets))


NOT_TASKS = ("current_exact", "old_exact")  # names that stand where a task's would


def _by_task(runs: Runs, key: str, prefixes: Sequence[str], title: str, axis: Axis) -> list[Chart]:
    found = [
        {name: curve for name, curve in run.under(*prefixes).items() if name.partition("/")[0] not in NOT_TASKS}
        for run in runs
    ]
    charts = []
    for task in sorted({name for curves in found for name in curves}):
        own = {i: curves[task] for i, curves in enumerate(found) if task in curves}
        series = [_line(runs[i].name, curve, i) for i, curve in own.items()]
        about = f"Of task {task} alone. Dotted: where a run started."
        marks = tuple(Mark(curve.values[0], "start", i) for i, curve in own.items())
        charts.append(Chart(f"{key}-{slug(task)}", f"{title}: {task}", about, axis, tuple(series), marks=marks))
    return charts


def prediction(runs: Runs) -> list[Chart]:
    """Predicted against measured entropy change, with their correlation."""
    series, notes = [], []
    for i, run in enumerate(runs):
        pairs = paired(run.curve("diagnostics/predicted_change"), run.curve("diagnostics/measured_change"))
        if pairs:
            r = correlation([x for x, _ in pairs], [y for _, y in pairs])
            notes.append(
                f"{run.name}: correlation {r:.2f} over {len(pairs)} steps" if r == r else f"{run.name}: {_FEW}"
            )
            series.append(Series(run.name, [x for x, _ in pairs], [y for _, y in pairs], i))
    return [
        Chart(
            "prediction",
            "Predicted against measured entropy change",
            "Each point is a step: what its batch's earlier updates should have done to the entropy by first-order"
            " theory, and what they did. An adaptive optimizer rescales the step, so sign and order count, not slope.",
            Axis("measured change, nats"),
            tuple(series),
            x=Axis("predicted change, nats"),
            kind="scatter",
            missing=f"not measured: {LIVE}; {SEVERAL_UPDATES}",
            notes=tuple(notes),
        )
    ]


_FEW = "too few points, or none that differ, for a correlation"


def paired(x: Curve, y: Curve) -> list[tuple[float, float]]:
    """Values of two curves at the steps that both have, except where both are exactly 0 (nothing had happened yet)."""
    found = dict(zip(y.steps, y.values, strict=True))
    pairs = [(a, found[step]) for step, a in zip(x.steps, x.values, strict=True) if step in found]
    return [pair for pair in pairs if pair != (0.0, 0.0)]


def quadrants(runs: Runs) -> list[Chart]:
    """Who moves the entropy: signed shares of the predicted change, one chart a run."""
    about = (
        "Share of the predicted change by quadrant: advantage positive (PA) or negative (NA), probability high (HP) or"
        " low (LP). Above zero raises entropy, below lowers it."
    )
    axis = Axis("signed share of the predicted entropy change", share=True, low=-1.0, high=1.0)
    charts = []
    for i, run in enumerate(runs):
        live, dumped = run.under("diagnostics/change_share/"), run.under("change_share/")
        curves = live if set(QUADRANTS) <= set(live) else dumped
        if set(QUADRANTS) <= set(curves):
            series = tuple(_aligned(i, [curves[name] for name in QUADRANTS]))
            notes = () if curves is live else (f"measured on the dumped tokens of {len(curves[QUADRANTS[0]])} steps",)
            title = f"Who moves the entropy: {run.name}"
            charts.append(Chart(f"quadrants-{i}", title, about, axis, series, kind="areas", notes=notes))
    if charts:
        return charts
    missing = f"not measured: {LIVE}, or dump tokens with --tokens"
    return [Chart("quadrants", "Who moves the entropy", about, axis, kind="areas", missing=missing)]


def _aligned(index: int, curves: Sequence[Curve]) -> Iterable[Series]:
    """The quadrants at the steps that all of them have."""
    tables = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    places = steps if len(steps) > 1 else [step + half for step in steps for half in (-0.5, 0.5)]  # a bar for one step
    for tone, (name, table) in enumerate(zip(QUADRANTS, tables, strict=True)):
        yield Series(
            name, places, [table[steps[i * len(steps) // len(places)]] for i in range(len(places))], index, tone=tone
        )


CLIPS = {
    "low": ("clip/low", "clip_low", "diagnostics/clipped/low", "clip_ratio/low_mean"),
    "high": ("clip/high", "clip_high", "diagnostics/clipped/high", "clip_ratio/high_mean"),
}


def clipping(runs: Runs) -> list[Chart]:
    """Share of tokens beyond each bound of the surrogate."""
    sides = {
        "low": "Tokens whose ratio fell below the lower bound with a negative advantage: less likely already than the"
        " rule wants them.",
        "high": "Tokens whose ratio rose above the upper bound with a positive advantage: more likely already than the"
        " rule wants them.",
    }
    missing = f"no run has a surrogate with bounds, or none logged what they clip; {SEVERAL_UPDATES}"
    return [
        Chart(
            f"clip-{side}",
            f"Clipped at the {'lower' if side == 'low' else 'upper'} bound",
            about,
            SHARE,
            tuple(_overlay(runs, *CLIPS[side])),
            missing=missing,
        )
        for side, about in sides.items()
    ]


def controllers(runs: Runs) -> list[Chart]:
    """The trace of every controlled number."""
    names = sorted({name.rpartition(".")[0] for run in runs for name in run.under("controller/") if "." in name})
    charts = [_controller(runs, path) for path in names]
    if charts:
        return charts
    missing = (
        "no run has a controller; the presets repo_d, repo_r, adapo and adaptive_entropy have one, and any number of a"
        " rule can be one"
    )
    return [
        Chart("controllers", "Controllers", "Every number that a controller moves.", Axis("value"), missing=missing)
    ]


def _controller(runs: Runs, path: str) -> Chart:
    series = []
    for i, run in enumerate(runs):
        fields = {
            name.rpartition(".")[2]: curve
            for name, curve in run.under("controller/").items()
            if name.rpartition(".")[0] == path
        }
        shown = ["value"] if "value" in fields else sorted(set(fields) - {"target"})
        series += [
            _line(run.name if field == "value" else f"{run.name}, {field}", fields[field], i, dash=number % 3)
            for number, field in enumerate(shown)
        ]
    about = "The number in force at each step, as the controller set it."
    missing = "its value was not logged"
    return Chart(
        f"controller-{slug(path)}", f"Controller: {path}", about, Axis("value"), tuple(series), missing=missing
    )


def extras(runs: Runs) -> list[Chart]:
    """What else the runs logged; each only where a run has it."""
    charts = []
    for id_, title, about, axis, names in EXTRAS:
        series = tuple(_overlay(runs, *names))
        if series:
            charts.append(Chart(id_, title, about, axis, series))
    return charts


SECTIONS: tuple[tuple[str, str, str, tuple[Callable[[Runs], list[Chart]], ...]], ...] = (
    (
        "learning",
        "Learning",
        "What the policy gets better at, in training and on problems it has not seen.",
        (reward, held_out, speed),
    ),
    ("entropy", "Entropy", "How much choice the policy keeps.", (entropy,)),
    (
        "movers",
        "Who moves it",
        "The update's effect on entropy, predicted token by token, and what happened.",
        (prediction, quadrants),
    ),
    (
        "rules",
        "Rules and controllers",
        "What clipping took away, and what the controllers did about it.",
        (controllers, clipping),
    ),
    ("more", "Also logged", "Curves that help to read the others.", (extras,)),
)


def _overlay(runs: Runs, *names: str) -> Iterable[Series]:
    """One line a run, of the first of the names that it has."""
    for i, run in enumerate(runs):
        curve = run.curve(*names)
        if len(curve):
            yield _line(run.name, curve, i)


def _line(name: str, curve: Curve, run: int, dash: int = 0) -> Series:
    return Series(name, curve.steps, curve.values, run, dash=dash, dots=len(curve) == 1)


def slug(text: str) -> str:
    """Text as part of an id, different for different texts.

    >>> slug("surrogate.high"), slug("a b") == slug("a-b")
    ('surrogate-high-4de0', False)
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]
    return f"{plain}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:4]}"
