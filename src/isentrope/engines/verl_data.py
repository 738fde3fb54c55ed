"""Tasks as verl reads them: parquet files of prompts, and where the rewards come from.

Each row: `data_source` the task as the recipe names it, `prompt` chat messages, `reward_model.ground_truth` the answer
as JSON text, `extra_info.index` the number of the problem, which seeds its samples in a rehearsal.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.recipe import Recipe
from isentrope.record import replacing
from isentrope.tasks import Example, Task
from isentrope.tasks.registry import weighted

# verl puts every prompt through a chat template; this one gives a plain text back as it is.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
PROBLEM_SEED = 1_000_003  # apart from the training problems' seed; the splits are disjoint in any case


def mix_of(recipe: Recipe) -> list[tuple[Task, float]]:
    """The recipe's tasks with their weights."""
    return [(tasks.get(task.name, **task.options), task.weight) for task in recipe.task]


def training_rows(recipe: Recipe, mix: Sequence[tuple[Task, float]]) -> list[dict[str, Any]]:
    """The training problems, in their order, as rows for verl."""
    names = _sources(recipe, mix)
    rows = tasks.dataset_rows(mix, "train", recipe.trainer.problems, recipe.seed)
    return [_row(names[row["task"]], row["prompt"], row["answer"], i, "train") for i, row in enumerate(rows)]


def held_out_rows(recipe: Recipe, mix: Sequence[tuple[Task, float]]) -> list[dict[str, Any]]:
    """The held-out problems of every task; one of each where the recipe evaluates none, since verl wants a file."""
    names, count = _sources(recipe, mix), recipe.evaluation.problems or 1
    found: Iterable[Example] = (
        example for task, _ in weighted(mix) for example in task.examples("test", count, PROBLEM_SEED + recipe.seed)
    )
    return [_row(names[e.task], e.prompt, json.dumps(e.answer), i, "test") for i, e in enumerate(found)]


def _sources(recipe: Recipe, mix: Sequence[tuple[Task, float]]) -> dict[str, str]:
    """A task's own name -> the name by which any process can get it."""
    return {task.name: _anywhere(entry.name) for entry, (task, _) in zip(recipe.task, mix, strict=True)}


def _anywhere(name: str) -> str:
    """A task's name that holds in every working directory: files by their absolute path."""
    path, _, member = name.rpartition(":")
    return f"{Path(path).resolve()}:{member}" if path.endswith(".py") else name


def _row(source: str, prompt: Any, answer: str, index: int, split: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return {
        "data_source": source,
        "prompt": messages,
        "ability": source,
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"index": index, "split": split, "prompt": text},
    }


def is_plain(mix: Sequence[tuple[Task, float]]) -> bool:
    """Whether the prompts are texts, which no chat template may touch."""
    (task, _), *_ = mix
    return isinstance(task.examples("train", 1, 0)[0].prompt, str)


def task_options(recipe: Recipe, mix: Sequence[tuple[Task, float]]) -> dict[str, dict[str, Any]]:
    """The tasks' options by the name under which the verifier looks them up."""
    names = _sources(recipe, mix)
    return {names[task.name]: entry.options for entry, (task, _) in zip(recipe.task, mix, strict=True) if entry.options}


def longest_prompt(tokenizer: Any, rows: Iterable[Mapping[str, Any]], plain: bool) -> int:
    """Tokens of the longest prompt. IsentropeError for chat prompts and a model without a chat template."""
    if not plain and not getattr(tokenizer, "chat_template", None):
        raise IsentropeError("the task's prompts are chats, and the model has no chat template; use a chat model")
    options = {"chat_template": PLAIN_TEMPLATE} if plain else {}
    texts = [
        tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True, **options)
        for row in rows
    ]
    return max(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), temporary)
