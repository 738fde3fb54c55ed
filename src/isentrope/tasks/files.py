"""Problems from a folder of JSON lines."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.parsing import json_value

VARIABLE = "ISENTROPE_DATA"


def records(task: str, data_dir: str | Path | None, name: str, fields: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    """The records of the file `name` in `data_dir`, or in the folder that ISENTROPE_DATA names; read once a process.

    fields: what each record must have. Raises IsentropeError naming the folder, the file, or the line and the field.
    """
    folder = resolve(data_dir)
    if folder is None:
        raise IsentropeError(f"task {task} needs a folder of problems: set {VARIABLE} or data_dir")
    path = folder / name
    if not path.is_file():
        raise IsentropeError(f"task {task}: {folder} holds no {name}")
    return _read(path.resolve(), fields)


def resolve(data_dir: str | Path | None) -> Path | None:
    """The folder of problems: `data_dir`, else the one that ISENTROPE_DATA names, else None."""
    folder = data_dir or os.environ.get(VARIABLE)
    return Path(folder) if folder else None


@cache
def _read(path: Path, fields: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    lines = path.read_text(encoding="utf-8").split("\n")  # splitlines also breaks at U+2028, which JSON allows
    return tuple(_record(f"{path}, line {i}", line, fields) for i, line in enumerate(lines, 1) if line.strip())


def _record(place: str, line: str, fields: tuple[str, ...]) -> dict[str, Any]:
    try:
        found = json_value(line)
    except ValueError as error:
        raise IsentropeError(f"{place} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise IsentropeError(f"{place} is no JSON object; one line is one problem")
    missing = [name for name in fields if name not in found]
    if missing:
        raise IsentropeError(f"{place} has no field {missing[0]!r}; it needs {', '.join(fields)}")
    record: dict[str, Any] = found
    return record
