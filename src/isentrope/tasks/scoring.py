"""A task's verifier as verl calls it.

```sh
reward.custom_reward_function.path=pkg://isentrope.tasks.scoring
reward.custom_reward_function.name=compute_score
```

The path of this file does as well. verl calls the function in threads of its reward workers, one completion at a time.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks.base import Example, Score, Task, checked
from isentrope.tasks.registry import get

VERL_PASSES = frozenset({"reward_router_address", "reward_model_tokenizer"})  # to every reward function; none of ours
OPTIONS = "task_options"


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """The score of one completion, as `reward.custom_reward_function` of verl returns it.

    data_source: the task: a built-in name, or file.py:name. solution_str: the completion's text. ground_truth: the
    answer as JSON text, the column `answer` of `dataset_rows`. extra_info: what verl knows of the row; read are
    "prompt", for tasks whose verifier looks at it, and "task_options".
    task_options: options of the tasks, {"task": {"option": value}}, as a keyword (`reward_kwargs` in verl's
    configuration) or in extra_info, there also as JSON text; the keyword wins.
    Returns the same keys for every completion: "score" the reward; "acc" 1.0 if right, else 0.0; "unscored" and
    "no_answer" 1.0 where that is so; "outcome"; "pred" the canonical answer, which verl's majority vote reads;
    "reason". verl needs a number for every row, so what could not be scored has score 0.0, and "unscored" tells it
    apart; verl's validation reports the mean of each number under its key.
    Raises IsentropeError for a task, an option or a keyword that does not exist, and a ground truth that is not JSON.

    >>> compute_score("addition", "7+5=12;4+8+1=13;132", "[47, 85]")["score"]
    1.0
    """
    options = kwargs.pop(OPTIONS, None)
    unknown = sorted(set(kwargs) - VERL_PASSES)
    if unknown:
        raise IsentropeError(f"compute_score has no option {unknown[0]!r}; options of a task go into {OPTIONS}")
    info = extra_info or {}
    chosen = _options(data_source, info.get(OPTIONS)) | _options(data_source, options)
    task = _task(data_source, json.dumps(chosen, sort_keys=True))
    example = Example(info.get("prompt") or "", _answer(data_source, ground_truth), task.name)
    return fields_of(checked(task.score(solution_str, example), task.name))


def fields_of(score: Score) -> dict[str, Any]:
    """A score as the flat dict that verl keeps: the same keys for every outcome."""
    return {
        "score": score.reward,
        "acc": float(score.outcome == "right"),
        "unscored": float(score.outcome == "unscored"),
        "no_answer": float(score.outcome == "wrong" and not score.answer),
        "outcome": score.outcome,
        "pred": score.answer,
        "reason": score.reason,
    }


def _options(name: str, given: Any) -> dict[str, Any]:
    """The options of this task among those of all tasks."""
    found = json.loads(given) if isinstance(given, str) else given or {}
    mine = found.get(name) or {} if isinstance(found, Mapping) else None
    if not isinstance(mine, Mapping):
        raise IsentropeError(f'{OPTIONS} is {given!r}; it must be of the form {{"{name}": {{"option": value}}}}')
    return dict(mine)


@cache
def _task(name: str, options: str) -> Task:
    """One task a process; its verifier may hold worker processes."""
    return get(name, **json.loads(options))


def _answer(name: str, ground_truth: str) -> Any:
    try:
        return json.loads(ground_truth)
    except (TypeError, ValueError) as error:
        raise IsentropeError(
            f"the ground truth of task {name} is {ground_truth!r}, which is not JSON text; make rows with "
            "tasks.dataset_rows and pass the column `answer` on"
        ) from error
