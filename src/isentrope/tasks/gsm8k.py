"""Word problems in the style of GSM8K, read from a folder, with a verifier of the final number."""

import json
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks.base import (
    MAX_COMPLETION,
    NO_ANSWER,
    Example,
    Score,
    Split,
    check,
    check_request,
    draw,
    generator,
    judge,
)
from isentrope.tasks.numbers import NUMBER, canonical, find_numbers

VARIABLE = "ISENTROPE_DATA"
INSTRUCTION = 'Solve the problem step by step. Finish with a line of the form "#### number".'
MARKER = re.compile(r"####|\\boxed\{")
AFTER_HASHES = re.compile(rf"[ \t]*\$?({NUMBER.pattern})([^\n]*)")
IN_BOX = re.compile(rf"[ \t]*\\?\$?({NUMBER.pattern})[ \t]*(?:\\?%)?\.?[ \t]*\}}")


@dataclass(frozen=True)
class Gsm8k:
    """Word problems with a number as the answer, as chat messages.

    data_dir: folder with `gsm8k_train.jsonl` and `gsm8k_test.jsonl` (or `train.jsonl` and `test.jsonl`), one problem a
    line: {"problem", "answer"}, or {"question", "answer"} with the number after "####" as the data set is published.
    None: the folder that the environment variable ISENTROPE_DATA names. The splits are the data set's own.
    answer of an example: the number in canonical form, such as "72".
    Source: Cobbe et al., Training Verifiers to Solve Math Word Problems, arXiv:2110.14168.
    """

    data_dir: str | Path | None = None
    name: str = "gsm8k"

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems of the split in random order; equal for equal arguments and files.

        Raises IsentropeError if the folder, the file or a field is missing.
        """
        check_request(self.name, split, count)
        return draw(self.name, _read(self.name, self._file(split)), split, count, generator(self.name, split, seed))

    def _file(self, split: Split) -> Path:
        folder = self.data_dir or os.environ.get(VARIABLE)
        if not folder:
            raise IsentropeError(f"task {self.name} needs a folder of problems: set {VARIABLE} or data_dir")
        candidates = [Path(folder) / f"gsm8k_{split}.jsonl", Path(folder) / f"{split}.jsonl"]
        for path in candidates:
            if path.is_file():
                return path
        raise IsentropeError(f"task {self.name}: {folder} holds neither {candidates[0].name} nor {candidates[1].name}")

    def score(self, completion: str, example: Example) -> Score:
        r"""Right if the final number equals the answer exactly ("72", "72.0", "$72" are equal).

        The final number stands directly after the last "####" or in the last \boxed{}, whichever comes later; a line
        after "####" with a second number is no answer, so that two guesses earn nothing. Without either mark it is the
        last number of the text. No answer (so wrong) if there is no such number, or the text has more than 200,000
        characters.
        """
        found = final_number(completion) if len(completion) <= MAX_COMPLETION else None
        return NO_ANSWER if found is None else judge(found == example.answer, found)

    def validate(self) -> None:
        """Raise IsentropeError if a reference fails, a near-miss is rewarded, or the splits overlap."""
        check(self, _near_misses)


def final_number(text: str) -> str | None:
    r"""The number a solution ends with, in canonical form; None if there is none.

    >>> final_number("6 * 12 = 72\n#### 72"), final_number(r"so \boxed{1,000}."), final_number("That is 18 eggs.")
    ('72', '1000', '18')
    >>> final_number("#### 72 or 73") is final_number("#### none") is final_number("") is None
    True
    """
    marks = list(MARKER.finditer(text))
    if not marks:
        last = deque(NUMBER.finditer(text), maxlen=1)
        return canonical(last[0][0]) if last else None
    mark = marks[-1]
    found = (AFTER_HASHES if mark[0] == "####" else IN_BOX).match(text, mark.end())
    if found is None or (mark[0] == "####" and next(find_numbers(found[2]), None) is not None):
        return None
    return canonical(found[1])


def _near_misses(example: Example) -> Iterator[str]:
    right = example.answer
    yield from (f"#### {right}1", f"#### {right} or 0.5", f"#### {right}\n#### 0.5", f"{right} and then 0.5")
    yield from (f"\\boxed{{{right}}} \\boxed{{0.5}}", f"\\boxed{{{right}, 0.5}}", f"#### x{right}", f"#### {right}.25")


@cache
def _read(task: str, path: Path) -> tuple[Example, ...]:
    lines = path.read_text(encoding="utf-8").split("\n")  # splitlines also breaks at U+2028, which JSON allows
    return tuple(_example(task, f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip())


def _example(task: str, place: str, line: str) -> Example:
    try:
        record: dict[str, Any] = json.loads(line)
        problem, answer = record.get("problem") or record["question"], str(record["answer"])
    except (ValueError, KeyError, AttributeError) as error:
        raise IsentropeError(f"{place} is not a problem with an answer: {error!r}") from error
    number = final_number(answer)
    if number is None:
        raise IsentropeError(f"{place}: the answer {answer[:60]!r} has no final number")
    solution = record.get("solution") or (answer if "####" in answer else f"#### {answer}")
    return Example([{"role": "user", "content": f"{problem}\n{INSTRUCTION}"}], number, task, (str(solution),))
