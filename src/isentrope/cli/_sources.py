"""Where TRL gets its prompts, completions and rewards from: a task's verifier, or a world that judges itself."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.recipe import Recipe
from isentrope.tasks import Task
from isentrope.tasks.turns import is_interactive

Mix = Sequence[tuple[Task, float]]


@runtime_checkable
class World(Protocol):
    """A task whose environments play and reward the rollouts; an example's answer is what they are reset to."""

    def environment_factory(self) -> Callable[[], Any]: ...


def is_world(task: Task) -> bool:
    """Whether a task brings TRL's environments along."""
    return isinstance(task, World)


def check(recipe: Recipe, mix: Mix) -> None:
    """Refuse what a world cannot have: other tasks beside it, held-out problems, a sampler of ours."""
    worlds = [task.name for task, _ in mix if is_world(task)]
    if not worlds:
        return
    if len(mix) > 1:
        raise IsentropeError(
            f"task {worlds[0]} is played and rewarded by its servers, so it cannot be mixed with others"
        )
    if recipe.evaluation.problems:
        raise IsentropeError(f"task {worlds[0]} has no verifier of texts: set evaluation.problems = 0")
    if recipe.trainer.sampler == "shared_prefill":
        raise IsentropeError(f"task {worlds[0]} calls tools, which TRL samples itself: leave trainer.sampler at auto")


def of_trainer(choice: str, args: Any, mix: Mix, training: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The trainer's keywords: data set, rewards, rollout function or environments.

    choice: the recipe's `sampler`. The rows of a world get the column task_id, by which its environments are reset.
    """
    from datasets import Dataset

    task = mix[0][0]
    if isinstance(task, World):
        rows = [row | {"task_id": json.loads(row["answer"])} for row in training]
        return {"train_dataset": Dataset.from_list(rows), "environment_factory": task.environment_factory()}
    return {
        "train_dataset": Dataset.from_list(list(training)),
        "reward_funcs": tasks.reward_function(list(mix)),
        "rollout_func": sampler(choice, args, mix),
    }


def sampler(choice: str, args: Any, mix: Mix) -> Any:
    """The rollout function that a recipe's `sampler` and tasks call for; None leaves sampling to TRL."""
    from isentrope.engines.trl_sampler import serves, shared_prefill
    from isentrope.engines.trl_tools import TaskRollouts

    if any(is_world(task) for task, _ in mix):
        return None
    several = [task.name for task, _ in mix if is_interactive(task)]
    if several and (choice == "transformers" or not serves(args)):
        raise IsentropeError(
            f'task {several[0]} takes several turns, which only sampler = "shared_prefill" samples, without '
            "vLLM and from the plain distribution; change trainer.sampler or the [trl] table"
        )
    if several:
        return TaskRollouts(list(mix))
    taken = choice == "shared_prefill" or (choice == "auto" and serves(args))
    return shared_prefill if taken else None
