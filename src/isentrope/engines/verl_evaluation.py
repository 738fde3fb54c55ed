"""verl's validation as our evaluation: its dumps hold every sample of every held-out problem, judged.

verl names neither the task nor the problem of a sample in its dump; both are found by ground truth and prompt among
the rows that the job was given. Tokens and entropies are not in it, so those figures are NaN.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.evaluate import summarise
from isentrope.recipe import Recipe
from isentrope.results import Problem, Sample, problem_key
from isentrope.tasks.base import Example

Row = Mapping[str, Any]


def reports(path: Path, rows: Sequence[Row], recipe: Recipe) -> list[dict[str, Any]]:
    """The report on each task, in the order of `rows`, from the dump `path` of verl's validation.

    rows: `verl_data.held_out_rows`. IsentropeError where the dump holds a sample of another problem, or none.
    """
    by_task: dict[str, list[Problem]] = defaultdict(list)
    for problem in _problems(path, rows):
        by_task[problem.task].append(problem)
    order = dict.fromkeys(row["data_source"] for row in rows)
    settings = (recipe.evaluation.temperature, recipe.trainer.max_completion_length, recipe.seed)
    return [summarise(by_task[task], *settings).to_dict() for task in order if by_task[task]]


def _problems(path: Path, rows: Sequence[Row]) -> Iterator[Problem]:
    samples: dict[int, list[Sample]] = defaultdict(list)
    by_answer: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        by_answer[row["reward_model"]["ground_truth"]].append(number)
    for place, line in _lines(path):
        asked = next((n for n in by_answer[str(line["gts"])] if _asks(line["input"], rows[n])), None)
        if asked is None:
            raise IsentropeError(f"{place} holds a sample of a problem that this run does not have")
        samples[asked].append(_sample(line))
    for number in sorted(samples):
        source, prompt, answer = _content(rows[number])
        example = Example(prompt, answer, source)
        yield Problem(source, problem_key(example), prompt, answer, tuple(samples[number]))


def _lines(path: Path) -> Iterator[tuple[str, Row]]:
    try:
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            yield f"{path} line {number}", json.loads(line)
    except OSError as error:
        raise IsentropeError(f"cannot read verl's validation {path}: {error.strerror or error}") from error


def _content(row: Row) -> tuple[str, str, Any]:
    return row["data_source"], row["extra_info"]["prompt"], json.loads(row["reward_model"]["ground_truth"])


def _asks(text: str, row: Row) -> bool:
    """Whether a rendered prompt is that of the row: it holds the content of the row's last message."""
    return str(row["prompt"][-1]["content"]).strip() in text


def _sample(line: Row) -> Sample:
    """A line of the dump, with what `tasks.compute_score` said of it."""
    return Sample(line["output"], line["outcome"], float(line["score"]), str(line["pred"]), str(line["reason"]))
