"""Addition of two-digit numbers with the carry written out. One right answer."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

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

OPERANDS = range(10, 100)
SOLUTION = re.compile(r"[0-9]\+[0-9]=[0-9]{1,2};[0-9]\+[0-9](?:\+1)?=[0-9]{1,2};([1-9][0-9]{1,2})")


@dataclass(frozen=True)
class Addition:
    """Add two numbers from 10 to 99: the units, the tens with the carry if there is one, the sum.

    Prompt "47+85:", completion "7+5=12;4+8+1=13;132". The steps belong to the answer: a right sum under wrong steps is
    wrong. Nothing may follow the sum. The canonical answer is the sum. "a+b" and "b+a" are in the same split.
    answer of an example: [47, 85].
    """

    name: str = "addition"

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems of the split; equal for equal arguments."""
        check_request(self.name, split, count)
        rng = generator(self.name, split, seed)
        return [self._example(*pair) for pair in draw(self.name, _pool(self.name, split == "test"), split, count, rng)]

    def _example(self, a: int, b: int) -> Example:
        return Example(f"{a}+{b}:", [a, b], self.name, (written_sum(a, b),))

    def score(self, completion: str, example: Example) -> Score:
        """Right if the whole text is the two steps and the sum; no answer (so wrong) if it does not have that form."""
        found = SOLUTION.fullmatch(completion)
        return judge(completion == written_sum(*example.answer), found[1]) if found else NO_ANSWER

    def validate(self) -> None:
        """Raise IsentropeError if a reference fails, a near-miss is rewarded, or the splits overlap."""
        check(self, _near_misses)


def written_sum(a: int, b: int) -> str:
    """The one right completion for two numbers from 10 to 99.

    >>> written_sum(47, 85), written_sum(42, 17)
    ('7+5=12;4+8+1=13;132', '2+7=9;4+1=5;59')
    """
    units = a % 10 + b % 10
    carry = "+1" if units > 9 else ""
    return f"{a % 10}+{b % 10}={units};{a // 10}+{b // 10}{carry}={(a + b) // 10};{a + b}"


def _near_misses(example: Example) -> Iterator[str]:
    a, b = example.answer
    text = written_sum(a, b)
    steps, total = text.rsplit(";", 1)
    yield from broken_formats(text)
    yield from (f"{steps};{a + b + 1}", f"{steps};0{total}", f"0+0=0;0+0=0;{total}")
    yield written_sum(a, b - 1 if b > 10 else b + 1)


@cache
def _pool(name: str, held_out: bool) -> tuple[tuple[int, int], ...]:
    """All ordered pairs of one split."""
    return tuple(
        (a, b) for a in OPERANDS for b in OPERANDS if is_held_out(name, f"{min(a, b)}+{max(a, b)}") == held_out
    )
