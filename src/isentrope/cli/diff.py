"""`isentrope diff`: what differs between two objectives."""

from typing import Annotated, Any

import typer

from isentrope.cli import _completion
from isentrope.cli._output import console, print_json, short, table

DIFFERENT = 1


def diff(
    a: Annotated[
        str, typer.Argument(help="Name, file.py:name, or a .toml file.", autocompletion=_completion.objectives)
    ],
    b: Annotated[str, typer.Argument(help="The other one.", autocompletion=_completion.objectives)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """Show what differs between two objectives: each place, what A holds there and what B does.

    Example: isentrope diff grpo ce_gppo

    The exit status is that of diff(1): 0 where they are equal, 1 where they differ, 2 for bad input.
    """
    from isentrope import spec

    found = spec.difference(spec.load(a), spec.load(b))
    if as_json:
        print_json({"a": a, "b": b, "equal": not found, "differences": _listed(found)})
    elif found:
        rows = [(path, short(left), short(right)) for path, (left, right) in found.items()]
        console().print(table(("path", a, b), rows))
    else:
        console().print(f"{a} and {b} are equal", markup=False)
    if found:
        raise typer.Exit(DIFFERENT)


def _listed(found: dict[str, tuple[Any, Any]]) -> list[dict[str, Any]]:
    return [{"path": path, "a": left, "b": right} for path, (left, right) in found.items()]
