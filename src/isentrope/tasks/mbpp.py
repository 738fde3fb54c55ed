"""MBPP: a function from one sentence and the tests it has to pass."""

import ast
import builtins
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isentrope.tasks import base, programs
from isentrope.tasks.base import Example, Score, Split
from isentrope.tasks.files import records
from isentrope.tasks.sandbox import Isolation, Sandbox, require_consent

FIELDS = ("task_id", "text", "code", "test_list", "test_setup_code")
BROKEN = frozenset({367})  # its tests use a class that neither they nor the reference define
INSTRUCTION = "Write the function in Python. Reply with the whole code in one fenced block."


@dataclass(frozen=True)
class Mbpp:
    """499 small programming problems, judged by running the data set's tests; there is no training split here.

    data_dir: folder with `mbpp_test.jsonl`, one problem a line as published (task_id, text, code, test_list,
    test_setup_code); None: the folder that ISENTROPE_DATA names. Problem 367 is left out: its tests cannot run.
    execute: true agrees that programs which a model wrote are run on this machine; ISENTROPE_EXECUTE_CODE=1 agrees for
    every task. Without either, using the task is an error.
    isolation, seconds: see `sandbox.Sandbox`.
    shown_tests: how many of the usually three tests the prompt shows; the first one names the function, so at least 1.
    With all of them, as in the paper, a program may answer exactly the tests; with fewer it has to guess the rest.
    Source: Austin et al., Program Synthesis with Large Language Models, arXiv:2108.07732.
    """

    data_dir: str | Path | None = None
    execute: bool = False
    isolation: Isolation = "auto"
    seconds: int = 5
    shown_tests: int = 3
    name: str = "mbpp"

    def __post_init__(self) -> None:
        if self.shown_tests < 1:
            raise ValueError(f"Mbpp.shown_tests is {self.shown_tests}; it must be at least 1, which names the function")
        self._sandbox()

    def _sandbox(self) -> Sandbox:
        return Sandbox(isolation=self.isolation, seconds=self.seconds)

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems in random order, without repetition; only the split "test".

        Raises IsentropeError without data, without consent, and where no program can be isolated.
        """
        base.check_request(self.name, split, count)
        programs.check_request(self.name, split, self._sandbox(), self.execute)
        found = records(self.name, self.data_dir, "mbpp_test.jsonl", FIELDS)
        pool = [self.example(record) for record in found if record["task_id"] not in BROKEN]
        return base.draw(self.name, pool, split, count, base.generator(self.name, split, seed))

    def example(self, record: dict[str, Any]) -> Example:
        """The problem of one record of the data set."""
        tests: list[str] = record["test_list"]
        shown = "\n".join(tests[: self.shown_tests])
        content = f"{record['text']}\n{INSTRUCTION} It has to pass these tests:\n\n```python\n{shown}\n```"
        code = record["code"].replace("\r\n", "\n")
        answer = {
            "id": record["task_id"],
            "setup": record["test_setup_code"],
            "tests": tests,
            "names": tested_names(tests, code),
        }
        return Example([{"role": "user", "content": content}], answer, self.name, (f"```python\n{code}\n```",))

    def score(self, completion: str, example: Example) -> Score:
        """Right if the program passes all tests of the problem, those the prompt does not show included.

        The program is the last fenced block that defines the function, else the last block, else the whole text.
        See `programs.score_program`.
        """
        require_consent(self.name, self.execute)
        names, tests = example.answer["names"], "\n".join(example.answer["tests"])

        def find(text: str) -> str:
            block = programs.final_block(text, names[-1])
            return text if block is None else block

        return programs.score_program(self._sandbox(), completion, find, tests, names, example.answer["setup"])

    def validate(self) -> None:
        """Raise IsentropeError if a reference fails, or a near-miss or a cheat passes."""
        programs.check(self, near_misses)


def tested_names(tests: list[str], code: str) -> list[str]:
    r"""What the tests use of the program, the function that is called outermost last.

    It is what the reference code defines, so that one that replaces a built-in counts too; whatever else the tests name
    and Python does not.

    >>> tested_names(["assert most([Pair(1, 2)]) == set()"], "class Pair: ...\ndef most(pairs): ...")
    ['Pair', 'most']
    """
    found = [node for test in tests for node in ast.walk(_parsed(test)) if isinstance(node, ast.Name)]
    defined = {node.name for node in _parsed(code).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    used = {node.id: None for node in found if node.id in defined or not hasattr(builtins, node.id)}
    return list(reversed(used))


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():  # some references write a backslash that begins no escape sequence
        warnings.simplefilter("ignore")
        return ast.parse(text)


def near_misses(example: Example) -> Iterator[str]:
    """Programs that do not pass: the reference under another name, and cheats."""
    name = example.answer["names"][-1]
    yield example.references[0].replace(f"def {name}", f"def {name}_")
    yield from programs.cheats(name)
