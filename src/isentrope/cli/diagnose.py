"""`isentrope diagnose`: what is wrong with runs, from what they left on disk."""

from pathlib import Path
from typing import Annotated

import typer

from isentrope.cli import _completion, _diagnosis
from isentrope.cli._output import print_json

ALARM = 1


def diagnose(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, logs or dumps of any framework.", metavar="PATH")],
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OURS=THEIRS",
            help="A column of a table, such as entropy=policy_entropy.",
            autocompletion=_completion.columns,
        ),
    ] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="What the files lack, such as updates_per_rollout=4.",
            autocompletion=_completion.facts,
        ),
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens in the vocabulary; bounds entropy.")
    ] = None,
    one_run: Annotated[bool, typer.Option("--one-run", help="All paths are parts of one run.")] = False,
    allow_pickle: Annotated[
        bool,
        typer.Option("--allow-pickle", help="Open torch files that run code of their own. Only if you trust them."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """Find what is wrong with runs: collapse, explosion, a controller that hunts, numbers that cannot be, and more.

    Reads run folders of isentrope, TRL (trainer_state.json, completion dumps), verl (file logger, rollout dumps),
    ms-swift, prime-rl token exports, slime dumps, TensorBoard events, W&B exports, and CSV, JSON or parquet tables.

    Example: isentrope diagnose runs/first metrics.csv --column entropy=policy_entropy

    The exit status is 0 where no run has a finding of severity warning or worse, 1 where one has, 2 for bad input.
    """
    diagnoses = _diagnosis.of_paths(
        paths,
        column=_diagnosis.pairs(column or [], "--column"),
        facts=_diagnosis.facts(fact or [], vocabulary),
        one_run=one_run,
        allow_pickle=allow_pickle,
    )
    if as_json:
        print_json({"runs": [d.to_dict() for d in diagnoses]})
    else:
        _diagnosis.show(diagnoses)
    if any(d.has_alarm for d in diagnoses):
        raise typer.Exit(ALARM)
