"""`isentrope compare`: several objectives on the same data, seeds and budget; a table with intervals, and a page."""

from pathlib import Path
from typing import Annotated, Any

import typer

from isentrope.cli import _completion
from isentrope.cli._errors import INTERRUPTED, say


def compare(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="TOML file, or a recipe of the package. [default: that of the engine]",
            autocompletion=_completion.recipes,
        ),
    ] = None,
    objectives: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            help="Presets, or file.py:name; differences are to the first.",
            autocompletion=_completion.objective_list,
        ),
    ] = "grpo,ce_gppo",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each objective, with seeds from the recipe's on.")] = 3,
    engine: Annotated[
        str | None,
        typer.Option(help="tabular, trl or verl. [default: the recipe's]", autocompletion=_completion.engines),
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe.", autocompletion=_completion.settings),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of each run.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of all runs. [default: runs/TIME-compare]")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as JSON, everything else on stderr.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """Train several objectives on the same problems, seeds and budget, and set them side by side.

    Example: isentrope compare tabular --objectives grpo,ce_gppo,gepo --seeds 5

    Means over seeds have Student's 95 % intervals; differences are paired by seed. The same command with the same --out
    goes on where it was stopped, and more --seeds or --objectives add to what is there. comparison.html in --out is
    the page.
    """
    from rich.console import Console

    from isentrope import comparison, record
    from isentrope.cli import _comparison_run as runs
    from isentrope.cli import _comparison_table as tables
    from isentrope.cli._output import console, new_folder, print_json
    from isentrope.report import comparison as pages

    notes = Console(stderr=True, highlight=False)
    folder = out or new_folder("runs", "compare")
    names = [name.strip() for name in objectives.split(",") if name.strip()]
    plan = runs.make(folder, _resolve(recipe, engine, steps, assign or []), names, seeds)
    runs.open_folder(plan)
    if runs.execute(plan, lambda text: notes.print(text, markup=False, soft_wrap=True)):
        say(f"stopped; the same command with --out {folder} goes on")
        raise typer.Exit(INTERRUPTED)
    found = comparison.read(folder, list(plan.objectives), plan.seeds)
    record.write_json(folder / comparison.RESULT, found.to_dict())
    pages.write(folder, found, folder / comparison.PAGE)
    if as_json:
        print_json(found.to_dict())
        return
    shown = console()
    shown.print(tables.means(found))
    shown.print(tables.differences(found))
    shown.print(
        f"{len(plan.seeds)} seeds; ± is half a 95 % interval over them, * a difference whose interval leaves out 0"
    )
    shown.print(f"page: {folder / comparison.PAGE}", soft_wrap=True)


def _resolve(recipe: str | None, engine: str | None, steps: int | None, assign: list[str]) -> Any:
    """The recipe that all runs have in common."""
    from isentrope import recipe as recipes

    chosen = {key: value for key, value in {"engine": engine, "trainer.steps": steps}.items() if value is not None}
    own = engine if engine in recipes.names() else "default"
    return recipes.load(recipe or own, assign, chosen)
