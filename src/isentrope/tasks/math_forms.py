r"""What form an answer has: a number, an interval, a set, an equation, ... Which of its parts are compared, and how.

`read` takes an answer apart as far as it is plain what it means; the expressions that remain are compared by value
(`math_values`).
"""

import re
from dataclasses import dataclass
from typing import TypeAlias

from isentrope.tasks.math_text import normal, split, tokens


@dataclass(frozen=True)
class Quantity:
    """One expression. unit: canonical, "" if there is none or it is unknown."""

    latex: str
    unit: str = ""
    is_percent: bool = False


@dataclass(frozen=True)
class Word:
    """An answer in words: a name, a choice. Compared without case, spaces and punctuation."""

    text: str


@dataclass(frozen=True)
class Digits:
    """A number that names its base, as written: 52_8 is neither 52 nor 42."""

    text: str


@dataclass(frozen=True)
class Row:
    """Ordered parts in brackets: a tuple, an interval, a vector. Both brackets count: (1, 2] is not [1, 2]."""

    opening: str
    closing: str
    items: "tuple[Form, ...]"


@dataclass(frozen=True)
class Bag:
    """Parts in any order: a set, or a list without brackets."""

    items: "tuple[Form, ...]"


@dataclass(frozen=True)
class Union:
    """Intervals joined, in any order."""

    pieces: "tuple[Form, ...]"


@dataclass(frozen=True)
class Grid:
    """A matrix with more than one column, or rows of one."""

    rows: "tuple[tuple[Form, ...], ...]"


@dataclass(frozen=True)
class Named:
    """A name and what it equals: x = 5, y = 2x + 3, (x, y) = (1, 2)."""

    name: str
    item: "Form"


@dataclass(frozen=True)
class Equation:
    """Sides that are equal, none of them a mere name."""

    sides: tuple[str, ...]


@dataclass(frozen=True)
class Unknown:
    """Anything else, as written."""

    latex: str


Form: TypeAlias = Quantity | Word | Digits | Row | Bag | Union | Grid | Named | Equation | Unknown

COMMAS = frozenset({",", ";"})
CUP = frozenset({"\\cup"})
EQUALS = frozenset({"="})
ORDER = {"<": "(", "\\le": "[", ">": ")", "\\ge": "]"}
ENVIRONMENT = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
THOUSANDS = re.compile(r"(?<![0-9.])([1-9][0-9]{0,2}(?:,[0-9]{3})+)(?![0-9]|,[0-9])")
SYMBOL = r"(?:[A-Za-z]|\\[a-z]+)(?:_(?:[0-9A-Za-z]|\{[0-9A-Za-z]+\}))?"
NAME = re.compile(
    rf"{SYMBOL}(?:\(\s*{SYMBOL}\s*\))?|\(\s*{SYMBOL}(?:\s*,\s*{SYMBOL})+\s*\)|\\text\{{[A-Za-z ]+\}}(?:_\w|\(\w\))?"
)
LEAD = re.compile(r"\\text\{[^{}0-9]*(?:\bis|\bare|:|=)\s*\}\s*:?\s*(?=.)")
HEDGES = frozenset({"or", "and", "not", "but", "maybe", "perhaps", "wrong"})
CONSTANTS = frozenset({"e", "i", "\\pi", "\\infty", "\\emptyset"})
BASE = re.compile(r"0*([0-9][0-9A-Fa-f]*)_\{?([0-9]{1,2})\}?")
RELATION = re.compile(r"\\(?:neq?|equiv|to|rightarrow|subset|subseteq|cap|setminus|pmod|propto|mid)(?![A-Za-z])")
MEMBER = re.compile(rf"{SYMBOL}\s*\\in(?![A-Za-z])\s*")


def readings(answer: str) -> list[Form]:
    r"""What an answer can mean, the likeliest first; empty if it cannot be an answer.

    "1,234" is a number or a list of two. Of "\pi \approx 3.14" either side may be meant.

    >>> [type(form).__name__ for form in readings("1,234")], [type(form).__name__ for form in readings("(1, 2]")]
    (['Quantity', 'Bag'], ['Row'])
    """
    text = normal(answer)
    if text is None:
        return []
    texts = [part for part in split(text, frozenset({"\\approx"})) if part] or [text]
    found: list[Form] = []
    for one in texts:
        grouped = _without_thousands(one)
        found += [read(grouped)] if grouped == one else [read(grouped), read(one)]
    return found


def _without_thousands(text: str) -> str:
    """The text with commas taken for thousands separators, outside brackets."""
    if any(token in "([" or token == "\\{" for token, *_ in tokens(text)):
        return text
    return THOUSANDS.sub(lambda found: found[1].replace(",", ""), text)


def read(text: str) -> Form:
    """The form of a balanced text in normal spelling."""
    text = _ungrouped(LEAD.sub("", text.strip(), count=1) if text.startswith("\\text") else text.strip())
    for reader in (_union, _list, _member, _set, _bracketed, _matrix, _inequality, _equation, _signs, _word, _base):
        found = reader(text)
        if found is not None:
            return found
    return _quantity(text)


def _ungrouped(text: str) -> str:
    while text.startswith("{") and _closes_at_end(text):
        text = text[1:-1].strip()
    return text


def _closes_at_end(text: str) -> bool:
    """True if the first bracket closes with the last token."""
    return next((end == len(text) for _, _, end, depth in tokens(text) if depth == 0), False)


def _union(text: str) -> Form | None:
    parts = split(text, CUP)
    return Union(tuple(map(read, parts))) if len(parts) > 1 else None


def _list(text: str) -> Form | None:
    parts = split(text, COMMAS)
    if len(parts) == 1:
        return None
    if not all(parts):
        return Unknown(text)
    items = tuple(map(read, parts))
    if all(isinstance(item, Row) and _inequality(part) for item, part in zip(items, parts, strict=True)):
        return Union(items)
    return Bag(_spread(items))


def _spread(items: tuple[Form, ...]) -> tuple[Form, ...]:
    r"""\pm within a list adds its two values to the list."""
    return tuple(part for item in items for part in (item.items if isinstance(item, Bag) else (item,)))


def _member(text: str) -> Form | None:
    found = MEMBER.match(text)
    return read(text[found.end() :]) if found and found.end() < len(text) else None


def _set(text: str) -> Form | None:
    if text == "\\emptyset":
        return Bag(())
    if not (text.startswith("\\{") and _closes_at_end(text)):
        return None
    inner = text[2:-2]
    if any(mark in inner for mark in (":", "\\mid", "|")):
        return Unknown(text)
    return Bag(_spread(tuple(map(read, split(inner, COMMAS)))))


def _bracketed(text: str) -> Form | None:
    opening = next((mark for mark in ("(", "[", "\\langle") if text.startswith(mark)), None)
    if opening is None or not _closes_at_end(text):
        return None
    closing = "\\rangle" if opening == "\\langle" else text[-1]
    parts = split(text[len(opening) : -len(closing)], COMMAS)
    if not all(parts):
        return Unknown(text)
    if len(parts) == 1:
        return read(parts[0])
    return Row(opening[0].replace("\\", "("), ")" if closing == "\\rangle" else closing, tuple(map(read, parts)))


def _matrix(text: str) -> Form | None:
    found = ENVIRONMENT.fullmatch(text)
    if found is None or not _closes_at_end(text):
        return None
    lines = [line for line in split(found[2], frozenset({"\\cr"})) if line]
    rows = tuple(tuple(map(read, split(line, frozenset({"&"})))) for line in lines)
    if all(len(row) == 1 for row in rows):
        return Row("(", ")", tuple(row[0] for row in rows))  # a column is a vector
    return Grid(rows)


def _inequality(text: str) -> Form | None:
    """An interval from a < x, x <= b or a < x <= b with a single variable in the middle."""
    marks = [token for token, _, _, depth in tokens(text) if depth == 0 and token in ORDER]
    if not marks:
        return None
    parts = split(text, frozenset(ORDER))
    if marks[0] in (">", "\\ge"):
        parts = parts[::-1]
        marks = [{">": "<", "\\ge": "\\le"}.get(mark, "?") for mark in marks[::-1]]
    if not set(marks) <= {"<", "\\le"} or not all(parts):
        return Unknown(text)
    if len(parts) == 2 and _is_name(parts[0]):
        parts, marks = ["-\\infty", *parts], ["<", *marks]
    elif len(parts) == 2:
        parts, marks = [*parts, "\\infty"], [*marks, "<"]
    if len(parts) != 3 or not _is_name(parts[1]):
        return Unknown(text)
    low, high = (mark == "\\le" for mark in marks)
    return Row("[" if low else "(", "]" if high else ")", (read(parts[0]), read(parts[2])))


def _is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None and text not in CONSTANTS


def _equation(text: str) -> Form | None:
    if RELATION.search(text):
        return Unknown(text)
    sides = [_ungrouped(side) for side in split(text, EQUALS)]
    if len(sides) == 1:
        return None
    if not all(sides):
        return Unknown(text)
    names = [side for side in sides if _is_name(side)]
    values = [side for side in sides if not _is_name(side)]
    if names and len(values) == 1:
        return Named(re.sub(r"\s", "", names[0]), read(values[0]))
    return Equation(tuple(sides))


def _signs(text: str) -> Form | None:
    r"""\pm means both values."""
    if "\\pm" not in text and "\\mp" not in text:
        return None
    upper = text.replace("\\pm", "+").replace("\\mp", "-")
    lower = text.replace("\\pm", "-").replace("\\mp", "+")
    return Bag((read(_tidy(upper)), read(_tidy(lower))))


def _tidy(text: str) -> str:
    return re.sub(r"^\s*\+\s*", "", text)


def _word(text: str) -> Form | None:
    bare = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    is_marked = text.startswith("\\text{") and "\\" not in bare
    is_plain = re.fullmatch(r"[A-Za-z]{4,}(?:[ -][A-Za-z]+)*", text) is not None
    return Word(plain(text)) if (is_marked or is_plain) and re.search(r"[A-Za-z]", bare) else None


def plain(text: str) -> str:
    r"""Letters and digits only, without case: what an answer in words is compared by.

    >>> plain(r"\text{(C)}"), plain("Evelyn.")
    ('c', 'evelyn')
    """
    bare = re.sub(r"\\text(?![A-Za-z])", "", text)
    return re.sub(r"[^0-9a-z]", "", bare.casefold())


def _base(text: str) -> Form | None:
    found = BASE.fullmatch(text)
    return Digits(f"{found[1].lower()}_{found[2]}") if found else None


UNITS = {
    "degree": "degree degrees deg",
    "m": "m meter meters metre metres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters",
    "km": "km kilometer kilometers kilometre kilometres",
    "inch": "inch inches in",
    "foot": "foot feet ft",
    "yard": "yard yards yd",
    "mile": "mile miles mi",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "pound": "pound pounds lb lbs",
    "ounce": "ounce ounces oz",
    "second": "second seconds sec s",
    "minute": "minute minutes min",
    "hour": "hour hours hr hrs h",
    "day": "day days",
    "week": "week weeks",
    "year": "year years yr yrs",
    "dollar": "dollar dollars",
    "cent": "cent cents",
    "mph": "mph",
    "liter": "liter liters litre litres L",
    "unit": "unit units",
    "": "people person ways way apples students points coins integers numbers solutions times",
}
CANONICAL = {name: unit for unit, names in UNITS.items() for name in names.split()}
POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
WORDS = "|".join(sorted((name for name in (*CANONICAL, *POWERS) if len(name) > 1), key=len, reverse=True))
TAIL = re.compile(rf"(?:\\text\{{([^{{}}0-9,]*)\}}|(?<=[0-9}}) ])\s*((?:(?:{WORDS})\s*)+))\s*(?:\^\{{?([0-9])\}}?)?$")
PERCENT = re.compile(r"\s*(?:\\?%|\\text\{\s*(?:%|\\%|percent)\s*\}|\bpercent)$")


def _quantity(text: str) -> Form:
    r"""An expression without its unit, sign of currency or percent sign."""
    body, unit = text, ""
    money = re.match(r"(-?)\\\$\s*", body)
    if money:
        body, unit = money[1] + body[money.end() :], "dollar"
    percent = PERCENT.search(body)
    if percent and percent.start():
        return Quantity(body[: percent.start()].strip(), unit, True)
    tail = TAIL.search(body)
    if tail and body[: tail.start()].strip() and not HEDGES & set(re.findall("[a-z]+", tail[0].lower())):
        body, unit = body[: tail.start()].strip(), _unit(tail[1] or tail[2] or "", tail[3] or "") or unit
    return Quantity(body.removesuffix("\\$").strip(), unit)


def _unit(words: str, power: str) -> str:
    """The canonical unit: "inch^2" of square inches and of inches to the power of 2, "" of what is not in the table."""
    found = [word for word in re.split(r"[^A-Za-z]+", words) if word]
    raised = next((POWERS[word] for word in found if word in POWERS), power)
    units = [CANONICAL[word] for word in found if CANONICAL.get(word)]
    if len(units) != 1 or units[0] == "unit":
        return ""
    return units[0] + (f"^{raised}" if raised else "")
