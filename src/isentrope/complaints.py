"""What is wrong with a recipe, in one sentence: pydantic's complaints, and the nearest of the words that exist."""

import difflib
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ValidationError


def suggestion(word: str, known: Sequence[str]) -> str:
    """The end of a sentence that names the nearest of the known words, or all of them where none is near.

    >>> suggestion("stpes", ["steps", "seed"]), suggestion("zzz", ["steps", "seed"])
    ("; did you mean 'steps'?", '; it has steps, seed')
    """
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; it has {', '.join(known)}" if len(known) <= 20 else ""


def sentence(error: ValidationError, top: type[BaseModel], sections: Mapping[str, type[BaseModel]]) -> str:
    """The first of pydantic's complaints in one sentence, with the number of the others.

    top: the model that was validated. sections: those of its tables, by name.
    """
    first, *others = error.errors()
    more = f" (and {len(others)} more)" if others else ""
    *parents, last = first["loc"] or ("",)
    place = _place(parents)
    if first["type"] == "extra_forbidden":
        subject = place.strip() if parents else "the top level"
        return f"{subject} has no key {last!r}{_nearest(str(last), parents, top, sections)}{more}"
    if first["type"] == "missing":
        return f"{place}{last} is missing{more}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{place}{f'[{last}] ' if last else ''}{message}{more}"
    return f"{place}{last} = {first['input']!r}: {message[0].lower()}{message[1:]}{more}"


def _place(parents: Sequence[str | int]) -> str:
    """Where a key stands.

    >>> _place(["task", 0]), _place(["model", "lora"]), _place([])
    ('[task] number 0 ', '[model.lora] ', '')
    """
    tables = ".".join(part for part in parents if isinstance(part, str))
    numbers = "".join(f"number {part} " for part in parents if isinstance(part, int))
    return f"[{tables}] {numbers}" if tables else numbers


def _nearest(
    word: str, parents: Sequence[str | int], top: type[BaseModel], sections: Mapping[str, type[BaseModel]]
) -> str:
    """The end of the sentence on a key that does not exist: the table that has it, or the nearest one in its own."""
    if parents:
        found = sections[".".join(part for part in parents if isinstance(part, str))]
        return suggestion(word, list(found.model_fields))
    homes = [f"{name}.{word}" for name, section in sections.items() if word in section.model_fields]
    return f"; did you mean {' or '.join(map(repr, homes))}?" if homes else suggestion(word, list(top.model_fields))
