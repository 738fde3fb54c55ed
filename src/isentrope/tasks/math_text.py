r"""From a completion to the text of its final answer, and from that to a spelling that the reader of forms knows."""

import re
from collections.abc import Iterator

from isentrope.tasks.numbers import NUMBER

MAX_READ = 200_000  # characters from the end of a completion that are read at all, so that every text is fast
MAX_ANSWER = 1_000  # characters of an answer; the longest of the published sets has 66
MAX_DEPTH = 24  # brackets within brackets; parsers recurse

BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
BETWEEN_BOXES = re.compile(r"(?:\s|[$,;.]|\\[()\[\],;! ]|\\text\{\s*(?:and|or)\s*\}|\band\b|\bor\b)*")
HASHES = re.compile(r"####[ \t]*([^\n]*)")
STATED = re.compile(r"\banswers?\b[^\n:=]{0,40}?(?:\bis\b|\bare\b|:|=)\s*:?\s*(?:\*\*)?\s*([^\n]+)$", re.IGNORECASE)
AT_THE_END = re.compile(
    rf"(?:^|[\s=$*(:≈])(-?\\?\$?(?:\\[dt]?frac\{{-?[0-9]+\}}\{{[0-9]+\}}|{NUMBER.pattern}(?:/[0-9]+)?)(?:\\?%)?)"
    r"(?:[\s.$*!]|\\[\])])*$"
)


def final_answer(completion: str) -> str | None:
    r"""The text of the answer that a solution ends with; None if it ends with none.

    It is the content of the last balanced \boxed{}, or what follows the last "####" on its line, whichever is later.
    Boxes with nothing but "and", "or" or a comma between them are one answer, a list. Without either mark it is what
    the last line states ("The answer is 3/4."), or the number with which the text ends. A number that only occurs on
    the way is no answer. Only the last 200,000 characters are read.

    >>> final_answer(r"so \boxed{\frac{1}{2}}."), final_answer(r"\boxed{3} and \boxed{5}"), final_answer("#### 72")
    ('\\frac{1}{2}', '3, 5', '72')
    >>> final_answer("Hence x = 7."), final_answer("The answer is $2x$."), final_answer("I met 7 on the way, no more")
    ('7', '$2x$.', None)
    """
    text = completion[-MAX_READ:]
    boxes = _boxes(text)
    hashes = list(HASHES.finditer(text))
    if hashes and (not boxes or hashes[-1].start() > boxes[-1][0]):
        return hashes[-1][1].strip() or None
    if boxes:
        return _joined(text, boxes)
    return None if "\\boxed" in text else _stated(text)


Box = tuple[int, int, int]  # start, start of the content, end


def _boxes(text: str) -> list[Box]:
    """The balanced boxes in the order in which they close, one within another before it; in one pass."""
    stack: list[tuple[int, int] | None] = []  # start of the box and of its content; None for a plain brace
    found: list[Box] = []
    for brace in BRACE.finditer(text):
        token = brace[0]
        if token != "\\{" and token.endswith("{"):
            stack.append(None if token == "{" else (brace.start(), brace.end()))
        elif token == "}" and stack:
            opened = stack.pop()
            if opened is not None:
                found.append((*opened, brace.end()))
    return found


def _joined(text: str, boxes: list[Box]) -> str | None:
    """The last box with those directly before it."""
    parts = [_content(text, boxes[-1])]
    for before, after in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=True):
        if not BETWEEN_BOXES.fullmatch(text, before[2], after[0]):
            break
        parts.append(_content(text, before))
    distinct = list(dict.fromkeys(part.strip() for part in reversed(parts)))
    return ", ".join(distinct) if all(distinct) else None


def _content(text: str, box: Box) -> str:
    return text[box[1] : box[2] - 1]


def _stated(text: str) -> str | None:
    last = text.rstrip().rpartition("\n")[2][-MAX_ANSWER:]
    stated = STATED.search(last)
    if stated is not None:
        return stated[1]
    found = AT_THE_END.search(last)
    return found[1] if found else None


SPELLINGS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ",
    "√": r"\sqrt ", "°": r"^\circ ", "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "±": r"\pm ", "∓": r"\mp ", "²": "^{2}", "³": "^{3}", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "≈": r"\approx ", "∅": r"\emptyset ", "\u00a0": " ", "€": r"\$",
    "£": r"\$",
}  # fmt: skip
UNICODE = str.maketrans(SPELLINGS)
REPLACED = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\\\(?:\[[^\]]*\])?", r"\\cr "),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|boldsymbol|bm)(?![A-Za-z])|\\[,;:!>]\s*", ""),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*\.?(?=[^A-Za-z]|$|\\)", ""),
        (r"\\(?:quad|qquad|enspace|hspace\{[^{}]*\}|hskip)(?![A-Za-z])|\\ |~", " "),
        (r"\\(?:boxed|fbox)\s*(?=\{)", ""),
        (r"\\[()\[\]]|(?<!\\)\$|\*\*(?=\s*$)|^\*\*", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\(?:mbox|text(?:rm|bf|it|sf|normal|up)|mathrm|hbox)\s*\{", r"\\text{"),
        (r"\\math(?:bf|it|sf|cal)\s*\{([A-Za-z])\}", r"\1"),
        (r"\\mathbb\s*\{?R\}?", r"(-\\infty,\\infty)"),
        (r"\\(?:leq|leqslant)(?![A-Za-z])|<=", r"\\le "),
        (r"\\(?:geq|geqslant)(?![A-Za-z])|>=", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\(?:varnothing|O)(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\l?brace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\(?:l|lv)?vert(?![A-Za-z])|\\rvert(?![A-Za-z])", "|"),
        (r"\\(?:approx|simeq|sim|doteq)(?![A-Za-z])", r"\\approx "),
        (r"\\ast(?![A-Za-z])|(?<!\*)\*(?!\*)", r"\\cdot "),
        (r"\*\*", "^"),
        (r"(?<![\\A-Za-z])(?:sqrt|Sqrt)\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"\+\s*\\infty", r"\\infty"),
        (r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}"),
        (r"\\sqrt\s*(\\[A-Za-z]+)", r"\\sqrt{\1}"),
        (r"\\frac\s*([0-9A-Za-z])\s*([0-9A-Za-z])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([0-9A-Za-z])\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\{[^{}]*\})\s*([0-9A-Za-z])", r"\1{\2}"),
        (r"\^\s*\{?\s*\\(?:circ|degree)(?![A-Za-z])\s*\}?|\\degree(?![A-Za-z])", r"\\text{degrees}"),
        (r"(_|\^)\{([0-9A-Za-z])\}", r"\1\2"),
        (r",?\s*\\text\{\s*(?:and|or)\s*\}|,?\s*(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])", ","),
        (r"\s+", " "),
    ]
]


def normal(answer: str) -> str | None:
    r"""The answer in one spelling of LaTeX: no size, space or font commands, \frac with braces, degrees as text.

    None if it cannot be an answer: empty, longer than 1,000 characters, digits of other scripts, brackets that do not
    close or lie more than 24 deep.

    >>> normal(r"$\left( \dfrac43 ,\, 90^{\circ} \right).$"), normal("−½"), normal("٣"), normal("(1")
    ('( \\frac{4}{3} ,90\\text{degrees} )', '-\\frac{1}{2}', None, None)
    """
    if len(answer) > MAX_ANSWER:
        return None
    text = answer.translate(UNICODE)
    for pattern, replacement in REPLACED:
        text = pattern.sub(replacement, text)
    text = text.strip().rstrip(".,;:").removesuffix("\\cr").strip()
    if not text or any(c.isdigit() and not c.isascii() for c in text) or not is_balanced(text):
        return None
    return text


TOKEN = re.compile(r"\\begin\{([A-Za-z]+)\*?\}|\\end\{([A-Za-z]+)\*?\}|\\[A-Za-z]+|\\.|.", re.DOTALL)
OPENING = {"(": "round", "[": "round", "{": "brace", "\\{": "set", "\\langle": "angle", "\\begin": "env"}
CLOSING = {")": "round", "]": "round", "}": "brace", "\\}": "set", "\\rangle": "angle", "\\end": "env"}


def tokens(text: str) -> Iterator[tuple[str, int, int, int]]:
    """Each token with its start, its end and the number of brackets that are open after it; -1 where they disagree.

    "(" may close with "]": an interval is half open.
    """
    stack: list[str] = []
    for found in TOKEN.finditer(text):
        token = found[0]
        kind = token[:6] if token.startswith("\\begin") else token[:4] if token.startswith("\\end{") else token
        if kind in OPENING:
            stack.append(OPENING[kind])
        elif kind in CLOSING and (not stack or stack.pop() != CLOSING[kind]):
            yield token, found.start(), found.end(), -1
            return
        yield token, found.start(), found.end(), len(stack)


def is_balanced(text: str) -> bool:
    """True if all brackets close, in the right order, and lie at most 24 deep."""
    depth = 0
    for _, _, _, depth in tokens(text):
        if not 0 <= depth <= MAX_DEPTH:
            return False
    return depth == 0


def split(text: str, separators: frozenset[str]) -> list[str]:
    r"""The parts of a balanced text between separators outside all brackets, stripped.

    >>> split(r"(1,2), \{3,4\}, 5", frozenset(","))
    ['(1,2)', '\\{3,4\\}', '5']
    """
    parts, start = [], 0
    for token, begin, end, depth in tokens(text):
        if depth == 0 and token in separators:
            parts.append(text[start:begin])
            start = end
    return [part.strip() for part in (*parts, text[start:])]
