"""`isentrope check`: the laws that every objective obeys, tried on drawn batches."""

from typing import Annotated, Any

import typer

from isentrope.cli import _completion
from isentrope.cli._output import console, print_json, table

BROKEN = 1


def check(
    objective: Annotated[
        str, typer.Argument(help="Name, file.py:name, or a .toml file.", autocompletion=_completion.objectives)
    ],
    examples: Annotated[int, typer.Option(help="Batches for each law.")] = 25,
    seed: Annotated[int, typer.Option(help="Seed of the batches.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """Try on drawn batches whether an objective, a rule of yours included, obeys the laws that all of them obey.

    Example: isentrope check my_rule.py:objective

    The exit status is 0 where all laws hold, 1 where one is broken, 2 for bad input.
    """
    from isentrope import check as laws
    from isentrope import spec

    report = laws.check(spec.load(objective), examples=examples, seed=seed)
    if as_json:
        print_json({"objective": objective, "seed": seed} | report.to_dict())
    else:
        _print(objective, report)
    if report.broken:
        raise typer.Exit(BROKEN)


def _print(objective: str, report: Any) -> None:
    rows = [(r.law.replace("_", " "), r.outcome, _detail(r)) for r in report.results]
    console().print(table(("law", "result", ""), rows))
    if report.drawn:
        names = ", ".join(f"`{name}`" for name in report.drawn)
        console().print(f"drawn as normal [B,T], since the glossary has no such column: {names}", markup=False)
    held = sum(r.outcome == "holds" for r in report.results)
    console().print(f"{objective}: {held} laws hold, {len(report.broken)} broken", markup=False)


def _detail(result: Any) -> str:
    return result.detail.removeprefix(f"{result.law}: ") or f"{result.examples} batches"
