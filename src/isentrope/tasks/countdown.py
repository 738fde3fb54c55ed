"""Countdown: reach a target from digits in two written steps. Every problem has several right answers."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, combinations_with_replacement, permutations

from isentrope.tasks.base import (
    NO_ANSWER,
    Example,
    Score,
    Split,
    broken_formats,
    check,
    check_request,
    draw,
    generator,
    is_held_out,
    judge,
)

DIGITS = range(1, 10)
NUM_GIVEN = 4
NUM_USED = 3
HIGHEST_TARGET = 99
NUMBER = "(0|[1-9][0-9]{0,3})"  # ASCII only, no leading zero
STEP = f"{NUMBER}([+*-]){NUMBER}={NUMBER}"
SOLUTION = re.compile(f"{STEP};{STEP}")


@dataclass(frozen=True)
class Countdown:
    """Use three of the four digits, each at most as often as it is given, to reach the target with +, - and *.

    Prompt "2,5,6,9>75:", completion "6+9=15;15*5=75". The second step uses the result of the first and one more digit,
    in either order. Results are natural numbers (0 included), targets 1 to 99. Nothing may follow the second step.
    Problems are all those with at least two different solutions; swapping the operands of + or * makes no difference
    to the canonical answer.
    answer of an example: {"numbers": [2, 5, 6, 9], "target": 75}.
    """

    name: str = "countdown"

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems of the split, with the digits in random order; equal for equal arguments."""
        check_request(self.name, split, count)
        rng = generator(self.name, split, seed)
        drawn = draw(self.name, _pool(self.name, split == "test"), split, count, rng)
        return [self._example(rng.sample(numbers, len(numbers)), target) for numbers, target in drawn]

    def _example(self, numbers: list[int], target: int) -> Example:
        prompt = f"{','.join(map(str, numbers))}>{target}:"
        references = _solutions(tuple(sorted(numbers)))[target]
        return Example(prompt, {"numbers": numbers, "target": target}, self.name, references)

    def score(self, completion: str, example: Example) -> Score:
        """Right if the whole text is two true steps from the given digits to the target.

        "wrong" if it is two steps of which anything else fails; no answer (so wrong) if it is not two steps.
        """
        found = SOLUTION.fullmatch(completion)
        if found is None:
            return NO_ANSWER
        first, second = _steps(found.groups())
        return judge(_is_solution(first, second, **example.answer), f"{_canonical(first)};{_canonical(second)}")

    def validate(self) -> None:
        """Raise IsentropeError if a reference fails, a near-miss is rewarded, or the splits overlap."""
        check(self, _near_misses)


Step = tuple[int, str, int, int]


def _steps(groups: Sequence[str]) -> tuple[Step, Step]:
    a, op, b, result, c, second_op, d, end = groups
    return (int(a), op, int(b), int(result)), (int(c), second_op, int(d), int(end))


def _apply(a: int, op: str, b: int) -> int:
    return a + b if op == "+" else a - b if op == "-" else a * b


def _is_solution(first: Step, second: Step, numbers: Sequence[int], target: int) -> bool:
    a, _, b, middle = first
    c, _, d, end = second
    if end != target or any(_apply(x, op, y) != result for x, op, y, result in (first, second)):
        return False
    given = Counter(numbers)
    return any(kept == middle and Counter((a, b, used)) <= given for kept, used in ((c, d), (d, c)))


def _canonical(step: Step) -> str:
    a, op, b, result = step
    low, high = (a, b) if op == "-" else sorted((a, b))
    return f"{low}{op}{high}={result}"


def _near_misses(example: Example) -> Iterator[str]:
    numbers, target = example.answer["numbers"], example.answer["target"]
    text = example.references[0]
    first, second = text.split(";")
    yield from broken_formats(text)
    yield f"{first};{second.rsplit('=')[0]}={target + 1}"
    if target not in numbers:
        yield f"{target}*1={target};{target}*1={target}"
        yield f"{numbers[0]}+{target}={numbers[0] + target};{numbers[0] + target}-{numbers[0]}={target}"


@cache
def _solutions(numbers: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """Every solution as written, by target, for sorted digits."""
    found: dict[int, set[str]] = {}
    for used in set(combinations(numbers, NUM_USED)):
        for target, text in _lines(used):
            found.setdefault(target, set()).add(text)
    return {target: tuple(sorted(texts)) for target, texts in found.items()}


def _lines(numbers: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    for a, b, c in set(permutations(numbers)):
        for op, second_op in ((x, y) for x in "+-*" for y in "+-*"):
            middle = _apply(a, op, b)
            for x, y in ((middle, c), (c, middle)):
                end = _apply(x, second_op, y)
                if middle >= 0 and 1 <= end <= HIGHEST_TARGET:
                    yield end, f"{a}{op}{b}={middle};{x}{second_op}{y}={end}"


@cache
def _pool(name: str, held_out: bool) -> tuple[tuple[tuple[int, ...], int], ...]:
    """All problems of one split that have at least two different solutions."""
    return tuple(
        (numbers, target)
        for numbers in combinations_with_replacement(DIGITS, NUM_GIVEN)
        for target, texts in sorted(_solutions(numbers).items())
        if len({_canonical_text(text) for text in texts}) >= 2 and is_held_out(name, f"{numbers}>{target}") == held_out
    )


def _canonical_text(text: str) -> str:
    found = SOLUTION.fullmatch(text)
    assert found is not None
    return ";".join(map(_canonical, _steps(found.groups())))
