"""Goal completion by task and by scenario, as AppWorld reports an agent (Trivedi et al., arXiv:2407.18901).

A scenario is a set of variants of one problem; it is completed by an attempt that completes every variant. A task takes
part if it has `scenario(example)`, the name of an example's scenario.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

from isentrope.errors import IsentropeError
from isentrope.estimates import bootstrap_interval
from isentrope.tasks.base import Example, Task


@runtime_checkable
class HasScenarios(Task, Protocol):
    """A task whose problems come in scenarios."""

    def scenario(self, example: Example) -> str: ...


def has_scenarios(task: Task) -> TypeGuard[HasScenarios]:
    """Whether a task's problems come in scenarios."""
    return isinstance(task, HasScenarios)


@dataclass(frozen=True)
class GoalCompletion:
    """Shares in [0, 1] with 95% intervals by resampling scenarios, whose variants are not independent.

    task_goal_completion: of the attempts at single problems. scenario_goal_completion: of the scenarios, the
    probability that one attempt at each variant completes all of them.
    """

    scenarios: int
    task_goal_completion: float
    task_interval: tuple[float, float]
    scenario_goal_completion: float
    scenario_interval: tuple[float, float]

    def __str__(self) -> str:
        task, scenario = (f"({low:.3f} to {high:.3f})" for low, high in (self.task_interval, self.scenario_interval))
        return (
            f"task goal completion {self.task_goal_completion:.3f} {task}, scenario goal completion "
            f"{self.scenario_goal_completion:.3f} {scenario} of {self.scenarios}"
        )


def goal_completion(scenarios: Sequence[str], right: Sequence[int], attempts: int) -> GoalCompletion:
    """Of problems with the names of their scenarios, and how many of `attempts` attempts at each were right.

    The attempts are independent, so that the product over a scenario's variants of right / attempts estimates its
    completion without bias; with one attempt it is AppWorld's own figure.
    Raises IsentropeError for no problems, and counts beyond the attempts.

    >>> found = goal_completion(["a", "a", "b", "b"], [2, 1, 2, 2], attempts=2)
    >>> found.task_goal_completion, found.scenario_goal_completion
    (0.875, 0.75)
    """
    if not scenarios or len(scenarios) != len(right):
        raise IsentropeError(f"{len(scenarios)} problems with {len(right)} counts; give at least one, and a count each")
    if attempts < 1 or not all(0 <= count <= attempts for count in right):
        raise IsentropeError(
            f"counts from {min(right)} to {max(right)} of {attempts} attempts; they must lie in between"
        )
    shares: dict[str, list[float]] = {}
    for name, count in zip(scenarios, right, strict=True):
        shares.setdefault(name, []).append(count / attempts)
    tasks = [math.fsum(of) / len(of) for of in shares.values()]
    wholes = [math.prod(of) for of in shares.values()]
    return GoalCompletion(
        len(shares),
        math.fsum(right) / attempts / len(right),
        bootstrap_interval(tasks),
        math.fsum(wholes) / len(wholes),
        bootstrap_interval(wholes),
    )


def completion_of(
    task: Task, examples: Sequence[Example], right: Sequence[int], attempts: int
) -> GoalCompletion | None:
    """`goal_completion` of a task's examples; None for a task without scenarios."""
    if not has_scenarios(task):
        return None
    return goal_completion([task.scenario(example) for example in examples], right, attempts)
