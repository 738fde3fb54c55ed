"""`isentrope doctor`: what this machine and environment can do, and what would not work and why."""

from dataclasses import asdict
from typing import Annotated

import typer

from isentrope.cli._errors import FAILED
from isentrope.cli._output import console, print_json, table


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """Look at environment, versions, accelerators and optional parts, and say what would not work and why.

    Example: isentrope doctor

    Exit status 1 where something is wrong; an optional part that is absent is not.
    """
    from isentrope.cli import _checkup

    found = _checkup.examine()
    wrong = [finding for finding in found if finding.state == "wrong"]
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        out = console()
        out.print(table(("part", "", "found", "what to do"), [(f.part, f.state, f.what, f.do) for f in found]))
        out.print(f"{len(wrong)} of {len(found)} are wrong." if wrong else "Nothing is wrong.", style="dim")
    if wrong:
        raise typer.Exit(FAILED)
