"""The pictures of the study, drawn from its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from isentrope.report.chart import Axis, Chart, Series
from isentrope.study.experiments import OURS, PUBLISHED
from isentrope.study.runs import Results
from isentrope.study.verdict import Study

NATS = Axis("nats", low=0.0)
SOLVED = Axis("share of held-out problems", share=True)
SHOWN = ("grpo", "dapo", "ce_gppo", "gppo", "gepo", "repo_d", "repo_r", "adapo", "neutral drift")


def curves(id_: str, title: str, results: Results, names: Sequence[str], curve: str = "exact/entropy") -> Chart:
    """A curve of some conditions: means over seeds with their intervals as bands."""
    series = []
    for number, name in enumerate(names):
        found = results[name].curves[curve]
        series.append(Series(name, found["steps"], found["mean"], number, low=found["low"], high=found["high"]))
    return Chart(id_, title, "Means over seeds, 95% intervals.", NATS, tuple(series))


def scatter(
    id_: str, title: str, results: Results, names: Sequence[str], x: tuple[str, Axis], y: tuple[str, Axis]
) -> Chart:
    """Conditions as points: means of two figures, with the second one's interval."""
    series = []
    for number, name in enumerate(names):
        across, up = results[name].mean(x[0]), results[name].mean(y[0])
        series.append(Series(name, [across.mean], [up.mean], number, low=[up.low], high=[up.high]))
    return Chart(id_, title, "Means over seeds, 95% intervals.", y[1], tuple(series), x=x[1], kind="scatter")


def _frontier(study: Study, world: str, label: str, figure: str) -> Chart:
    k = "1" if figure == "pass_at_1" else "16"
    names = [*PUBLISHED, *OURS]
    kept = ("entropy_end", Axis("entropy at the end, nats"))
    title = f"Held-out pass@{k} against entropy kept, {label}"
    return scatter(f"frontier-{world}-{k}", title, study[world], names, kept, (figure, SOLVED))


def _keep(study: Study, knob: str) -> Chart:
    names = [name for name in study["keep"] if name.startswith(knob)]
    return curves(knob.replace("_", "-"), f"CE-GPPO: entropy by {knob}", study["keep"], names)


def _stages(study: Study) -> Chart:
    left = ("stage2/entropy_left", Axis("entropy left by the first task, nats"))
    mean = ("stage2/mean_reward", Axis("mean reward over the second task"))
    title = "Learning the second task against entropy left by the first"
    return scatter("stages", title, study["stages"], list(study["stages"]), left, mean)


def _accuracy(study: Study) -> Chart:
    area = ("entropy_area", Axis("mean entropy over the run, nats"))
    title = "Held-out pass@1 against mean entropy, bandits"
    return scatter("accuracy", title, study["objectives"], PUBLISHED, area, ("pass_at_1", SOLVED))


PICTURES: Mapping[str, Callable[[Study], Chart]] = {
    "entropy": lambda s: curves("entropy", "Entropy, bandits", s["objectives"], SHOWN),
    "entropy-chains": lambda s: curves("entropy-chains", "Entropy, chains", s["chains"], SHOWN),
    "keep-low": lambda s: _keep(s, "keep_low"),
    "keep-high": lambda s: _keep(s, "keep_high"),
    "target": lambda s: curves("target", "Entropy with a target of 1 nat", s["target"], list(s["target"])),
    "accuracy": _accuracy,
    "stages": _stages,
    "bonus": lambda s: curves("bonus", "Entropy with a bonus, fixed and controlled", s["bonus"], list(s["bonus"])),
    "frontier-bandits-1": lambda s: _frontier(s, "objectives", "bandits", "pass_at_1"),
    "frontier-bandits-16": lambda s: _frontier(s, "objectives", "bandits", "pass_at_k"),
    "frontier-chains-1": lambda s: _frontier(s, "chains", "chains", "pass_at_1"),
    "frontier-chains-16": lambda s: _frontier(s, "chains", "chains", "pass_at_k"),
}
