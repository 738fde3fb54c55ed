"""The stages of a run, whichever engine trains: what is said of them, and what is measured between them."""

from collections.abc import Sequence
from typing import Any

from isentrope import record
from isentrope.recipe import Recipe
from isentrope.record import RunFolder
from isentrope.tasks import Task
from isentrope.tasks.mix import Stretch


def lines(recipe: Recipe) -> list[str]:
    """What a run trains on one after another, as it is said at its start."""
    return [f"{'stage':<10} {in_words(stage.tasks, stage.steps)}" for stage in recipe.stage]


def in_words(tasks: Sequence[str], steps: int) -> str:
    """A stage in words.

    >>> in_words(["countdown", "digitsum"], 320)
    'countdown, digitsum: 320 updates'
    """
    return f"{', '.join(tasks)}: {steps} updates"


def ends(recipe: Recipe) -> list[int]:
    """The last step of every stage.

    >>> from isentrope.recipe import load
    >>> ends(load("stages"))
    [320, 640, 960]
    """
    found, done = [], 0
    for stage in recipe.stage:
        done += stage.steps
        found.append(done)
    return found


def stretches(recipe: Recipe, mix: Sequence[tuple[Task, float]]) -> tuple[Stretch, ...]:
    """The same in rollout batches and by the names that the tasks themselves have, which a file.py:name lacks."""
    names = {task.name: known.name for task, (known, _) in zip(recipe.task, mix, strict=True)}
    each = recipe.trainer.updates_per_rollout
    return tuple(Stretch(tuple(names[name] for name in stage.tasks), stage.steps // each) for stage in recipe.stage)


def when(step: int) -> str:
    """What the evaluation at the end of a step is called: `RunFolder.evaluation(when(step))` is its file."""
    return f"step-{step}"


def summary(folder: RunFolder, recipe: Recipe) -> list[dict[str, Any]]:
    """Every stage but the last with the evaluations at its end, [] where nothing was measured; see `_report.summary`
    for the end of the last.
    """
    found = []
    for stage, step in zip(recipe.stage[:-1], ends(recipe), strict=False):
        path = folder.evaluation(when(step))
        reports = record.read_json(path) if path.is_file() else []
        found.append({"tasks": stage.tasks, "step": step, "evaluation": reports})
    return found
