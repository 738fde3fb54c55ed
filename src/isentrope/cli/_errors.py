"""How errors reach the user: one line on stderr, exit status 2 for bad input and 1 for a run that failed."""

import functools
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec

import typer

from isentrope.errors import IsentropeError

BAD_INPUT = 2
FAILED = 1
P = ParamSpec("P")

INTERRUPTED = 130  # 128 + SIGINT, as shells report it

# Packages that a verb may miss, and the extra that brings each.
EXTRA_OF = dict.fromkeys(("accelerate", "datasets", "gguf", "pyarrow", "transformers", "trl", "yaml"), "trl") | {
    "matplotlib": "report",
    "numpy": "report",
    "math_verify": "tasks",
}


class RunFailed(IsentropeError):
    """A run that started and could not go on. Exit status 1."""


def in_one_line(function: Callable[P, None]) -> Callable[P, None]:
    """The same verb, its errors printed as one line; its keyword `debug`, where it has one, lets them through.

    IsentropeError is the user's to fix (status 2), RunFailed a run that broke (1), KeyboardInterrupt an interruption
    (130); anything else is reported as ours (1).
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise  # typer ends quietly where the reader of a pipe, such as head, has gone
        except Exception as error:
            if kwargs.get("debug"):
                raise
            say(sentence(error))
            is_bad_input = isinstance(error, IsentropeError) and not isinstance(error, RunFailed)
            raise typer.Exit(BAD_INPUT if is_bad_input else FAILED) from None

    return run


def say(text: str) -> None:
    """One line on stderr."""
    print(f"isentrope: {' '.join(text.split())}", file=sys.stderr)


def sentence(error: Exception) -> str:
    """What to print for an error: its own message if that is written for the user, else its kind as well.

    >>> sentence(ModuleNotFoundError("No module named 'trl'", name="trl"))
    "this needs the package trl, which is missing: pip install 'isentrope[trl]'"
    """
    if isinstance(error, IsentropeError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) in EXTRA_OF:
        return f"this needs the package {package}, which is missing: pip install 'isentrope[{EXTRA_OF[package]}]'"
    return f"unexpected {type(error).__name__}: {error} (--debug shows where; this may be a fault of isentrope)"


@contextmanager
def failing(record: Path) -> Iterator[None]:
    """Turn an error of the block into RunFailed, its traceback written to the file `record`.

    Errors with a message for the user (ours, and the ValueErrors by which rules refuse a batch) keep it.
    """
    try:
        yield
    except Exception as error:
        where = _keep(record, traceback.format_exc())
        text = str(error) if isinstance(error, IsentropeError | ValueError) else f"{type(error).__name__}: {error}"
        raise RunFailed(f"the run stopped: {_disk_full(text, record.parent) or text}{where}") from error


def _disk_full(text: str, folder: Path) -> str:
    """The sentence for a write that failed for want of space, "" for another error; torch names only its archive."""
    if "No space left" not in text and "inline_container" not in text:
        return ""
    free = shutil.disk_usage(folder).free / 2**20
    return (
        f"no space left for {folder}, {free:.0f} MB are free: the last complete checkpoint is whole;"
        f" make room and continue with --resume ({text})"
    )


def _keep(record: Path, text: str) -> str:
    try:
        record.write_text(text, encoding="utf-8")
    except OSError:
        return " (--debug shows where)"  # the disk may be what failed
    return f" (traceback in {record})"
