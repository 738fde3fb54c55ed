"""KEY=VALUE on the command line: dotted keys of a table, with TOML values."""

from __future__ import annotations

from typing import Any

from isentrope.errors import IsentropeError
from isentrope.parsing import toml_table


def parse_assignment(text: str) -> tuple[str, Any]:
    """Key and value of "key=value": the value is TOML; a word that is not is taken as a string.

    >>> (
    ...     parse_assignment("trainer.steps=5"),
    ...     parse_assignment("model.name=embedded"),
    ...     parse_assignment("output.report_to=['tensorboard']"),
    ... )
    (('trainer.steps', 5), ('model.name', 'embedded'), ('output.report_to', ['tensorboard']))
    """
    key, separator, value = (part.strip() for part in text.partition("="))
    if not separator or not key or not value:
        raise IsentropeError(f"--set {text}: expected KEY=VALUE, such as trainer.steps=50")
    try:
        return key, toml_table(f"value = {value}")["value"]
    except ValueError as error:
        if any(character in value for character in "\"'[]{}\n#"):
            raise IsentropeError(f"--set {text}: {value} is not a TOML value: {error}") from error
        return key, value


def assign(table: dict[str, Any], key: str, value: Any, label: str) -> None:
    """Put `value` at a dotted key, making tables on the way; a number selects an entry of a list."""
    *parents, last = key.split(".")
    place: Any = table
    for depth, name in enumerate(parents):
        if isinstance(place, dict) and name == "objective" and isinstance(place.get(name), str):
            place[name] = {"preset": place[name]}  # so that "objective.surrogate.keep_low=0" refines the preset
        place = _step_into(place, name, ".".join(parents[: depth + 1]), label)
    if isinstance(place, list):
        _step_into(place, last, key, label)
        place[int(last)] = value
    else:
        place[last] = value


def _step_into(place: Any, name: str, path: str, label: str) -> Any:
    if isinstance(place, list):
        if not name.isdecimal() or int(name) >= len(place):
            raise IsentropeError(f"{label}: {path} must be a number from 0 to {len(place) - 1}")
        return place[int(name)]
    inner = place.setdefault(name, {})
    if not isinstance(inner, dict | list):
        raise IsentropeError(f"{label}: {path} is {inner!r}, not a table")
    return inner
