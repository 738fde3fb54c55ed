"""The study on the embedded language model: which runs it rests on, made by what `isentrope compare` is made of.

A **group** is a folder of such runs: objectives on one recipe with some keys changed, over seeds. An **arm** is what an
experiment shows under a name: one objective of a group. An experiment's results lie in one JSON file, from which the
page is written; the run folders are not needed for that, and lie elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isentrope import presets, recipe, spec
from isentrope.cli import _comparison_run as comparisons
from isentrope.cli._comparison_run import Plan
from isentrope.comparison import run_folder
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.penalty import EntropyBonus
from isentrope.record import RunFolder
from isentrope.study.rounding import RoundedRatio

SEEDS = 3  # of an experiment without a number of its own below


@dataclass(frozen=True)
class Group:
    """Runs of a folder: objectives by name on the recipe `world`, with dotted keys of it changed."""

    name: str
    objectives: Mapping[str, Objective]
    world: str = "default"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, runs: Path, seeds: Sequence[int]) -> Plan:
        """What `isentrope compare` would run for it, in a folder of `runs`."""
        common = recipe.load(self.world, overrides=dict(self.changes))
        objectives = {name: spec.to_dict(objective) for name, objective in self.objectives.items()}
        return Plan(runs / self.name, common, objectives, tuple(seeds))


@dataclass(frozen=True)
class Arm:
    """One objective of a group."""

    group: Group
    objective: str

    @property
    def mark(self) -> str:
        """What its results depend on, in short."""
        group = self.group
        held = [spec.to_dict(group.objectives[self.objective]), group.world, dict(group.changes)]
        return hashlib.sha256(json.dumps(held, sort_keys=True, default=str).encode()).hexdigest()[:12]


SIX = ("grpo", "dapo", "ce_gppo", "repo_r", "adapo", "gepo")
FULL = Group("compare", {name: getattr(presets, name) for name in SIX})


ROUNDED = {name: replace(presets.grpo, ratio=RoundedRatio(name)) for name in ("bf16", "fp16")}
RATIOS = Group("ratios", ROUNDED)
BF16 = Group("bf16", {"rounded": ROUNDED["bf16"]}, changes={"trl.bf16": True})
BONUS = replace(presets.grpo, penalties=(EntropyBonus(coef=0.01),))
SEQUENCE = {"grpo": presets.grpo, "bonus": BONUS, "repo_r": presets.repo_r, "ce_gppo": presets.ce_gppo}
STAGES = Group("sequence", SEQUENCE, world="sequence")

EXPERIMENTS: Mapping[str, Mapping[str, Arm]] = {
    "language": {name: Arm(FULL, name) for name in SIX},
    "language-precision": {
        "float32": Arm(FULL, "grpo"),
        "ratios in float16": Arm(RATIOS, "fp16"),
        "ratios in bfloat16": Arm(RATIOS, "bf16"),
    },
    "language-autocast": {"float32": Arm(FULL, "grpo"), "all in bfloat16": Arm(BF16, "rounded")},
    "language-stages": {name: Arm(STAGES, name) for name in STAGES.objectives},
}

OWN_SEEDS: Mapping[str, int] = {"language": 5, "language-precision": 5}  # two were added after a look at three


def seeds_of(experiment: str) -> range:
    """The seeds of an experiment."""
    return range(OWN_SEEDS.get(experiment, SEEDS))


def make(groups: Sequence[Group], runs: Path, seeds: Sequence[int], told: Callable[[str], None]) -> bool:
    """Make what is missing of the groups' runs; True if a signal ended it early. Finished runs are left alone."""
    for group in groups:
        plan = group.plan(runs, seeds)
        if all(plan.is_finished(*run) for run in plan.runs()):
            continue
        comparisons.open_folder(plan)
        if comparisons.execute(plan, lambda text, name=group.name: told(f"{name}: {text}")):  # type: ignore[misc]
            return True
    return False


def check(plan: Plan, name: str, seed: int) -> RunFolder:
    """The folder of a finished run of a plan. IsentropeError for one whose recipe is another."""
    folder = RunFolder(run_folder(plan.out, name, seed))
    expected, found = plan.recipe_of(name, seed), recipe.load(str(folder.recipe))
    if found != expected:
        keys = [key for key, value in found if value != getattr(expected, key)]
        raise IsentropeError(
            f"{folder.path} is a run of another recipe than the study's ({', '.join(keys)} differ); give --runs another"
            " folder, or remove it to have it run again"
        )
    return folder


def groups(experiments: Sequence[str]) -> list[Group]:
    """The groups whose runs some experiments show, each once."""
    found = {arm.group.name: arm.group for name in experiments for arm in EXPERIMENTS[name].values()}
    return list(found.values())
