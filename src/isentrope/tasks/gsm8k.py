"""Word problems in the style of GSM8K, with a verifier of the final number."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks.base import (
    FULL_WIDTH,
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
from isentrope.tasks.hub import Source, published
from isentrope.tasks.numbers import NUMBER, canonical, find_numbers

MAX_END = 200  # characters in which a text without a mark must end with its number
INSTRUCTION = 'Solve the problem step by step. Finish with a line of the form "#### number".'
MARKER = re.compile(r"####|\\boxed\{")
AFTER_HASHES = re.compile(rf"[ \t]*\$?({NUMBER.pattern})([^\n]*)")
NO_UNIT = "and|or|but|is|was|are|were|then|not|so|in|at|on|of|once|before|after|as|to"
UNIT = rf"(?:\\text\{{ ?)?(?!(?:{NO_UNIT})\b)[A-Za-z]+\}}?"
AT_THE_END = re.compile(rf"({NUMBER.pattern})[ \t]*(?:\\?%)?(?:[ \t]*{UNIT}){{0,2}}[ \t$.!*]*\s*$")
IN_BOX = re.compile(rf"[ \t]*\\?\$?({NUMBER.pattern})[ \t]*(?:\\?%)?\.?[ \t]*\}}")


@dataclass(frozen=True)
class Gsm8k:
    """Word problems with a number as the answer, as chat messages.

    data_dir: folder with `gsm8k_train.jsonl` and `gsm8k_test.jsonl` (or `train.jsonl` and `test.jsonl`), one problem a
    line: {"problem", "answer"}, or {"question", "answer"} with the number after "####" as the data set is published.
    None: the folder that the environment variable ISENTROPE_DATA names, else openai/gsm8k is loaded from the hub with
    the package datasets. The splits are the data set's own.
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
        source = Source((f"gsm8k_{split}.jsonl", f"{split}.jsonl"), "openai/gsm8k", split, "main")
        found = published(self.name, self.data_dir, source)
        pool = [_example(self.name, f"{split} problem {i}", record) for i, record in enumerate(found, 1)]
        return draw(self.name, pool, split, count, generator(self.name, split, seed))

    def score(self, completion: str, example: Example) -> Score:
        r"""Right if the final number equals the answer exactly ("72", "72.0", "$72" are equal).

        The final number stands directly after the last "####" or in the last \boxed{}, whichever comes later; a line
        after "####" with a second number is no answer, so that two guesses earn nothing. Without either mark it is the
        number with which the text ends, two words of units aside; one that only occurs on the way is none. No answer
        (so wrong) if there is no such number, or the text has more than 200,000 characters.
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
    >>> final_number("#### 72 or 73") is final_number("I had 72 once, but not any more") is final_number("") is None
    True
    """
    marks = list(MARKER.finditer(text))
    if not marks:
        last = AT_THE_END.search(text[-MAX_END:])
        return canonical(last[1]) if last else None
    mark = marks[-1]
    found = (AFTER_HASHES if mark[0] == "####" else IN_BOX).match(text, mark.end())
    if found is None or (mark[0] == "####" and next(find_numbers(found[2]), None) is not None):
        return None
    return canonical(found[1])


def _near_misses(example: Example) -> Iterator[str]:
    right = example.answer
    yield from (f"#### {right}1", f"#### {right} or 0.5", f"#### {right}\n#### 0.5", f"{right} and then 0.5")
    yield from (f"I had {right} once, but I cannot say what it is now.", f"#### {right.translate(FULL_WIDTH)}", "####")
    yield from (f"\\boxed{{{right}}} \\boxed{{0.5}}", f"\\boxed{{{right}, 0.5}}", f"#### x{right}", f"#### {right}.25")


def _example(task: str, place: str, record: dict[str, Any]) -> Example:
    problem, answer = record.get("problem") or record.get("question"), str(record.get("answer", ""))
    number = final_number(answer)
    if not problem or number is None:
        raise IsentropeError(
            f"task {task}, {place}: it needs a problem (or question) and an answer with a final number; "
            f"found the fields {sorted(record)} and the answer {answer[:60]!r}"
        )
    solution = record.get("solution") or (answer if "####" in answer else f"#### {answer}")
    return Example([{"role": "user", "content": f"{problem}\n{INSTRUCTION}"}], number, task, (str(solution),))
