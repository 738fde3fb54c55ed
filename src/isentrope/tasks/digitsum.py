"""Digit sums: three digits that add up to a number, some digits forbidden. Every problem has several right answers."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

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

HIGHEST_SUM = 27
NUM_FORBIDDEN = 3
NUMBER = "(0|[1-9][0-9]?)"  # ASCII only, no leading zero
SOLUTION = re.compile(rf"([0-9])\+([0-9])={NUMBER};{NUMBER}\+([0-9])={NUMBER}")


@dataclass(frozen=True)
class DigitSum:
    """Three digits in a row that add up to the target, without the forbidden ones; the sums are written out.

    Prompt "17!038:" (sum 17, without 0, 3 and 8), completion "4+9=13;13+4=17". Digits may repeat, and their order
    makes a different answer: the canonical answer is "494". Nothing may follow the second step.
    answer of an example: {"target": 17, "without": [0, 3, 8]}.
    """

    name: str = "digitsum"

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems of the split; equal for equal arguments."""
        check_request(self.name, split, count)
        rng = generator(self.name, split, seed)
        return [
            self._example(*problem) for problem in draw(self.name, _pool(self.name, split == "test"), split, count, rng)
        ]

    def _example(self, target: int, without: tuple[int, ...]) -> Example:
        references = tuple(f"{a}+{b}={a + b};{a + b}+{c}={target}" for a, b, c in _triples(target, without))
        prompt = f"{target}!{''.join(map(str, without))}:"
        return Example(prompt, {"target": target, "without": list(without)}, self.name, references)

    def score(self, completion: str, example: Example) -> Score:
        """Right if the whole text is two true sums of allowed digits that reach the target.

        "wrong" if it is two sums of which anything else fails; no answer (so wrong) if it is not two sums.
        """
        found = SOLUTION.fullmatch(completion)
        if found is None:
            return NO_ANSWER
        a, b, middle, again, c, end = map(int, found.groups())
        is_true = a + b == middle == again and again + c == end == example.answer["target"]
        answer = f"{a}{b}{c}" if a + b == middle == again and again + c == end else completion
        return judge(is_true and not {a, b, c} & set(example.answer["without"]), answer)

    def validate(self) -> None:
        """Raise IsentropeError if a reference fails, a near-miss is rewarded, or the splits overlap."""
        check(self, _near_misses)


def _near_misses(example: Example) -> Iterator[str]:
    target, without = example.answer["target"], example.answer["without"][0]
    text = example.references[0]
    first, second = text.split(";")
    yield from broken_formats(text)
    yield from (f"{first};0+0={target}", f"{first};{second.split('=')[0]}={target + 1}")
    for a, b, c in _triples(target, ()):
        if without in (a, b, c):
            yield f"{a}+{b}={a + b};{a + b}+{c}={target}"


@cache
def _triples(target: int, without: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    allowed = [digit for digit in range(10) if digit not in without]
    return tuple(triple for triple in product(allowed, repeat=3) if sum(triple) == target)


@cache
def _pool(name: str, held_out: bool) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """All problems of one split that have at least two right answers."""
    return tuple(
        (target, without)
        for target in range(HIGHEST_SUM + 1)
        for without in combinations(range(10), NUM_FORBIDDEN)
        if len(_triples(target, without)) >= 2 and is_held_out(name, f"{target}!{without}") == held_out
    )
