"""`python -m isentrope.study`: run what is missing of the study, and write its page and pictures."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from isentrope.cli._errors import INTERRUPTED, say
from isentrope.errors import IsentropeError
from isentrope.study import divergence, language, language_runs, page
from isentrope.study.experiments import EXPERIMENTS, READ, STEPS
from isentrope.study.runs import Lab


def main(
    out: Annotated[Path, typer.Option(help="Folder of results and pictures; the page is beside it.")] = Path(
        "docs/study"
    ),
    only: Annotated[str, typer.Option(help="Experiments, separated by commas; the page stays. [default: all]")] = "",
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="Runs of each condition. [default: 6; of the language model 3 or more]"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Updates of a tabular run, a multiple of 16. [default: 640]")
    ] = None,
    language_model: Annotated[
        bool, typer.Option("--language-model", help="The part on the embedded language model, in TRL.")
    ] = False,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of the language model's runs. [default: runs/study]")
    ] = None,
) -> None:
    """Run what is missing of the study, and write its page and pictures.

    Minutes of one core; with --language-model about two minutes for each of some thirty runs.
    """
    torch.set_num_threads(1)
    known = list(language.EXPERIMENTS if language_model else EXPERIMENTS)
    names = only.split(",") if only else known
    _check(names, known, {"--steps": steps} if language_model else {"--runs": runs})
    if language_model:
        _language_model(names, out, seeds, runs or Path("runs/study"))
    else:
        lab = Lab(out, tuple(range(seeds or 6)), steps or 640, _told)
        for name in names:
            lab.experiment(name, EXPERIMENTS[name](), STEPS.get(name), READ.get(name))
    if not only:
        page.write(out)


def _check(names: Sequence[str], known: Collection[str], unused: Mapping[str, object]) -> None:
    """Refuse experiments that do not exist, and options that the part at hand would ignore."""
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"--only: no experiment {unknown[0]!r}; there are {', '.join(known)}")
    if given := [name for name, value in unused.items() if value is not None]:
        raise typer.BadParameter(f"{given[0]} has no effect on this part of the study; leave it out")


def _language_model(names: Sequence[str], out: Path, seeds: int | None, runs: Path) -> None:
    """Make the runs of some experiments, and keep what they show."""
    for name in names:
        chosen = range(seeds) if seeds else language.seeds_of(name)
        if language.make(language.groups([name]), runs, chosen, _told):
            say(f"stopped; the same command with --runs {runs} goes on")
            raise typer.Exit(INTERRUPTED)
        _told(f"{name}: reading {runs}")
        language_runs.collect(name, language.EXPERIMENTS[name], runs, out, chosen, divergence.to_start)


def _told(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    try:
        typer.run(main)
    except IsentropeError as error:
        raise SystemExit(f"error: {error}") from error
