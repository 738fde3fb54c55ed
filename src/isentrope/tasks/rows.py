"""Tasks as a trainer takes them: rows of a data set, and a reward function."""

import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks.base import Example, Score, Split, Task, checked, generator, text_of
from isentrope.tasks.registry import Mix, weighted

ABSTAINS = "may_abstain"  # attribute of a reward function whose None means: could not be scored
Reward = Callable[..., list[float | None]]


def dataset_rows(mix: Mix, split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    """`count` rows for `datasets.Dataset.from_list`, each with the columns prompt, task and answer.

    prompt: text or chat messages. task: the task's name. answer: the ground truth as JSON text, so that tasks with
    answers of different types fit into one column. A mix shares the rows out by weight and shuffles them.
    Raises IsentropeError if a task of the mix gets no row, or text and chat prompts meet in one data set.
    """
    pairs = weighted(mix)
    examples = [
        example
        for (task, _), share in zip(pairs, _shares([weight for _, weight in pairs], count), strict=True)
        for example in task.examples(split, _at_least_one(task, share, count), seed)
    ]
    if len({isinstance(example.prompt, str) for example in examples}) > 1:
        found = ", ".join(task.name for task, _ in pairs)
        raise IsentropeError(f"the tasks {found} mix text and chat prompts, which one data set cannot hold")
    if len(pairs) > 1:
        generator("mix", split, seed).shuffle(examples)
    return [{"prompt": e.prompt, "task": e.task, "answer": json.dumps(e.answer)} for e in examples]


def _shares(weights: Sequence[float], count: int) -> list[int]:
    """Whole numbers that add up to `count`, as near to the weights as can be (largest remainder)."""
    exact = [count * weight / math.fsum(weights) for weight in weights]
    shares = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for i in by_remainder[: count - sum(shares)]:
        shares[i] += 1
    return shares


def _at_least_one(task: Task, share: int, count: int) -> int:
    if share < 1:
        raise IsentropeError(f"task {task.name} gets none of the {count} examples; ask for more or raise its weight")
    return share


def reward_function(mix: Mix) -> Reward:
    """A reward function as TRL calls it: (prompts, completions, **columns) -> list of floats, None for an unscored one.

    It reads the columns task and answer of `dataset_rows`; completions may be texts or chat messages, of which the last
    one counts. Other keywords that a trainer passes are not its concern. Its __name__, under which trainers log it, is
    the names of the tasks joined by "_".
    A completion that could not be scored gets None, in TRL's words "does not apply". `ObjectiveTrainer` leaves such a
    row out of its group and of the loss; TRL's own GRPOTrainer counts it as 0 and warns. Its share is logged as
    `unscored`, where the trainer offers `log_metric`.
    """
    by_name = {task.name: task for task, _ in weighted(mix)}

    def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        for needed in ("task", "answer"):
            if needed not in columns:
                raise IsentropeError(f"the data set has no column {needed!r}; make its rows with tasks.dataset_rows")
        rows = zip(prompts, completions, columns["task"], columns["answer"], strict=True)
        scores = _scores([partial(_score, by_name, *row) for row in rows], max(map(_parallel, by_name.values())))
        if scores and "log_metric" in columns:
            columns["log_metric"]("unscored", sum(score.outcome == "unscored" for score in scores) / len(scores))
        return [None if score.outcome == "unscored" else score.reward for score in scores]

    reward.__name__ = reward.__qualname__ = "_".join(by_name)
    setattr(reward, ABSTAINS, True)
    return reward


def _parallel(task: Task) -> int:
    """How many completions a task can score at the same time in threads; 1 unless it says so."""
    return int(getattr(task, "parallel", 1))


def _scores(calls: Sequence[Callable[[], Score]], threads: int) -> list[Score]:
    if threads == 1:
        return [call() for call in calls]
    pool = ThreadPoolExecutor(threads)
    try:
        return [future.result() for future in [pool.submit(call) for call in calls]]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an error must not wait for what may hang


def _score(by_name: dict[str, Task], prompt: Any, completion: Any, name: str, answer: str) -> Score:
    if name not in by_name:
        raise IsentropeError(
            f"a row belongs to task {name!r}, which the reward function lacks; it has {', '.join(by_name)}"
        )
    example = Example(prompt, json.loads(answer), name)
    return checked(by_name[name].score(text_of(completion), example), name)
