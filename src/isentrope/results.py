"""Judged completions, problem by problem: what an evaluation keeps on disk and computes every figure from.

A file of problems has one JSON object a line:

    task          name of the task
    key           `problem_key`: the same problem has the same key in every evaluation
    prompt        text or chat messages
    answer        the ground truth that the verifier took
    completions   texts, one a sample; the following lists are as long
    outcomes      "right", "wrong" or "unscored" (could not be judged)
    rewards       in [0, 1]
    answers       canonical answers, "" where there is none
    reasons       why a sample is unscored, or ""
    lengths       tokens, the end token included; null where not known
    truncated     whether the length limit came before an end token; null where not known
    entropies     nats, sum over the tokens of the sample; null where not known
    own           figures that the task has beyond these, by name: [a, b], see `Problem.figures`; may be left out

A last line without its newline was cut short by the end of a process and does not count.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.estimates import majority_vote, pass_at_k
from isentrope.parsing import json_value
from isentrope.record import writing
from isentrope.tasks.base import Example, Outcome, Prompt, Score, Task

Pair = tuple[float, float]


def problem_key(example: Example) -> str:
    """16 hexadecimal digits that depend on task, prompt and answer alone."""
    text = json.dumps([example.task, example.prompt, example.answer], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Sample:
    """One judged completion.

    length: tokens, the end token included. truncated: the length limit came before an end token. entropy: nats, sum
    over its tokens. These three are None where nobody knows, as for completions that another program saved.
    """

    text: str
    outcome: Outcome
    reward: float
    answer: str = ""
    reason: str = ""
    length: int | None = None
    truncated: bool | None = None
    entropy: float | None = None

    @classmethod
    def of_score(cls, text: str, score: Score, **known: Any) -> "Sample":
        """A completion with its score, and what is known of its tokens."""
        return cls(text, score.outcome, score.reward, score.answer, score.reason, **known)


@dataclass(frozen=True)
class Problem:
    """One problem with its judged samples; `own` are the figures that its task has beyond those of all tasks."""

    task: str
    key: str
    prompt: Prompt
    answer: Any
    samples: tuple[Sample, ...]
    own: Mapping[str, Pair] = field(default_factory=dict)

    @property
    def scored(self) -> list[Sample]:
        """The samples that could be judged."""
        return [sample for sample in self.samples if sample.outcome != "unscored"]

    @property
    def num_right(self) -> int:
        """Right samples."""
        return sum(sample.outcome == "right" for sample in self.samples)

    def figures(self, ks: Sequence[int]) -> dict[str, Pair]:
        """Every figure of this problem as (a, b), which sums of a over sums of b make the figure of a set.

        pass@k for each k, over the samples that could be judged: (0, 0) where these are fewer than k, so that the
        problem does not count. avg: the mean reward of the judged samples. majority: see `majority_vote`. no_answer,
        unscored: shares of all samples. length, truncated: of the samples where it is known. entropy: nats per token.
        Then the task's own.
        """
        judged, total = self.scored, len(self.samples)
        right = self.num_right
        passed = {f"pass@{k}": (pass_at_k(len(judged), right, k), 1.0) if len(judged) >= k else (0.0, 0.0) for k in ks}
        votes = majority_vote([one.answer for one in judged], [one.outcome == "right" for one in judged])
        rest = {
            "avg": (_mean([one.reward for one in judged]), 1.0) if judged else (0.0, 0.0),
            "majority": (votes, 1.0) if judged else (0.0, 0.0),
            "no_answer": (float(sum(one.outcome == "wrong" and not one.answer for one in judged)), float(total)),
            "unscored": (float(total - len(judged)), float(total)),
        }
        return passed | rest | self._token_figures() | dict(self.own)

    def _token_figures(self) -> dict[str, Pair]:
        timed = [one for one in self.samples if one.length is not None]
        measured = [one for one in timed if one.entropy is not None]
        cut = [one for one in self.samples if one.truncated is not None]
        return {
            "length": (_sum(one.length for one in timed), float(len(timed))),
            "truncated": (_sum(one.truncated for one in cut), float(len(cut))),
            "entropy": (_sum(one.entropy for one in measured), _sum(one.length for one in measured)),
        }

    def to_line(self) -> str:
        """The line of a file of problems, newline included."""
        names = {"completions": "text", "outcomes": "outcome", "rewards": "reward", "answers": "answer"}
        names |= {"reasons": "reason", "lengths": "length", "truncated": "truncated", "entropies": "entropy"}
        lists = {column: [getattr(one, name) for one in self.samples] for column, name in names.items()}
        head = {"task": self.task, "key": self.key, "prompt": self.prompt, "answer": self.answer}
        own = {"own": {name: list(pair) for name, pair in self.own.items()}} if self.own else {}
        return json.dumps(head | lists | own, allow_nan=False) + "\n"


def _sum(values: Iterable[float | None]) -> float:
    return math.fsum(value for value in values if value is not None)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def judge(task: Task, example: Example, completions: Sequence[str], known: Sequence[dict[str, Any]]) -> Problem:
    """Score the completions of one problem, as in training; `known` holds what is known of the tokens of each."""
    bare = example.bare  # a verifier that needs more would earn nothing in training and all of it here
    samples = tuple(
        Sample.of_score(text, task.score(text, bare), **more) for text, more in zip(completions, known, strict=True)
    )
    figures = getattr(task, "figures", None)
    own = {} if figures is None else figures(completions, bare)
    return Problem(task.name, problem_key(example), example.prompt, example.answer, samples, own)


def held_out_problems(task: Task, most: int, seed: int) -> list[Example]:
    """All test problems of a task, or `most` of them where it has more; each problem once.

    A task says how many it has only by refusing to give more, so the number is searched for.
    Raises IsentropeError where the task cannot give even one.
    """
    known, refused = task.examples("test", 1, seed), most + 1
    count = most
    while len(known) < refused - 1:
        try:
            known = task.examples("test", count, seed)
        except IsentropeError:
            refused = count
        count = (len(known) + refused) // 2 if refused <= most else most
    return list({problem_key(example): example for example in known}.values())


def append(path: Path, problems: Iterable[Problem]) -> None:
    """Append problems to a file in one write, so that a killed process leaves at worst a cut last line."""
    text = "".join(problem.to_line() for problem in problems)
    with writing(path), open(path, "ab", buffering=0) as file:
        file.write(text.encode())


def repair(path: Path) -> None:
    """Remove a last line without its newline, so that a resumed process appends whole lines."""
    with writing(path), open(path, "r+b") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)


def read(path: Path) -> list[Problem]:
    """The problems of a file, in its order. Raises IsentropeError naming the line that is not one."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise IsentropeError(f"cannot read {path}: {error.strerror or error}") from error
    return [_problem(f"{path} line {number}", line) for number, line in enumerate(lines[:-1], start=1)]


def _problem(place: str, line: bytes) -> Problem:
    try:
        row = json_value(line)
        columns = ("completions", "outcomes", "rewards", "answers", "reasons", "lengths", "truncated", "entropies")
        samples = tuple(Sample(*values) for values in zip(*(row[column] for column in columns), strict=True))
        own = {name: (float(a), float(b)) for name, (a, b) in row.get("own", {}).items()}
        return Problem(row["task"], row["key"], row["prompt"], row["answer"], samples, own)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IsentropeError(f"{place} is no problem of an evaluation: {error!r}") from error
