"""HumanEval: a function from its signature and docstring."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from isentrope.tasks import base, programs
from isentrope.tasks.base import Example, Score, Split
from isentrope.tasks.files import records
from isentrope.tasks.sandbox import Isolation, Sandbox, require_consent

FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
INSTRUCTION = "Complete this Python function. Reply with the whole function in one fenced block."


@dataclass(frozen=True)
class HumanEval:
    """164 functions to write, judged by running the data set's tests on them; there is no training split.

    data_dir: folder with `humaneval.jsonl`, one problem a line as published (task_id, prompt, entry_point,
    canonical_solution, test); None: the folder that ISENTROPE_DATA names.
    execute: true agrees that programs which a model wrote are run on this machine; ISENTROPE_EXECUTE_CODE=1 agrees for
    every task. Without either, using the task is an error.
    isolation, seconds: see `sandbox.Sandbox`.
    form: "chat": a message that asks for the function, for instruction-tuned models. "text": the prompt itself, to be
    continued, as in the paper.
    Source: Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374.
    """

    data_dir: str | Path | None = None
    execute: bool = False
    isolation: Isolation = "auto"
    seconds: int = 5
    form: Literal["chat", "text"] = "chat"
    name: str = "humaneval"

    def __post_init__(self) -> None:
        if self.form not in ("chat", "text"):
            raise ValueError(f"HumanEval.form is {self.form!r}; it must be 'chat' or 'text'")
        self._sandbox()

    def _sandbox(self) -> Sandbox:
        return Sandbox(isolation=self.isolation, seconds=self.seconds)

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems in random order, without repetition; only the split "test".

        Raises IsentropeError without data, without consent, and where no program can be isolated.
        """
        base.check_request(self.name, split, count)
        programs.check_request(self.name, split, self._sandbox(), self.execute)
        found = [self._example(record) for record in records(self.name, self.data_dir, "humaneval.jsonl", FIELDS)]
        return base.draw(self.name, found, split, count, base.generator(self.name, split, seed))

    def _example(self, record: dict[str, Any]) -> Example:
        prompt = record["prompt"]
        asked: base.Prompt = prompt
        if self.form == "chat":
            asked = [{"role": "user", "content": f"{INSTRUCTION}\n\n```python\n{prompt.strip()}\n```"}]
        whole = prompt + record["canonical_solution"]
        references = (f"Here it is.\n```python\n{whole}\n```\n", record["canonical_solution"])
        answer = {"id": record["task_id"], "entry": record["entry_point"], "prompt": prompt, "test": record["test"]}
        return Example(asked, answer, self.name, references)

    def score(self, completion: str, example: Example) -> Score:
        """Right if the program passes the data set's tests; see `program` and `programs.score_program`."""
        require_consent(self.name, self.execute)
        entry, prompt = example.answer["entry"], example.answer["prompt"]
        tests = f"{example.answer['test']}\n\ncheck({entry})\n"
        # The prompt's own helpers, which some tests call, come from the prompt and not from the program.
        setup = f"import random\nrandom.seed(0)\n{prompt}"
        find = partial(program, prompt=prompt, entry=entry)
        return programs.score_program(self._sandbox(), completion, find, tests, (entry,), setup)

    def validate(self) -> None:
        """Raise IsentropeError if a reference fails, or a near-miss or a cheat passes."""
        programs.check(self, _near_misses)


def program(completion: str, prompt: str, entry: str) -> str:
    """The program that a completion stands for.

    The last fenced block that defines the function (else the last block), or the whole text where there is no block;
    what the prompt defines before the function comes first, imports above all. A text or block that begins with an
    indented line continues the prompt, up to the first line that no longer belongs to the function.
    """
    block = programs.final_block(completion, entry)
    if _is_indented(completion) and not programs.defines(completion, entry):
        return prompt + programs.continuation(completion)
    text = completion if block is None else block
    if _is_indented(text):
        return prompt + programs.continuation(text)
    return f"{_before(prompt, entry)}\n{text}" if text.strip() else ""


def _is_indented(text: str) -> bool:
    return text.lstrip("\n")[:1] in (" ", "\t") and bool(text.strip())


def _before(prompt: str, entry: str) -> str:
    """The prompt up to its function."""
    found = list(re.finditer(rf"^def {re.escape(entry)}\b", prompt, re.MULTILINE))
    return prompt[: found[-1].start()] if found else prompt


def _near_misses(example: Example) -> Iterator[str]:
    reference = example.references[0]
    entry = example.answer["entry"]
    yield reference.replace(f"def {entry}", f"def {entry}_")
    yield reference.rpartition("```")[0].rpartition("return ")[0]  # cut off in the middle
    yield from programs.cheats(entry)
