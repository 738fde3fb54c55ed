r"""Problem sets of mathematics with a short answer: AIME, AMC, HMMT, MATH-500."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks.base import FULL_WIDTH, TEN_MILLION, Example, Score, Split, check, check_request, draw, generator
from isentrope.tasks.hub import Source, published
from isentrope.tasks.math_answers import grade
from isentrope.tasks.math_values import rational

INSTRUCTION = r"Reason step by step, and put your final answer within \boxed{}."
SOURCES = {
    "aime24": Source(("aime24.jsonl",), "HuggingFaceH4/aime_2024", "train"),
    "aime25": Source(("aime25.jsonl",), "math-ai/aime25", "test"),
    "hmmt_feb_2025": Source(("hmmt_feb_2025.jsonl",), "MathArena/hmmt_feb_2025", "train"),
    "amc23": Source(("amc23.jsonl",), "math-ai/amc23", "test"),
    "math500": Source(("math500.jsonl",), "HuggingFaceH4/MATH-500", "test"),
}


@dataclass(frozen=True)
class MathProblems:
    r"""Competition problems as chat messages; all are test problems, to train on none of them.

    name: "aime24", "aime25" (30 problems each, answers from 0 to 999), "hmmt_feb_2025" (30), "amc23" (40) or "math500"
    (500).
    data_dir: folder with NAME.jsonl, one problem a line: {"problem", "answer"}, the answer in LaTeX. None: the folder
    that the environment variable ISENTROPE_DATA names, else the set is loaded from the hub with the package datasets.
    timeout: seconds of CPU time that the verifier may spend on one expression. workers: processes that it starts at
    the most in each process that scores.
    answer of an example: the gold answer in LaTeX, such as "\\frac{1}{2}".
    Source: Mathematical Association of America, American Invitational Mathematics Examination 2024 and 2025, American
    Mathematics Competitions 2023; Harvard-MIT Mathematics Tournament, February 2025; Lightman et al., Let's Verify Step
    by Step, arXiv:2305.20050 (the 500 problems) with Hendrycks et al., arXiv:2103.03874 (MATH).
    """

    name: str = "math500"
    data_dir: str | Path | None = None
    timeout: float = 5.0
    workers: int = 2

    def __post_init__(self) -> None:
        if self.name not in SOURCES:
            raise ValueError(f"MathProblems.name is {self.name!r}; it must be one of {', '.join(SOURCES)}")
        if not self.timeout > 0 or self.workers < 1:
            raise ValueError(
                f"MathProblems.timeout is {self.timeout} and workers is {self.workers}; they must be above 0"
            )

    @property
    def parallel(self) -> int:
        """Completions that it can score at the same time, in threads."""
        return self.workers

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems in random order, without repetition; only the split "test".

        Raises IsentropeError for the split "train", for more problems than there are, and where the data are missing.
        """
        check_request(self.name, split, count)
        if split == "train":
            raise IsentropeError(
                f"task {self.name} is for evaluation: all its problems are in the split 'test'; train on another task"
            )
        return draw(self.name, self._all(), split, count, generator(self.name, split, seed))

    def _all(self) -> list[Example]:
        found = published(self.name, self.data_dir, SOURCES[self.name])
        return [_example(self.name, i, record) for i, record in enumerate(found, 1)]

    def score(self, completion: str, example: Example) -> Score:
        r"""Right if the final answer equals the gold one; `math_answers.grade` says how.

        Wrong without a final answer. "unscored" if the verifier ran out of time or memory over it.
        """
        return grade(completion, example.answer, timeout=self.timeout, workers=self.workers)

    def validate(self) -> None:
        """Raise IsentropeError if a gold answer is not right, or a near-miss is rewarded."""
        check(self, near_misses, count=min(40, len(self._all())), splits=("test",))


def _example(task: str, number: int, record: dict[str, Any]) -> Example:
    problem, answer = record.get("problem") or record.get("question"), record.get("answer")
    if not problem or answer in (None, ""):
        raise IsentropeError(f"task {task}: problem {number} lacks a problem or an answer; it has {sorted(record)}")
    gold = str(answer)
    references = (f"\\boxed{{{gold}}}", *([str(record["solution"])] if record.get("solution") else []))
    return Example([{"role": "user", "content": f"{problem}\n{INSTRUCTION}"}], gold, task, references)


def near_misses(example: Example) -> Iterator[str]:
    """Completions that hold the gold answer, or nearly, and do not give it."""
    gold, other = example.answer, "12345678"
    box, wrong = f"\\boxed{{{gold}}}", f"\\boxed{{{other}}}"
    yield from (wrong, f"It looks like {gold} at first, but I do not know.", f"{box} was a guess, it is {wrong}")
    yield from (f"{box} or {wrong}", f"{box}, {wrong}", f"\\boxed{{{gold}, {other}}}", f"#### {gold} or {other}")
    yield from (
        "\\boxed{}",
        "\\boxed{ }",
        f"\\boxed{{{gold}",
        f"{box} \\boxed{{}}",
        f"\\boxed{{{gold}" + "+0" * 600 + "}",
    )
    yield box + " and so on" * (TEN_MILLION // 10)
    if any(digit.isdigit() for digit in gold):
        yield f"\\boxed{{{gold.translate(FULL_WIDTH)}}}"
    if rational(gold) is not None:
        yield from (f"\\boxed{{{gold}+1}}", f"\\boxed{{{gold}x+1}}", f"\\boxed{{{gold} {gold}}}")
    if gold.isdigit():
        yield from (f"\\boxed{{{gold}1}}", f"\\boxed{{{gold}.5}}", f"\\boxed{{1{gold}}}", f"The answer is {gold}1.")
