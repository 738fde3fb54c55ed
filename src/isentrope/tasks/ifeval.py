"""IFEval: prompts with instructions whose following a program can check."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from isentrope.errors import IsentropeError
from isentrope.tasks import base
from isentrope.tasks.base import MAX_COMPLETION, NO_ANSWER, Example, Score, Split
from isentrope.tasks.files import records
from isentrope.tasks.instructions import Instruction, instruction, is_met
from isentrope.tasks.instructions.text import languages

FIELDS = ("key", "prompt", "instruction_id_list", "kwargs")
NO_RESPONSES = ("", " \n", "word " * 2_000_000)
Reward = Literal["all", "share"]


@dataclass(frozen=True)
class Followed:
    """Which instructions of one prompt a response follows, in the prompt's order, strictly and loosely."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]


@dataclass(frozen=True)
class Accuracy:
    """The four figures of the paper, each in [0, 1]: share of prompts all of whose instructions are followed, and of
    instructions followed, strictly and loosely. prompts and instructions: how many these are shares of.
    """

    prompt_strict: float
    prompt_loose: float
    instruction_strict: float
    instruction_loose: float
    prompts: int
    instructions: int


@dataclass(frozen=True)
class IfEval:
    """541 prompts with one to three of 25 kinds of instructions; there is no training split.

    data_dir: folder with `ifeval.jsonl`, one prompt a line as published (key, prompt, instruction_id_list, kwargs);
    None: the folder that ISENTROPE_DATA names.
    loose: whether "right" means that the instructions are followed in one of the forms of `instructions.variants`,
    rather than in the response as it is.
    reward: "all": 1 if all instructions are followed, else 0; "share": the share that is followed, which is a denser
    signal for training. Either way only a response that follows all of them is right.
    Source: Zhou et al., Instruction-Following Evaluation for Large Language Models, arXiv:2311.07911.
    """

    data_dir: str | Path | None = None
    loose: bool = False
    reward: Reward = "all"
    name: str = "ifeval"

    def __post_init__(self) -> None:
        if self.reward not in get_args(Reward):
            raise ValueError(f"IfEval.reward is {self.reward!r}; it must be one of {get_args(Reward)}")

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` prompts in random order, without repetition; only the split "test".

        Raises IsentropeError without data, for an instruction that does not exist, and without `langdetect`.
        """
        base.check_request(self.name, split, count)
        if split == "train":
            raise IsentropeError(
                f"task {self.name} is for evaluation and has no training prompts; use the split 'test'"
            )
        languages("")  # a missing package is found before anything is generated
        found = [self.example(record) for record in records(self.name, self.data_dir, "ifeval.jsonl", FIELDS)]
        return base.draw(self.name, found, split, count, base.generator(self.name, split, seed))

    def example(self, record: dict[str, Any]) -> Example:
        """The prompt of one record of the data set. Raises IsentropeError for an instruction that does not exist."""
        pairs = [list(pair) for pair in zip(record["instruction_id_list"], record["kwargs"], strict=True)]
        answer = {"key": record["key"], "instructions": pairs}
        conditions(answer)
        return Example([{"role": "user", "content": record["prompt"]}], answer, self.name)

    def score(self, completion: str, example: Example) -> Score:
        """Right if all instructions of the prompt are followed.

        The answer has one digit an instruction, 1 where it is followed ("101"). A response that is empty or has more
        than 200,000 characters is no answer.
        """
        if not completion.strip() or len(completion) > MAX_COMPLETION:
            return NO_ANSWER
        found = [is_met(condition, completion, self.loose) for condition in conditions(example.answer)]
        answer = "".join(str(int(is_followed)) for is_followed in found)
        reward = float(all(found)) if self.reward == "all" else sum(found) / len(found)
        return Score(reward, "right" if all(found) else "wrong", answer)

    def figures(self, completions: Sequence[str], example: Example) -> dict[str, tuple[float, float]]:
        """The paper's four figures for the responses to one prompt, each as (how many are followed, of how many), so
        that sums over prompts make those of a set; see `Accuracy`.
        """
        return figures(completions, example)

    def validate(self, count: int = 40, seed: int = 0) -> None:
        """Raise IsentropeError if a response made for the prompts is judged wrongly.

        On `count` prompts each instruction alone accepts a response made to meet it and rejects those made to miss it
        nearly, and a response that meets all instructions, where `construct` finds one, is right.
        """
        check(self, count, seed)


def check(task: base.Task, count: int = 40, seed: int = 0) -> None:
    """What `IfEval.validate` checks, for any task with its verifier."""
    for example in task.examples("test", count, seed):
        found = conditions(example.answer)
        for condition in found:
            check_instruction(condition)
        made = construct(found)
        if made is not None and task.score(made, example).outcome != "right":
            raise IsentropeError(f"task {task.name} rejects {base.shown(made)} for {example.answer['key']}")
        for text in NO_RESPONSES:
            if task.score(text, example).reward:
                raise IsentropeError(f"task {task.name} rewards {base.shown(text)} for {example.answer['key']}")


def conditions(answer: dict[str, Any]) -> list[Instruction]:
    """The instructions of an example's answer. Raises IsentropeError for one that does not exist."""
    return [instruction(kind, arguments) for kind, arguments in answer["instructions"]]


def followed(completion: str, example: Example) -> Followed:
    """What a completion follows, by both criteria; one of more than 200,000 characters follows nothing."""
    text = completion if len(completion) <= MAX_COMPLETION else ""
    found = conditions(example.answer)
    return Followed(tuple(is_met(c, text) for c in found), tuple(is_met(c, text, loose=True) for c in found))


def figures(completions: Sequence[str], example: Example) -> dict[str, tuple[float, float]]:
    """What `IfEval.figures` returns, for any task with its verifier."""
    results = [followed(text, example) for text in completions]
    found: dict[str, tuple[float, float]] = {}
    for name in ("strict", "loose"):
        rows = [getattr(result, name) for result in results]
        found[f"prompt_{name}"] = (float(sum(map(all, rows))), float(len(rows)))
        found[f"instruction_{name}"] = (float(sum(map(sum, rows))), float(sum(map(len, rows))))
    return found


def accuracy(results: Sequence[Followed]) -> Accuracy:
    """The paper's four figures for the results of any prompts. Raises IsentropeError without a result.

    >>> found = accuracy([Followed((True, False), (True, True)), Followed((False, False), (True, False))])
    >>> found.prompt_strict, found.prompt_loose, found.instruction_strict, found.instruction_loose
    (0.0, 0.5, 0.25, 0.75)
    """
    if not results:
        raise IsentropeError("there is no response to compute the accuracy of; give at least one")
    strict, loose = [r.strict for r in results], [r.loose for r in results]
    count = sum(map(len, strict))
    return Accuracy(
        prompt_strict=sum(map(all, strict)) / len(results),
        prompt_loose=sum(map(all, loose)) / len(results),
        instruction_strict=sum(map(sum, strict)) / count,
        instruction_loose=sum(map(sum, loose)) / count,
        prompts=len(results),
        instructions=count,
    )


def check_instruction(condition: Instruction) -> None:
    """Raise IsentropeError unless an instruction accepts its own `met` and rejects each of its `missed`."""
    text = condition.met()
    if not (is_met(condition, text) and is_met(condition, text, loose=True)):
        raise IsentropeError(f"{condition} rejects {base.shown(text)}, which meets it")
    for text in condition.missed():
        if is_met(condition, text):
            raise IsentropeError(f"{condition} accepts {base.shown(text)}, which misses it")


def construct(found: Sequence[Instruction]) -> str | None:
    """A response that meets all instructions, put together from those that meet one each; None where none is found.

    Some prompts contradict themselves by the letter, such as one that is to be repeated and forbids a word it has.
    """
    return next((text for text in _candidates(found) if all(is_met(c, text) for c in found)), None)


def _candidates(found: Sequence[Instruction]) -> Iterator[str]:
    parts = [condition.met() for condition in found]
    yield from parts
    for order, glue in itertools.product(itertools.permutations(parts), ("\n", "\n\n", " ")):
        text = glue.join(order)
        for cased in (text, text.lower(), text.upper()):
            for shaped in (cased, cased.replace(",", ";")):
                yield from (shaped, f'"{shaped.replace(chr(34), "")}"')
