"""Easy questions in plain English, for models that already read it. The content is scored, not a format."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

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
    is_held_out,
    judge,
)
from isentrope.tasks.numbers import find_numbers

OPERANDS = range(1, 13)
LARGEST_COMPARED = 100
QUESTIONS = {
    "+": ("What is {a} + {b}?", "What is {a} plus {b}?", "Add {a} and {b}."),
    "-": ("What is {a} - {b}?", "What is {a} minus {b}?", "Take {b} away from {a}."),
    "*": ("What is {a} times {b}?", "Multiply {a} by {b}."),
}
COMPARISONS = ("Which is larger, {a} or {b}?", "Which number is bigger: {a} or {b}?")


@dataclass(frozen=True)
class ArithmeticWords:
    """One operation on two numbers from 1 to 12, asked in words, as a chat message.

    The answer is the first number of the completion that is not one of the two asked about, so that "3 + 4 is 7" counts
    and a list of guesses does not. Problems whose result is one of the two numbers are left out.
    answer of an example: {"asked": [3, 4], "result": 7}.
    """

    name: str = "arithmetic_words"

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems of the split, each in a random wording; equal for equal arguments."""
        check_request(self.name, split, count)
        rng = generator(self.name, split, seed)
        drawn = draw(self.name, _operations(self.name, split == "test"), split, count, rng)
        return [self._example(a, op, b, rng.choice(QUESTIONS[op])) for a, op, b in drawn]

    def _example(self, a: int, op: str, b: int, question: str) -> Example:
        result = _result(a, op, b)
        references = (str(result), f"The answer is {result}.", f"{a} and {b}: {result}. Or is it {result + 1}?")
        answer = {"asked": [a, b], "result": result}
        return Example([{"role": "user", "content": question.format(a=a, b=b)}], answer, self.name, references)

    def score(self, completion: str, example: Example) -> Score:
        """Right if the first new number is the result; no answer (so wrong) if there is no new number."""
        if len(completion) > MAX_COMPLETION:
            return NO_ANSWER
        asked = set(map(str, example.answer["asked"]))
        new = next((number for number in find_numbers(completion) if number not in asked), None)
        return NO_ANSWER if new is None else judge(new == str(example.answer["result"]), new)

    def validate(self) -> None:
        """Raise IsentropeError if a reference fails, a near-miss is rewarded, or the splits overlap."""
        check(self, _near_results)


def _result(a: int, op: str, b: int) -> int:
    return a + b if op == "+" else a - b if op == "-" else a * b


def _near_results(example: Example) -> Iterator[str]:
    (a, b), result = example.answer["asked"], example.answer["result"]
    yield from (f"{a}", f"{a} and {b}", f"{result + 100}, no, {result}", f"{result}1", f"x{result}", f"{result}.5")
    yield " ".join(str(number) for number in range(200, 0, -1))


@cache
def _operations(name: str, held_out: bool) -> tuple[tuple[int, str, int], ...]:
    return tuple(
        (a, op, b)
        for op in QUESTIONS
        for a in OPERANDS
        for b in OPERANDS
        if _result(a, op, b) not in (a, b)
        and _result(a, op, b) > 0
        and is_held_out(name, f"{op}{min(a, b)},{max(a, b)}") == held_out
    )


@dataclass(frozen=True)
class Larger:
    """Which of two different numbers from 1 to 100 is larger, as a chat message.

    The answer is the first of the two numbers that the completion mentions, so that mentioning both is no way out. A
    policy that always repeats one of them is right half of the time.
    answer of an example: {"asked": [17, 42], "result": 42}.
    """

    name: str = "larger"

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems of the split, each in a random wording; equal for equal arguments."""
        check_request(self.name, split, count)
        rng = generator(self.name, split, seed)
        drawn = draw(self.name, _comparisons(self.name, split == "test"), split, count, rng)
        return [self._example(a, b, rng.choice(COMPARISONS)) for a, b in drawn]

    def _example(self, a: int, b: int, question: str) -> Example:
        low, high = sorted((a, b))
        references = (str(high), f"{high} is larger than {low}.", f"The larger number is {high}")
        answer = {"asked": [a, b], "result": high}
        return Example([{"role": "user", "content": question.format(a=a, b=b)}], answer, self.name, references)

    def score(self, completion: str, example: Example) -> Score:
        """Right if the larger number is mentioned first; no answer (so wrong) if neither is mentioned."""
        if len(completion) > MAX_COMPLETION:
            return NO_ANSWER
        asked = set(map(str, example.answer["asked"]))
        first = next((number for number in find_numbers(completion) if number in asked), None)
        return NO_ANSWER if first is None else judge(first == str(example.answer["result"]), first)

    def validate(self) -> None:
        """Raise IsentropeError if a reference fails, a near-miss is rewarded, or the splits overlap."""
        check(self, _near_comparisons)


def _near_comparisons(example: Example) -> Iterator[str]:
    low, high = sorted(example.answer["asked"])
    yield from (
        f"{low}",
        f"{low} or {high}",
        f"{low} is smaller than {high}",
        f"x{high}",
        f"{high}0",
        f"{high}.5",
        "both",
    )


@cache
def _comparisons(name: str, held_out: bool) -> tuple[tuple[int, int], ...]:
    numbers = range(1, LARGEST_COMPARED + 1)
    return tuple(
        (a, b) for a in numbers for b in numbers if a != b and is_held_out(name, f"{min(a, b)},{max(a, b)}") == held_out
    )
