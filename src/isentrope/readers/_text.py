"""Text of unknown origin: bounded lines and files, and errors that name file and line."""

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.parsing import json_value
from isentrope.readers._keys import STEP_NAMES

MAX_LINE_BYTES = 64 * 2**20  # a line of a token export holds a whole sequence with a dozen numbers a token
MAX_JSON_BYTES = 512 * 2**20  # a trainer_state.json of 100,000 steps has some 100 MB


def lines(path: Path, limit: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Number and text of every line that is not blank, one in memory at a time."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(limit + 1), b""), start=1):
                if len(line) > limit:
                    raise IsentropeError(f"{path} line {number} is longer than {limit} bytes; this is no log")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise IsentropeError(f"cannot read {path}: {error.strerror or error}") from error


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of every line of a JSON Lines file.

    A last line that is cut off, as a killed process leaves it, is dropped; any other that is no JSON object ends in an
    IsentropeError.
    """
    for number, line in lines(path):
        try:
            value = json_value(line)
        except ValueError as error:
            if not line.endswith(b"\n") and number > 1:
                return
            raise IsentropeError(f"{path} line {number} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise IsentropeError(f"{path} line {number} is not a JSON object but {type(value).__name__}")
        yield number, value


def document(path: Path) -> Any:
    """The value of a JSON file of at most 512 MiB."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise IsentropeError(
                f"{path} has {size} bytes, more than {MAX_JSON_BYTES}; export the metrics as JSON lines"
            )
        return json_value(path.read_bytes())
    except OSError as error:
        raise IsentropeError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise IsentropeError(f"{path} is not JSON: {error}") from error


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by column name of a CSV file; the first line names the columns."""
    limit = csv.field_size_limit(2**20)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            heads = next(reader, [])
            for row in reader:
                if len(row) > len(heads):
                    raise IsentropeError(
                        f"{path} line {reader.line_num} has {len(row)} cells under {len(heads)} column names"
                    )
                yield reader.line_num, dict(zip(heads, row, strict=False))
    except (csv.Error, UnicodeDecodeError) as error:
        raise IsentropeError(f"{path} is not a CSV file: {error}") from error
    except OSError as error:
        raise IsentropeError(f"cannot read {path}: {error.strerror or error}") from error
    finally:
        csv.field_size_limit(limit)


def number(value: Any) -> float | None:
    """A number that a log may hold as JSON or as text; None for anything else, booleans and empty cells included.

    >>> number("0.5"), number(2), number("nan"), number(""), number("three"), number(True)
    (0.5, 2.0, nan, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values of a row."""
    found = {name: number(value) for name, value in row.items()}
    return {name: value for name, value in found.items() if value is not None}


def step_name(names: Mapping[str, Any], given: str | None = None) -> str | None:
    """The column that counts the steps."""
    return given or next((name for name in STEP_NAMES if name in names), None)


def step_of(row: Mapping[str, Any], name: str, where: str) -> float:
    """The step in a row. IsentropeError where it is no finite number."""
    value = row.get(name)
    if isinstance(value, str) and "/" in value:  # "12/100", step and last step
        value = value.partition("/")[0]
    step = number(value)
    if step is None or not math.isfinite(step):
        raise IsentropeError(f"{where} has no number under {name!r} for the step; found {row.get(name)!r}")
    return step
