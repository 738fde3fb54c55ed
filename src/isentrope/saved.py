"""Completions that some program saved, to be judged without a model.

A file has one JSON object a line. Keys that are not named here are left alone.

    completion     a text, or chat messages of which the last counts; or
    completions    a list of these
    task           name of the task; may be left out where one task is given
    answer         which problem: the ground truth as the task's verifier takes it, then no data set is needed (some
                   verifiers look at `prompt` as well), or
    key            `results.problem_key` of a problem of the task's test set, or
    prompt         the prompt as the task has it, text or chat messages, which finds the problem in its test set
    lengths, truncated, entropies   optional lists (or `length`, `truncated`, `entropy` beside `completion`): tokens,
                   cut by the limit, nats summed over the tokens

Lines of the same problem are taken together, in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.parsing import json_value
from isentrope.results import held_out_problems, problem_key
from isentrope.tasks.base import Example, Prompt, Task, shown, text_of

MOST_PROBLEMS = 20_000  # of a task, that prompts are looked up in; generators have no end
IDENTIFIERS = ("answer", "key", "prompt")


@dataclass(frozen=True)
class Saved:
    """The completions of one problem, and what is known of the tokens of each."""

    example: Example
    completions: tuple[str, ...]
    known: tuple[dict[str, Any], ...]


def read(path: Path, tasks: Mapping[str, Task], default: str | None = None) -> dict[str, list[Saved]]:
    """Task name -> its problems with their completions, in the order of the file.

    tasks: those that may occur. default: the task of lines that name none.
    Raises IsentropeError naming the line that is not of the form above, names another task or finds no problem.
    """
    found: dict[str, dict[str, Saved]] = {}
    indexes: dict[str, dict[str, Example]] = {}
    for place, row in _rows(path):
        name = str(row.get("task", default))
        if name not in tasks:
            raise IsentropeError(f"{place}: its task is {name}; the tasks here are {', '.join(tasks)} (--tasks)")
        example = _example(place, row, tasks[name], indexes)
        key = problem_key(example)
        more = Saved(example, *_completions(place, row))
        found.setdefault(name, {})
        found[name][key] = _joined(found[name][key], more) if key in found[name] else more
    if not found:
        raise IsentropeError(f"{path} holds no completions")
    return {name: list(problems.values()) for name, problems in found.items()}


def names(path: Path) -> list[str]:
    """The tasks that the lines of a file name, in their order."""
    return list(dict.fromkeys(row["task"] for _, row in _rows(path) if isinstance(row.get("task"), str)))


def _rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise IsentropeError(f"cannot read {path}: {error.strerror or error}") from error
    return [(f"{path} line {n}", _row(f"{path} line {n}", line)) for n, line in enumerate(lines, 1) if line.strip()]


def _row(place: str, line: bytes) -> dict[str, Any]:
    try:
        row = json_value(line)
    except ValueError as error:
        raise IsentropeError(f"{place} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise IsentropeError(f"{place} is {shown(repr(row))}; it must be an object with a completion")
    return row


def _example(place: str, row: Mapping[str, Any], task: Task, indexes: dict[str, dict[str, Example]]) -> Example:
    if "answer" in row:
        return Example(row.get("prompt") or "", row["answer"], task.name)
    if "key" not in row and "prompt" not in row:
        raise IsentropeError(f"{place} does not say which problem it answers; it needs one of {', '.join(IDENTIFIERS)}")
    if task.name not in indexes:
        indexes[task.name] = _index(task)
    index = indexes[task.name]
    wanted = str(row["key"]) if "key" in row else _prompt_text(row["prompt"])
    if wanted not in index:
        kind = "key" if "key" in row else "prompt"
        raise IsentropeError(
            f"{place}: its {kind} {shown(wanted)} is that of no test problem of task {task.name}; give the {kind} as "
            "the task has it, or the answer"
        )
    return index[wanted]


def _index(task: Task) -> dict[str, Example]:
    """The test problems of a task by key and by prompt."""
    problems = held_out_problems(task, MOST_PROBLEMS, seed=0)
    by_prompt = {_prompt_text(example.prompt): example for example in problems}
    return by_prompt | {problem_key(example): example for example in problems}


def _prompt_text(prompt: Prompt) -> str:
    """What a prompt is compared by: its text, or that of its last message, without white space around it."""
    try:
        return text_of(prompt).strip()
    except (AttributeError, TypeError, KeyError):
        return ""


def _completions(place: str, row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[dict[str, Any], ...]]:
    if ("completion" in row) == ("completions" in row):
        raise IsentropeError(f"{place} needs either 'completion' or 'completions', and has {_held(row)}")
    several = "completions" in row
    given = row["completions"] if several else [row["completion"]]
    if not isinstance(given, list) or not given:
        raise IsentropeError(
            f"{place}: 'completions' is {shown(repr(given))}; it must be a list with at least one text"
        )
    lengths = _column(place, row, "lengths" if several else "length", len(given), several, int)
    cut = _column(place, row, "truncated", len(given), several, bool)
    entropies = _column(place, row, "entropies" if several else "entropy", len(given), several, float)
    columns = zip(lengths, cut, entropies, strict=True)
    known = tuple(dict(zip(("length", "truncated", "entropy"), values, strict=True)) for values in columns)
    return tuple(_text(place, one) for one in given), known


def _held(row: Mapping[str, Any]) -> str:
    return "both" if "completion" in row else f"the keys {', '.join(row) or 'none'}"


def _text(place: str, completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    if isinstance(completion, list) and all(isinstance(message, dict) for message in completion):
        return text_of(completion)
    raise IsentropeError(f"{place}: a completion is {shown(repr(completion))}; it must be a text or chat messages")


def _column(place: str, row: Mapping[str, Any], name: str, count: int, several: bool, kind: type) -> Sequence[Any]:
    values = row.get(name)
    if values is None:
        return [None] * count
    column = values if several else [values]
    fits = isinstance(column, list) and all(one is None or type(one) is kind for one in column)
    if not fits or len(column) != count:
        raise IsentropeError(
            f"{place}: {name!r} is {shown(repr(values))}; it must hold a {kind.__name__} for each of the {count}"
            " completions"
        )
    return column


def _joined(one: Saved, more: Saved) -> Saved:
    return Saved(one.example, one.completions + more.completions, one.known + more.known)
