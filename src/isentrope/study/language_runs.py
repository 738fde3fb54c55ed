"""Figures and curves of the study's runs on a language model, read from run folders and kept as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from isentrope import comparison, record, seeds
from isentrope.comparison import ENTROPY, Measured
from isentrope.curves import correlation
from isentrope.errors import IsentropeError
from isentrope.recipe import Recipe
from isentrope.record import RunFolder
from isentrope.report.data import Curve
from isentrope.study import language
from isentrope.study.language import Arm
from isentrope.study.runs import Figures, Result, agreement, compact, entropy_at, short

POINTS = 60  # of a kept curve; of the default recipe's 480 updates one for each rollout batch
LEVEL = 0.52  # of the mean reward, at which entropies are compared: all that learn pass it
SMOOTH = 5  # rollout batches of 512 completions, whose mean reward is then known to about .01
CURVES = ("entropy/current_exact", "reward", "grad_norm", "kl_old", "clip/low", "clip/high")
CONTROLLER = "controller/"
DIGITS = 4  # significant ones of a point of a curve

Curves = dict[str, tuple[list[float], list[float]]]


def collect(
    name: str,
    arms: Mapping[str, Arm],
    runs: Path,
    folder: Path,
    seed_list: Sequence[int],
    distance: Callable[[RunFolder, Recipe], float],
) -> None:
    """Write an experiment's file from its run folders. IsentropeError where one is missing, unfinished or another's.

    distance: of a run's last policy from its first (`divergence.to_start`), nats a token.
    """
    kept, steps = {}, {}
    for label, arm in arms.items():
        plan = arm.group.plan(runs, seed_list)
        folders = [language.check(plan, arm.objective, seed) for seed in seed_list]
        recipes = [plan.recipe_of(arm.objective, seed) for seed in seed_list]
        every = [read(*one, distance) for one in zip(folders, recipes, strict=True)]
        kept[label] = {"mark": arm.mark} | _together(every)
        steps[label] = plan.recipe.trainer.steps
    record.write_text(folder / f"{name}.json", compact({"seeds": list(seed_list), "steps": steps}, kept))


def _together(every: Sequence[tuple[Figures, Curves]]) -> dict[str, Any]:
    """Figures and curves of an arm's runs, in the order of the seeds."""
    figures, curves = [figures for figures, _ in every], [curves for _, curves in every]
    return {
        "figures": {name: short([one[name] for one in figures]) for name in figures[0]},
        "curves": {
            name: {"steps": steps, "runs": [short(one[name][1], DIGITS) for one in curves]}
            for name, (steps, _) in curves[0].items()
        },
    }


def read(folder: RunFolder, recipe: Recipe, distance: Callable[[RunFolder, Recipe], float]) -> tuple[Figures, Curves]:
    """Figures and thinned curves of one finished run."""
    run = comparison.measured(folder.path)
    found = comparison.figures(run) | _course(run) | _prediction(run) | _stages(run, recipe)
    found |= _evaluated(record.read_json(folder.evaluation("before")), "before") | _evaluated(run.after, "after")
    found["kl_start"] = distance(folder, recipe)
    names = [*CURVES, *(name for name in run.curves if name.startswith(CONTROLLER))]
    return found, {name: thinned(run.curve(name)) for name in names if len(run.curve(name))}


def thinned(curve: Curve, points: int = POINTS) -> tuple[list[float], list[float]]:
    """Means of equally many neighbouring points, at the last one's step; at most `points` of them.

    >>> thinned(Curve((1, 2, 3, 4, 5), (1.0, 3.0, 5.0, 7.0, 9.0)), points=3)
    ([2, 4, 5], [2.0, 6.0, 9.0])
    """
    size = math.ceil(len(curve) / points)
    parts = [slice(start, start + size) for start in range(0, len(curve), size)]
    return [curve.steps[part][-1] for part in parts], [fmean(curve.values[part]) for part in parts]


def _course(run: Measured) -> Figures:
    """How entropy went, at which reward, what was clipped, and where a controller ended."""
    entropy, reward = run.curve(*ENTROPY), run.curve("reward")
    at = dict(zip(entropy.steps, entropy.values, strict=True))
    levels = [smoothed([at[step] for step in reward.steps]), smoothed(reward.values)]
    moved = [curve.values[-1] for name, curve in run.curves.items() if name.startswith(CONTROLLER) and "value" in name]
    return {
        "entropy_mean": fmean(entropy.values),
        "entropy_at_reward": entropy_at(levels[1], levels[0], LEVEL),
        "clip_low": fmean(run.curve("clip/low").values),
        "clip_high": fmean(run.curve("clip/high").values),
        "controller_end": moved[0] if len(moved) == 1 else math.nan,
    }


def smoothed(values: Sequence[float], width: int = SMOOTH) -> list[float]:
    """Means of the last `width` values up to each, of fewer at the start.

    >>> smoothed([1.0, 3.0, 5.0], width=2)
    [1.0, 2.0, 4.0]
    """
    return [fmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]


def _prediction(run: Measured) -> Figures:
    """How the predicted change of entropy goes with the measured one, over the diagnostic steps."""
    predicted, measured = (run.curve(f"diagnostics/{name}_change") for name in ("predicted", "measured"))
    pairs = [(p, m) for step, p in zip(predicted.steps, predicted.values, strict=True)
             for s, m in zip(measured.steps, measured.values, strict=True) if s == step]  # fmt: skip
    along, happened = [p for p, _ in pairs], [m for _, m in pairs]
    return {
        "change_correlation": correlation(along, happened) if len(pairs) > 2 else math.nan,
        "change_sign": agreement(along, happened) if pairs else math.nan,
    }


def _evaluated(reports: Sequence[Mapping[str, Any]], when: str) -> Figures:
    """Means over tasks of what the held-out problems showed."""
    ks = reports[0]["pass_at"]
    found = {f"{when}/pass@{k}": fmean(report["pass_at"][k] for report in reports) for k in ks}
    others = ("distinct_answers", "distinct_right", "entropy")
    return found | {f"{when}/{name}": fmean(report[name] for report in reports) for name in others}


def _stages(run: Measured, recipe: Recipe) -> Figures:
    """For every stage but the first: entropy that the one before left, mean reward over the stage, at its start, end.

    Entropy left is the mean over the last rollout batch before; rewards at the ends are means over five batches.
    """
    found: Figures = {}
    start, entropy, reward = 0, run.curve(*ENTROPY), run.curve("reward")
    updates = recipe.trainer.updates_per_rollout
    for number, stage in enumerate(recipe.stage, start=1):
        end = start + stage.steps
        own = reward.within(start, end)
        if start and own:
            found[f"stage{number}/entropy_left"] = fmean(entropy.within(start - updates, start))
            found[f"stage{number}/mean_reward"] = fmean(own)
            found[f"stage{number}/reward_start"] = fmean(own[:SMOOTH])
            found[f"stage{number}/reward_end"] = fmean(own[-SMOOTH:])
        start = end
    return found


def results(path: Path) -> dict[str, Result]:
    """The results in a file of `collect`. IsentropeError where there is none or it is malformed."""
    content = record.read_json(path)
    try:
        return {
            label: Result(found["figures"], {name: _mean(curve) for name, curve in found["curves"].items()})
            for label, found in content["conditions"].items()
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise IsentropeError(f"{path} holds no results of the study: {error!r}") from error


def _mean(curve: Mapping[str, Any]) -> dict[str, list[float]]:
    every = [seeds.estimate(values) for values in zip(*curve["runs"], strict=True)]
    ends = {name: [getattr(one, name) for one in every] for name in ("mean", "low", "high")}
    return {"steps": curve["steps"]} | ends
