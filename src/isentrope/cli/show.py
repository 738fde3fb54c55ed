"""`isentrope show`: all that is known of one objective."""

from pathlib import Path
from typing import Annotated

import typer

from isentrope.cli import _completion
from isentrope.cli._output import console, print_json


def show(
    objective: Annotated[
        str, typer.Argument(help="Name, file.py:name, or a .toml file.", autocompletion=_completion.objectives)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write the gradient weight over the ratio as an image.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """Show an objective: formula, numbers and their place in the paper, columns it needs, controllers, specification,
    and its gradient weight over the ratio, measured by its own code.

    Example: isentrope show ce_gppo --plot ce_gppo.png

    One of your own: isentrope show my_rule.py:mine
    """
    from isentrope import spec
    from isentrope.cli import _portrait

    portrait = _portrait.describe(objective, spec.load(objective))
    if plot is not None:
        portrait.write_plot(plot)
    if as_json:
        print_json(portrait.as_dict())
    else:
        portrait.print(console())
        if plot is not None:
            console().print(f"wrote {plot}", markup=False, soft_wrap=True)
