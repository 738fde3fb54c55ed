"""`isentrope train --dry-run` with the tabular engine: what a recipe would do, and what keeps it from doing so."""

from pathlib import Path
from typing import Any

from isentrope.cli import _stages
from isentrope.cli._output import print_json
from isentrope.cli._session import brief, load_objective
from isentrope.engines.tabular import TabularTrainer
from isentrope.recipe import Recipe


def plan(recipe: Recipe, out: Path | None, *, as_json: bool) -> None:
    """Print the plan. IsentropeError where something refuses it. Nothing is written."""
    found = resolve(recipe)
    if as_json:
        print_json(found)
        return
    for name in ("policy", "objective", "rollout", "run"):
        print(f"{name:<12} {found[name]}")
    for task in found["tasks"]:
        print(f"task         {task['name']}: entropy {task['entropy']:g} of the largest, {task['problems']} problems")
    for stage in found["stages"]:
        print(f"stage        {_stages.in_words(**stage)}")
    for sentence in found["inert"]:
        print(f"warning      {sentence}")
    print(f"nothing refuses it; it would write to {out or 'runs/TIME-TASK-OBJECTIVE'}")


def resolve(recipe: Recipe) -> dict[str, Any]:
    """The plan as JSON has it: policy, objective, rollout and run in words, tasks, stages, rules that cannot act."""
    objective = load_objective(recipe.objective)
    trainer = TabularTrainer(objective, recipe)
    loop, shape, world = recipe.trainer, trainer.settings, trainer.world
    counts = [int((trainer.problems.task == task).sum()) for task in range(len(world.names))]
    return {
        "engine": recipe.engine,
        "policy": f"{trainer.learnt.numel()} logits in {len(world.prior)} tables; completions of at most {shape.length}"
        f" of {shape.vocabulary} symbols, {shape.precision}",
        "objective": brief(objective),
        "rollout": f"{loop.prompts} prompts x {loop.group_size} = {loop.rows} completions;"
        f" {loop.updates_per_rollout} updates on each",
        "run": f"{loop.steps} updates, {shape.optimizer} with learning rate {loop.learning_rate:g}",
        "tasks": [
            {"name": name, "entropy": one.entropy, "problems": count}
            for name, one, count in zip(world.names, world.families, counts, strict=True)
        ],
        "stages": [stage.model_dump() for stage in recipe.stage],
        "inert": objective.inert(loop.updates_per_rollout, loop.group_size),
    }
