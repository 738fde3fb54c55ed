"""What the docstrings of rules say: the formulas that `isentrope list` and `isentrope show` print are written there."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from isentrope.objective import Objective


def documentation(rule: Any) -> str:
    """The docstring of a rule (an object, a class or a function), a paragraph a line, without its examples.

    "" where there is none: the signature that `dataclass` puts in its place is not taken for one.
    """
    holder = rule if inspect.isclass(rule) or inspect.isfunction(rule) else type(rule)
    text = inspect.cleandoc(holder.__doc__ or "")
    if text.startswith(f"{holder.__name__}("):
        return ""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if not part.startswith(">>>")]
    return "\n".join(part for part in paragraphs if part)


def summary(rule: Any) -> str:
    """The first sentence of a rule's docstring."""
    first = re.split(r"\s*Source:|\n", documentation(rule))[0]
    return re.split(r"(?<=\.)\s+(?=[A-Z])", first)[0].rstrip(".;: ")


def overall_formula() -> str:
    """How an objective puts its rules together: the sentence in the docstring of `Objective`."""
    (found,) = re.findall(r"^J = .*?\.$", documentation(Objective).replace(". ", ".\n"), re.MULTILINE)
    return str(found)


def parts(objective: Objective) -> Iterator[tuple[str, Any]]:
    """(path, rule) of every filled slot, and of the rules that these wrap."""
    for path, rule in objective.rules():
        yield from _nested(path, rule)


def _nested(path: str, rule: Any) -> Iterator[tuple[str, Any]]:
    yield path, rule
    for name in getattr(rule, "wraps", ()):
        yield from _nested(f"{path}.{name}", getattr(rule, name))


def papers_cited(objective: Objective) -> tuple[str, ...]:
    """The arXiv ids in the docstrings of an objective's rules, in the order of its slots."""
    text = "\n".join(documentation(rule) for _, rule in parts(objective))
    return tuple(dict.fromkeys(re.findall(r"\b\d{4}\.\d{5}\b", text)))


def settings(node: Any) -> dict[str, Any]:
    """The fields of a rule or controller by name."""
    return {f.name: getattr(node, f.name) for f in fields(node)} if is_dataclass(node) else {}
