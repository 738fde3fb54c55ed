"""Numbers in running text, found and compared exactly."""

import re
from collections.abc import Iterator
from fractions import Fraction

# ASCII digits only, and bounded: no text is slow, none makes an integer too long to convert.
SIGN = r"(?:(?<![0-9A-Za-z)\]}])-)?"
DIGITS = r"(?<![0-9A-Za-z])(?<![0-9][.,])(?:[0-9]{1,3}(?:,[0-9]{3}){1,12}|[0-9]{1,40})(?:\.[0-9]{1,40})?"
NUMBER = re.compile(rf"{SIGN}{DIGITS}(?![0-9A-Za-z])(?![.,][0-9])")
PLAIN = re.compile("0|[1-9][0-9]*")


def find_numbers(text: str) -> Iterator[str]:
    """The numbers of a text one by one, in order and canonical form.

    A hyphen after a digit, a letter or a closing bracket is no sign. Digits that touch letters are no number, nor is
    what only looks like one ("3.4.5", "1,2000").

    >>> list(find_numbers("Add $1,200.50 to -3 and get 1197.5, 10-3 is 7; not x2, 4th or 3.4.5"))
    ['2401/2', '-3', '2395/2', '10', '3', '7']
    """
    return (canonical(found[0]) for found in NUMBER.finditer(text))


def canonical(number: str) -> str:
    """A number as an exact fraction in lowest terms; equal numbers give equal texts.

    >>> canonical("72.00"), canonical("1,000"), canonical("-0.5")
    ('72', '1000', '-1/2')
    """
    return number if PLAIN.fullmatch(number) else str(Fraction(number.replace(",", "")))
