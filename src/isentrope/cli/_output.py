"""What the verbs that describe objectives share: one console, strict JSON, short numbers, new folders."""

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isentrope.record import encode

NARROW = 24  # characters; a first column of names no longer than this stays on one line
PIPE_WIDTH = 120  # columns of output that goes to a file or a pipe, unless COLUMNS says otherwise


def program() -> str:
    """What a user types to call this command: its path where the shell would not find it, as after `make train`."""
    called = Path(sys.argv[0])
    if called.name != "isentrope" or shutil.which("isentrope"):
        return "isentrope"
    return os.path.relpath(called) if called.resolve().is_relative_to(Path.cwd()) else str(called)


def console() -> Console:
    """Standard output, at the terminal's width."""
    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPE_WIDTH
    return made


def print_json(value: Any) -> None:
    """The value as JSON on standard output; a number that is not finite becomes a string, as in a run folder."""
    print(json.dumps(encode(value), indent=2, ensure_ascii=False, allow_nan=False))


def short(value: Any) -> str:
    """A value of a specification, as a table shows it.

    >>> [short(x) for x in (0.2, 3e-4, 4096, True, None, "initial")]
    ['0.2', '0.0003', '4096', 'yes', '-', 'initial']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_dataclass(value):
        return type(value).__name__
    return f"{value:g}" if isinstance(value, float) else str(value)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of plain cells, the first column in colour; a cell that is too wide is folded, never cut."""
    rows = list(rows)
    narrow = all(len(row[0]) <= NARROW for row in rows)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, head in enumerate(heads):
        made.add_column(Text(head), style="cyan" if i == 0 else None, overflow="fold", no_wrap=i == 0 and narrow)
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def new_folder(parent: str, name: str) -> Path:
    """PARENT/TIME-NAME, with a number behind it where a folder of the same second is there already."""
    path = Path(parent) / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    others = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(found for found in chain([path], others) if not found.exists())
