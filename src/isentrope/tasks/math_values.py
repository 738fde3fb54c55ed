r"""What an expression is worth: plain rational numbers here and at once, everything else in a worker process.

Two expressions are equal if they have the same value, whatever their form: 1/2, 0.5 and \frac{3}{6} are one. Decimals
are the fractions that they write down, so 0.333 is not 1/3.
"""

import importlib.util
import re
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks.workers import Pool

MEMORY = 1 << 30  # bytes of address space of a worker; it needs 300 MB to start
MAX_KEPT = 100_000  # values in memory; then they are forgotten all at once
MAX_DIGITS = 400  # of a number that is read here
SAME = Decimal("1e-30")  # relative difference of two values of 40 digits that are one number
PRECISE = Context(prec=60, Emin=-999_999_999, Emax=999_999_999)

UNSIGNED = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
INTEGER = r"[0-9]+"
SIMPLE = re.compile(rf"[+-]?\s*{UNSIGNED}")
RATIO = re.compile(
    rf"([+-]?)\s*(?:\\frac\{{\s*([+-]?{UNSIGNED})\s*\}}\{{\s*([+-]?{UNSIGNED})\s*\}}|({UNSIGNED})\s*/\s*({UNSIGNED}))"
)
MIXED = re.compile(rf"([+-]?)\s*({INTEGER})\s*(?:\\frac\{{({INTEGER})\}}\{{({INTEGER})\}}|\s({INTEGER})/({INTEGER}))")
SCIENTIFIC = re.compile(
    rf"([+-]?{UNSIGNED})\s*(?:(?:\\times|\\cdot)\s*10\s*\^\s*\{{?\s*|[eE])([+-]?[0-9]{{1,3}})\s*\}}?"
)
REPEATING = re.compile(r"([+-]?)([0-9]*)\.([0-9]*)\\(?:overline|bar)\{([0-9]+)\}")
SPACED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?: [0-9]{3})+")
TWO_NUMBERS = re.compile(r"[0-9.]\s+[0-9.]")
DECIMAL = re.compile(r"([0-9]*)\.([0-9]+)")
BEFORE_FRACTION = re.compile(r"([0-9])\s*(?=\\frac)")


class Undecided(Exception):
    """Whether two expressions are equal could not be found out; the message is the reason in a few words."""


@dataclass(frozen=True)
class Value:
    """The value of an expression.

    exact: where it is rational. digits: else, 40 digits of its value at each of the fixed points at which the variables
    are evaluated, "?" where it has none; one point if there are no variables. symbols: the variables' names.
    is_valid: False for what is no expression at all.
    """

    exact: Fraction | None = None
    digits: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    is_valid: bool = True


INVALID = Value(is_valid=False)
NO_VALUE = Value(digits=("none",))  # 1/0: an expression, but no number
INFINITE = {"\\infty": Value(digits=("inf",)), "-\\infty": Value(digits=("-inf",))}


def rational(text: str) -> Fraction | None:
    r"""The value of a plain number in any usual spelling, None for anything else.

    Integers, decimals (exactly as written), fractions, mixed numbers (the fraction below 1), powers of ten, repeating
    decimals, thousands in groups. Leading zeros do not matter.

    >>> [str(rational(t)) for t in ("007", ".50", r"\frac{-6}{4}", r"1\frac{4}{5}", r"6.72\times 10^{-5}", "10 080")]
    ['7', '1/2', '-3/2', '9/5', '21/312500', '10080']
    >>> rational(r"\sqrt{4}") is rational("1/0") is rational("3 4") is None
    True
    """
    text = text.strip()
    if len(text) > MAX_DIGITS:
        return None
    if SIMPLE.fullmatch(text):
        return Fraction(text.replace(" ", "").rstrip("."))
    if found := RATIO.fullmatch(text):
        return _divided(found[1], found[2] or found[4], found[3] or found[5])
    if found := MIXED.fullmatch(text):
        return _mixed(found[1], found[2], found[3] or found[5], found[4] or found[6])
    if found := SCIENTIFIC.fullmatch(text):
        return Fraction(found[1].rstrip(".")) * Fraction(10) ** int(found[2])
    if found := REPEATING.fullmatch(text):
        return _repeating(*found.groups())
    return Fraction(text.replace(" ", "")) if SPACED.fullmatch(text) else None


def _divided(sign: str, above: str, below: str) -> Fraction | None:
    divisor = Fraction(below.rstrip("."))
    return Fraction(above.rstrip(".")) / divisor * (-1 if sign == "-" else 1) if divisor else None


def _mixed(sign: str, whole: str, above: str, below: str) -> Fraction | None:
    if not int(above) < int(below):
        return None
    return (int(whole) + Fraction(int(above), int(below))) * (-1 if sign == "-" else 1)


def _repeating(sign: str, whole: str, start: str, period: str) -> Fraction:
    value = Fraction(int(whole + start or 0)) + Fraction(int(period), 10 ** len(period) - 1)
    return value / 10 ** len(start) * (-1 if sign == "-" else 1)


class Values:
    """The values of expressions, remembered; what is no plain number is asked of a pool of workers."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._known: dict[str, Value] = {}

    def __call__(self, latex: str) -> Value:
        """The value of an expression.

        Raises WorkerLost if the worker ran out of time or memory, which is not remembered.
        """
        exact = rational(latex)
        if exact is not None:
            return Value(exact)
        if latex not in self._known:
            found = INFINITE.get(latex.replace(" ", "")) or self._asked(latex)
            if len(self._known) >= MAX_KEPT:
                self._known = {}
            self._known[latex] = found
        return self._known[latex]

    def _asked(self, latex: str) -> Value:
        text = prepared(latex)
        if text is None:
            return INVALID
        reply = self._ask({"value": text})
        if reply.get("error") == "syntax":
            return INVALID
        if reply.get("error") == "undefined":
            return NO_VALUE
        if "error" in reply:
            return Value(digits=("?",))
        exact = Fraction(reply["exact"]) if reply["exact"] else None
        return Value(exact, tuple(reply["digits"]), tuple(reply["symbols"]))

    def agree(self, gold: str, candidate: str) -> bool:
        """math-verify's verdict, for forms that are not taken apart here. Raises what a call raises."""
        return bool(self._ask({"gold": gold, "candidate": candidate}).get("equal", False))

    def _ask(self, request: dict[str, str]) -> dict[str, Any]:
        if importlib.util.find_spec("math_verify") is None:
            raise IsentropeError(
                "an answer that is no plain number needs the package math-verify; pip install 'isentrope[tasks]'"
            )
        return self.pool.ask(request)


def prepared(latex: str) -> str | None:
    r"""The expression as the parser reads it rightly: decimals as fractions, factors marked; None if it makes no sense.

    The parser would add two numbers side by side, round decimals, and read what it does not know as a product.

    >>> prepared("3 4") is prepared("2+") is None
    True
    >>> prepared("0.5x"), prepared(r"2\frac{x}{3}")
    ('\\frac{05}{10}x', '2\\cdot \\frac{x}{3}')
    """
    if TWO_NUMBERS.search(latex) or "\\text" in latex or "=" in latex or re.search(r"[-+*/^_]\s*$", latex):
        return None
    text = BEFORE_FRACTION.sub(r"\1\\cdot ", latex)
    return DECIMAL.sub(lambda found: f"\\frac{{{found[1]}{found[2]}}}{{1{'0' * len(found[2])}}}", text)


def same_value(a: Value, b: Value, divisor: int = 1) -> bool:
    """True if a equals b / divisor.

    At the last of the fixed points variables are negative; where only one of two real expressions is real there, that
    point does not count: ln(x^2) and 2 ln(x) are equal.
    Raises Undecided if neither has a value anywhere.
    """
    if not (a.is_valid and b.is_valid) or NO_VALUE in (a, b):
        return False
    if a.exact is not None and b.exact is not None:
        return a.exact == b.exact / divisor
    pairs = list(zip(_at_points(a, len(b.digits)), _at_points(b, len(a.digits)), strict=True))
    if len(pairs) > 1:
        pairs = pairs[:-1] if _leaves_the_reals(pairs) else pairs
    known = [(x, y) for x, y in pairs if "?" not in (x, y)]
    if not known:
        raise Undecided("no value")
    return all(_close(_parts(x), tuple(PRECISE.divide(part, Decimal(divisor)) for part in _parts(y))) for x, y in known)


def _at_points(value: Value, count: int) -> tuple[str, ...]:
    """The digits at each point; a constant has the same everywhere."""
    count = max(count, 1)
    if value.exact is not None:
        digits = PRECISE.divide(Decimal(value.exact.numerator), Decimal(value.exact.denominator))
        return (str(digits),) * count
    return value.digits if len(value.digits) > 1 else value.digits * count


def _leaves_the_reals(pairs: list[tuple[str, str]]) -> bool:
    before, (x, y) = pairs[:-1], pairs[-1]
    return not any(_is_complex(text) for pair in before for text in pair) and _is_complex(x) != _is_complex(y)


def _is_complex(text: str) -> bool:
    return text.endswith("i") or text == "?"


def _parts(text: str) -> tuple[Decimal, Decimal]:
    """Real and imaginary part of "1.5", "1.5+-2.5i" or "-inf"."""
    real, plus, imaginary = text.removesuffix("i").rpartition("+") if text.endswith("i") else (text, "", "0")
    while plus and real.endswith(("e", "E")):  # the "+" of an exponent
        real, plus, more = real.rpartition("+")
        imaginary = f"{more}+{imaginary}"
    return Decimal(real), Decimal(imaginary)


def _close(a: tuple[Decimal, ...], b: tuple[Decimal, ...]) -> bool:
    if any(x.is_infinite() for x in (*a, *b)):
        return a == b
    size = max(abs(x) for x in (*a, *b))
    return all(abs(PRECISE.subtract(x, y)) <= PRECISE.multiply(SAME, size) for x, y in zip(a, b, strict=True))


def proportional(a: Value, b: Value) -> bool:
    """True if a = c b with one number c for all values of the variables: a = 0 and b = 0 are the same equation."""
    if NO_VALUE in (a, b) or not (a.digits and b.digits) or not a.symbols:
        return False
    pairs = [(x, y) for x, y in zip(a.digits, b.digits, strict=True) if "?" not in (x, y)]
    first = [_parts(text) for text in pairs[0]] if pairs else []
    if not pairs or any(not parts[0] or parts[1] for parts in first):
        return False
    ratio = PRECISE.divide(first[0][0], first[1][0])
    return all(_close(_parts(x), tuple(PRECISE.multiply(ratio, part) for part in _parts(y))) for x, y in pairs)


def shown_value(value: Value) -> str:
    """A text that is the same for equal values: the fraction, or 30 digits at each point."""
    if value.exact is not None:
        return str(value.exact)
    return "|".join(text if text in ("?", "none") else _short(text) for text in value.digits)


def _short(text: str) -> str:
    parts = [format(part.normalize(Context(prec=30)), "g") for part in _parts(text)]
    return parts[0] if parts[1] == "0" else f"{parts[0]}+{parts[1]}i"


@cache
def values(size: int, seconds: float) -> Values:
    """One pool a process for each pair of settings."""
    return Values(Pool(Path(__file__).with_name("math_worker.py"), size, seconds, MEMORY))
