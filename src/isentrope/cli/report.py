"""`isentrope report`: runs in, one self-contained HTML page out."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """Write one HTML page on one or several runs: curves over each other, who moves the entropy, token by token.

    Example: isentrope report runs/ce_gppo runs/grpo -o report.html

    The page needs no network and holds everything it shows, under 8 MB.
    """
    from isentrope import report as reports

    size = reports.write(runs, output)
    print(f"{output} ({size / 1e6:.1f} MB, {len(runs)} {'run' if len(runs) == 1 else 'runs'})")
