"""`isentrope list`: the objectives that have a name, or the rules that they are made of."""

from typing import Annotated

import typer

from isentrope.cli._output import console, print_json


def list(
    rules: Annotated[bool, typer.Option("--rules", help="List the rules and controllers instead, by slot.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """List the objectives that have a name: presets, and what installed packages offer.

    Example: isentrope list

    What objectives are made of, for a program: isentrope list --rules --json
    """
    from isentrope.cli import _listing

    if as_json:
        print_json(_listing.rules() if rules else _listing.objectives())
    elif rules:
        console().print(_listing.rule_table())
    else:
        console().print(_listing.objective_table())
        console().print(_listing.LEGEND, style="dim")
