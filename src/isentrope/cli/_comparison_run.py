"""The runs of a comparison, one after another; what is finished stays, what is half done goes on."""

import contextlib
import importlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isentrope import comparison, record, spec
from isentrope.cli._session import load_objective
from isentrope.cli.train import SESSIONS
from isentrope.comparison import PLAN, run_folder
from isentrope.errors import IsentropeError
from isentrope.recipe import Recipe
from isentrope.record import RunFolder


@dataclass(frozen=True)
class Plan:
    """recipe: what all runs have in common. objectives: what a recipe takes, by name; the first is compared with."""

    out: Path
    recipe: Recipe
    objectives: Mapping[str, Any]
    seeds: tuple[int, ...]

    def runs(self) -> list[tuple[str, int]]:
        """Objective and seed of every run: all objectives of a seed before the next, so that a comparison cut short
        compares.
        """
        return [(name, seed) for seed in self.seeds for name in self.objectives]

    def recipe_of(self, name: str, seed: int) -> Recipe:
        """The recipe of one run."""
        return self.recipe.model_copy(update={"objective": self.objectives[name], "seed": seed})

    def is_finished(self, name: str, seed: int) -> bool:
        """Whether a run came to its end."""
        return comparison.is_finished(run_folder(self.out, name, seed))


def make(out: Path, recipe: Recipe, sources: Sequence[str], count: int) -> Plan:
    """The plan of a comparison. IsentropeError for objectives that do not load, or that have the same name."""
    objectives = {}
    for source in sources:
        name = label(source)
        if name in objectives:
            raise IsentropeError(f"--objectives: two are called {name!r}; each needs a name of its own")
        objectives[name] = spec.to_dict(load_objective(source))
    if len(objectives) < 2:
        raise IsentropeError(f"--objectives {','.join(sources)}: name two or more, such as grpo,ce_gppo,gepo")
    common = recipe.model_copy(update={"output": recipe.output.model_copy(update={"dir": ""})})
    return Plan(out, common, objectives, tuple(range(recipe.seed, recipe.seed + count)))


def label(source: str) -> str:
    """What an objective is called: a preset by its name, file.py:name by the name.

    >>> label("grpo"), label("rules/mine.py:gentle"), label("mine.toml")
    ('grpo', 'gentle', 'mine')
    """
    return source.rpartition(":")[2] if ".py:" in source else Path(source).stem


def open_folder(plan: Plan) -> None:
    """Write the plan down, or check that a folder that is there is of the same comparison.

    Seeds and objectives may be added; IsentropeError for another recipe, or another objective of the same name.
    """
    path = plan.out / PLAN
    mine = {"recipe": _common(plan.recipe), "objectives": dict(plan.objectives)}
    if path.is_file():
        found = record.read_json(path)
        if found.get("recipe") != mine["recipe"]:
            raise IsentropeError(f"{plan.out} holds a comparison of another recipe; choose another folder with --out")
        known = found["objectives"]
        changed = [name for name in plan.objectives if known.get(name, plan.objectives[name]) != plan.objectives[name]]
        if changed:
            raise IsentropeError(
                f"{plan.out} holds runs of another objective {changed[0]!r}; choose another folder with --out"
            )
        mine["objectives"] = known | mine["objectives"]
    elif plan.out.is_dir() and any(plan.out.iterdir()):
        raise IsentropeError(f"{plan.out} is not empty and holds no comparison; choose another folder with --out")
    record.write_json(path, mine)


def _common(recipe: Recipe) -> dict[str, Any]:
    """What all runs of a comparison must share, as JSON has it."""
    table: dict[str, Any] = record.decode(record.encode(recipe.model_dump(exclude={"objective", "seed"})))
    return table


def execute(plan: Plan, told: Callable[[str], None]) -> bool:
    """Run what is not finished; True if a signal ended it early. What runs print goes to NAME/seed-N.log."""
    todo = [run for run in plan.runs() if not plan.is_finished(*run)]
    done = len(plan.runs()) - len(todo)
    if done:
        told(f"{done} of {len(plan.runs())} runs are finished already")
    session = importlib.import_module(SESSIONS[plan.recipe.engine])
    for number, (name, seed) in enumerate(todo, start=1 + done):
        told(f"run {number} of {len(plan.runs())}: {name}, seed {seed}")
        path = run_folder(plan.out, name, seed)
        resume = _can_resume(path)
        recipe = plan.recipe_of(name, seed)
        log = path.parent / f"{path.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8") as file, contextlib.redirect_stderr(file):
            summary = session.run(recipe, path, resume=resume, as_json=True)
        if summary["interrupted"]:
            return True
    return False


def _can_resume(path: Path) -> bool:
    """Whether a run can go on from a checkpoint; a run folder without one is cleared, so that it can start again."""
    if not path.is_dir():
        return False
    if RunFolder(path).last_checkpoint() is not None:
        return True
    with record.writing(path):
        shutil.rmtree(path)
    return False
