"""Runs of the study: a condition trained over seeds, its figures and curves, and where they are kept.

A **condition** is an objective on a world with some keys of the recipe changed. Every run of seed s has the problems,
initial policies and random numbers of that seed, the same for every condition: differences are paired. An
**experiment** is a set of conditions; its results lie in one JSON file, and `Lab.experiment` trains only what is not
there.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from isentrope import record, seeds, spec
from isentrope.curves import correlation, cumulative_entropy
from isentrope.engines.tabular import TabularTrainer
from isentrope.engines.tabular_evaluation import evaluate
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.recipe import Recipe, load
from isentrope.seeds import Estimate

EVERY = 8  # steps between two points of a curve
LEVEL = 0.4  # of the expected reward, at which entropies are compared: all that learn pass it
DIGITS = 6  # significant ones of what is kept
CURVES = ("exact/entropy", "exact/reward", "exact/kl_start")
KEPT = ("exact/entropy",)  # of the curves, those that the page shows

Figures = dict[str, float]


@dataclass(frozen=True)
class Condition:
    """objective on the recipe `world`, with dotted keys of it changed."""

    objective: Objective
    world: str = "tabular"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def recipe(self, seed: int, steps: int) -> Recipe:
        """The recipe of one run."""
        fixed = {"seed": seed, "tabular.prior": seed, "trainer.steps": steps, "output.diagnostics_every": 0}
        return load(self.world, overrides=fixed | dict(self.changes))

    @property
    def mark(self) -> str:
        """What it depends on, in short: a result with another mark is of another condition."""
        held = [spec.to_dict(self.objective), self.world, dict(self.changes)]
        return hashlib.sha256(json.dumps(held, sort_keys=True, default=str).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Result:
    """figures: by name the values of all seeds, in their order. curves: by name steps, means, and ends of intervals."""

    figures: Mapping[str, Sequence[float]]
    curves: Mapping[str, Mapping[str, Sequence[float]]]

    def mean(self, figure: str) -> Estimate:
        """Over seeds."""
        return seeds.estimate(self.figures[figure])


Results = Mapping[str, Result]


def run(condition: Condition, seed: int, steps: int) -> tuple[Figures, dict[str, tuple[list[float], list[float]]]]:
    """One run: its figures, and its curves."""
    trainer = TabularTrainer(condition.objective, condition.recipe(seed, steps))
    total = trainer.recipe.trainer.steps
    lines = []
    for number in range(total):
        logged = trainer.step(log=number % EVERY == EVERY - 1)
        lines.append({"step": number + 1.0} | logged)
    curves = {
        name: ([line["step"] for line in lines if name in line], [line[name] for line in lines if name in line])
        for name in CURVES
    }
    return _figures(trainer, lines, curves) | held_out(trainer), curves


def _figures(
    trainer: TabularTrainer, lines: Sequence[Mapping[str, float]], curves: Mapping[str, tuple[list[float], list[float]]]
) -> Figures:
    """What is read off the curves of one run."""
    steps, entropy = curves["exact/entropy"]
    half, tenth = len(entropy) // 2, max(1, len(entropy) // 10)
    found = {
        "entropy_start": entropy[0],
        "entropy_middle": fmean(entropy[half : half + tenth]),
        "entropy_end": fmean(entropy[-tenth:]),
        "entropy_area": cumulative_entropy(entropy, steps) / (steps[-1] - steps[0]),
        "entropy_peak": max(entropy),
        "entropy_at_reward": entropy_at(curves["exact/reward"][1], entropy, LEVEL),
        "reward_end": curves["exact/reward"][1][-1],
        "kl_start": curves["exact/kl_start"][1][-1],
        "gradient_norm": _mean(lines, "grad_norm"),
        "kl_rollout": _mean(lines, "kl_old"),
        "clip_low": _mean(lines, "clip/low"),
        "clip_high": _mean(lines, "clip/high"),
    }
    return found | _by_task(trainer, lines) | _by_stage(trainer, lines)


def entropy_at(reward: Sequence[float], entropy: Sequence[float], level: float) -> float:
    """The entropy at which the reward first reaches a level, between two points in proportion; NaN where it never does.

    >>> entropy_at([0.0, 0.2, 0.6], [2.0, 1.0, 0.5], 0.4)
    0.75
    """
    for i in range(1, len(reward)):
        if reward[i - 1] < level <= reward[i]:
            share = (level - reward[i - 1]) / (reward[i] - reward[i - 1])
            return entropy[i - 1] + share * (entropy[i] - entropy[i - 1])
    return math.nan


def _mean(lines: Sequence[Mapping[str, float]], name: str) -> float:
    values = [line[name] for line in lines if name in line]
    return fmean(values) if values else math.nan


def _by_task(trainer: TabularTrainer, lines: Sequence[Mapping[str, float]]) -> Figures:
    """Entropy at the start and the end, reward at both, and how far the table moved, for every task."""
    logged = [line for line in lines if "exact/entropy" in line]
    found: Figures = {}
    for task, name in enumerate(trainer.world.names):
        if f"exact/entropy/{name}" not in logged[0]:
            continue
        for kind in ("entropy", "reward"):
            key = f"exact/{kind}/{name}"
            found[f"{kind}_start/{name}"], found[f"{kind}_end/{name}"] = logged[0][key], logged[-1][key]
        found[f"moved/{name}"] = float(trainer.learnt[trainer.world.tables[task]].detach().norm())
    return found


def held_out(trainer: TabularTrainer) -> Figures:
    """pass@1 and pass@k on held-out problems, means over tasks, and different right answers."""
    settings = trainer.recipe.evaluation
    reports = [
        evaluate(
            trainer.learnt.detach(),
            problems,
            trainer.settings,
            task=name,
            samples=settings.samples,
            temperature=1.0,
            seed=0,
        )
        for name, problems in zip(trainer.world.names, trainer.held_out(), strict=True)
    ]
    return {
        "pass_at_1": fmean(report["pass_at"]["1"] for report in reports),
        "pass_at_k": fmean(report["pass_at"][str(settings.samples)] for report in reports),
    }


def _by_stage(trainer: TabularTrainer, lines: Sequence[Mapping[str, float]]) -> Figures:
    """For every stage but the first: entropy that the one before left, mean reward over the stage, and at its end."""
    found: Figures = {}
    start = 0
    for number, stage in enumerate(trainer.recipe.stage, start=1):
        end, (task, *_) = start + stage.steps, stage.tasks
        own = [
            line[f"exact/reward/{task}"] for line in lines if start < line["step"] <= end and "exact/entropy" in line
        ]
        left = [line["exact/entropy"] for line in lines if line["step"] <= start and "exact/entropy" in line]
        if left:
            found[f"stage{number}/entropy_left"] = left[-1]
            found[f"stage{number}/mean_reward"], found[f"stage{number}/reward_end"] = fmean(own), own[-1]
        start = end
    return found


def first_update(condition: Condition, seed: int, steps: int) -> tuple[Figures, dict[str, Any]]:
    """Entropy change of the first update alone, as first order has it and as measured, in place of `run`."""
    logged = TabularTrainer(condition.objective, condition.recipe(seed, steps)).step(measure=True)
    names = {"predicted": "diagnostics/predicted_change", "measured": "diagnostics/measured_change"}
    return {name: logged[key] for name, key in names.items()}, {}


def every_update(condition: Condition, seed: int, steps: int) -> tuple[Figures, dict[str, Any]]:
    """How well the entropy change of each update was predicted over a run, in place of `run`.

    correlation, slope (of measured on predicted, through 0), sign (share of updates whose sign is right): of the
    first-order change along the step that was made. sampled_correlation, sampled_sign: of what the rows' weights say.
    """
    trainer = TabularTrainer(condition.objective, condition.recipe(seed, steps))
    lines = [trainer.step(measure=True) for _ in range(trainer.recipe.trainer.steps)]
    keys = ("predicted_change", "measured_change", "predicted_sampled")
    along, happened, sampled = ([line[f"diagnostics/{key}"] for line in lines] for key in keys)
    figures = {
        "correlation": correlation(along, happened),
        "slope": math.fsum(a * b for a, b in zip(along, happened, strict=True)) / math.fsum(a * a for a in along),
        "sign": agreement(along, happened),
        "sampled_correlation": correlation(sampled, happened),
        "sampled_sign": agreement(sampled, happened),
    }
    return figures, {}


def agreement(x: Sequence[float], y: Sequence[float]) -> float:
    """The share of pairs of equal sign."""
    return fmean(float((a > 0) == (b > 0)) for a, b in zip(x, y, strict=True))


@dataclass(frozen=True)
class Lab:
    """Where results are kept, for which seeds, how long the runs are, and who is told what is going on."""

    folder: Path
    seeds: tuple[int, ...]
    steps: int
    told: Callable[[str], None] = print

    def experiment(
        self, name: str, conditions: Mapping[str, Condition], steps: int | None = None, read: Any = None
    ) -> Results:
        """The results of an experiment; conditions that the file has with the same seeds and steps are not run again.

        read: figures of a run in place of `run`'s, called as read(condition, seed, steps).
        """
        path, length = self.folder / f"{name}.json", steps or self.steps
        known = record.read_json(path) if path.is_file() else {}
        kept: dict[str, Any] = {}
        for label, condition in conditions.items():
            mark = f"{condition.mark}/{length}/{','.join(map(str, self.seeds))}"
            found = known.get("conditions", {}).get(label, {})
            if found.get("mark") != mark:
                self.told(f"{name}: {label}, {len(self.seeds)} seeds of {length} updates")
                found = {"mark": mark} | self._train(condition, length, read)
            kept[label] = found
            record.write_text(path, compact({"seeds": list(self.seeds), "steps": length}, kept))
        return results(path)

    def _train(self, condition: Condition, steps: int, read: Any) -> dict[str, Any]:
        every = [(read or run)(condition, seed, steps) for seed in self.seeds]
        figures = [figures for figures, _ in every]
        curves = {name: _curve([each[name] for _, each in every]) for name in KEPT if name in every[0][1]}
        return {"figures": {name: short([f[name] for f in figures]) for name in figures[0]}, "curves": curves}


def compact(head: Mapping[str, Any], conditions: Mapping[str, Any]) -> str:
    """JSON with a line for each condition.

    >>> print(compact({"steps": 3}, {"a": {"x": [1.0, float("nan")]}}), end="")
    {"steps": 3, "conditions": {
    "a": {"x":[1.0,"nan"]}
    }}
    """
    lines = [
        f"{json.dumps(label)}: {json.dumps(record.encode(found), separators=(',', ':'), allow_nan=False)}"
        for label, found in conditions.items()
    ]
    return f'{json.dumps(head)[:-1]}, "conditions": {{\n' + ",\n".join(lines) + "\n}}\n"


def _curve(runs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> dict[str, list[float]]:
    """Mean over runs at every second point, with its interval."""
    found = [seeds.estimate(values) for values in zip(*(values for _, values in runs), strict=True)][1::2]
    ends = {name: short([getattr(one, name) for one in found]) for name in ("mean", "low", "high")}
    return {"steps": list(runs[0][0])[1::2]} | ends


def short(values: Sequence[float], digits: int = DIGITS) -> list[float]:
    """Values with so many significant digits."""
    return [float(f"{x:.{digits}g}") for x in values]


def results(path: Path) -> dict[str, Result]:
    """The results in a file. IsentropeError where there is none or it is malformed."""
    content = record.read_json(path)
    try:
        return {label: Result(found["figures"], found["curves"]) for label, found in content["conditions"].items()}
    except (LookupError, TypeError, AttributeError) as error:
        raise IsentropeError(f"{path} holds no results of the study: {error!r}") from error
