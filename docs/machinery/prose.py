"""Docstrings as Markdown.

The docstrings of this project are the specification in plain prose: formulas in Unicode, a line for each argument, a
doctest at the end. Markdown would take `A* [0, 1] <` for marks of its own. `markdown` escapes what is meant as it
stands, makes a list of the arguments, a code block of the doctest, and leaves what is Markdown already: tables, lists,
code, **words** in bold.
"""

import re
from collections.abc import Collection, Iterator
from itertools import takewhile
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Function, Module, Object, ParameterKind

from isentrope import catalogue

PIECES = re.compile(r"(`+[^`]*`+|\*\*[\w][^*\n]*\*\*|https?://\S+|arXiv:\d{4}\.\d{5})")
SPECIAL = {mark: f"\\{mark}" for mark in "\\*_[]#"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
MARKED = re.compile(r"(\||[*-] |\d+\. |```|#+ )")  # how a line of Markdown begins
ARGUMENTS = re.compile(r"([a-z]\w*(?:, [a-z]\w*)*): ")
ALONE = ("Source: ", "Returns ", "Raises ")  # lines that begin a paragraph of their own
ARXIV = "https://arxiv.org/abs/"


def markdown(text: str, arguments: Collection[str] = ()) -> str:
    r"""A docstring, its indentation already taken off, as Markdown. arguments: names whose lines make up a list.

    >>> print(markdown("J = r A* for r < [0, 1].\n\nlow: in nats.\nhigh: too.\nReturns J.", ["low", "high"]))
    J = r A\* for r &lt; \[0, 1\].
    <BLANKLINE>
    - **low**: in nats.
    - **high**: too.
    <BLANKLINE>
    Returns J.
    """
    return "\n\n".join(_block(lines, arguments) for lines in _blocks(text))


def _blocks(text: str) -> Iterator[list[str]]:
    """Paragraphs; what stands between fences is one, however many empty lines it has."""
    block: list[str] = []
    fenced = False
    for line in [*text.splitlines(), ""]:
        if line.startswith("```"):
            fenced = not fenced
        if line.strip() or fenced:
            block.append(line)
        elif block:
            yield block
            block = []


def _block(lines: list[str], arguments: Collection[str]) -> str:
    if lines[0].startswith(">>> "):
        return "\n".join(["```pycon", *lines, "```"])
    if MARKED.match(lines[0]) or all(line.startswith("    ") for line in lines):
        return "\n".join(lines)
    parts: list[str] = []
    for line in lines:
        if not parts or _is_argument(line, arguments) or line.startswith(ALONE):
            parts.append(line.strip())
        else:
            parts[-1] += f"\n{line.strip()}"
    return _joined([(_is_argument(part, arguments), part) for part in parts])


def _is_argument(line: str, arguments: Collection[str]) -> bool:
    found = ARGUMENTS.match(line)
    return found is not None and set(found[1].split(", ")) <= set(arguments)


def _joined(parts: list[tuple[bool, str]]) -> str:
    """Paragraphs with an empty line between them, and items of a list, which the first of each pair marks, without."""
    text = ""
    for number, (is_item, part) in enumerate(parts):
        text += "\n" if is_item and number and parts[number - 1][0] else "\n\n"
        text += _item(part) if is_item else escaped(part)
    return text.strip()


def _item(text: str) -> str:
    names, rest = text.split(": ", 1)
    return f"- **{escaped(names)}**: {escaped(rest)}".replace("\n", "\n  ")


def escaped(text: str) -> str:
    r"""Text of one paragraph, such that Markdown shows what stands there; arXiv numbers become links.

    >>> print(escaped("`a*b` of A*, arXiv:2402.03300"))
    `a*b` of A\*, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300)
    """
    return "".join(_piece(piece) for piece in PIECES.split(text))


def _piece(piece: str) -> str:
    if piece.startswith("arXiv:"):
        return f"[{piece}]({ARXIV}{piece.removeprefix('arXiv:')})"
    if PIECES.fullmatch(piece):
        return piece
    return "".join(SPECIAL.get(letter, letter) for letter in piece)


class Prose(Extension):
    """What mkdocstrings reads in place of the docstrings as they are written."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called once for every module, class, function and attribute, when its members are known."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value, _arguments(obj)) + _columns(obj)
        elif isinstance(obj, Attribute) and isinstance(obj.parent, Module):
            remark = _remark(obj)
            if remark:  # what has no docstring is not listed
                obj.docstring = Docstring(remark, parent=obj)


def _arguments(obj: Object) -> set[str]:
    if isinstance(obj, Function):
        return {parameter.name for parameter in obj.parameters}
    if isinstance(obj, Class):
        names = {name for name, member in obj.members.items() if not member.is_alias and member.is_attribute}
        start = obj.members.get("__init__")
        return names | (_arguments(start) if isinstance(start, Function) else set())
    return set()


def _remark(constant: Attribute) -> str:
    """What stands for the docstring that a constant of a module cannot have: its comment, or a preset's entry."""
    entry = catalogue.ENTRIES.get(constant.name) if constant.module.path == "isentrope.presets" else None
    if entry is not None:
        where = entry.arxiv if entry.arxiv == catalogue.OURS else f"arXiv:{entry.arxiv}"
        return escaped(f"{entry.title}, {where}: {entry.changes}. Entropy: {entry.entropy}.")
    lines = constant.lines_collection[constant.filepath]
    comment = lines[constant.endlineno - 1].partition("  # ")[2]
    above = takewhile(lambda line: line.startswith("# "), reversed(lines[: constant.lineno - 1]))
    said = comment or " ".join(line.removeprefix("# ") for line in reversed(list(above)))
    exported = constant.name in (constant.module.exports or ())
    return escaped(said) or ("&nbsp;" if exported else "")


def _columns(obj: Object) -> str:
    """A sentence on the columns that a rule reads: the keyword-only parameters of its call."""
    call = obj.members.get("__call__") if isinstance(obj, Class) else None
    if not isinstance(call, Function):
        return ""
    named = [p for p in call.parameters if p.kind is ParameterKind.keyword_only]
    names = [f"`{p.name}`" + (" (where it is)" if p.default else "") for p in named]
    return f"\n\nColumns: {', '.join(names)}." if names else ""
