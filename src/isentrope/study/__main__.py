"""`python -m isentrope.study`: run what is missing of the study, and write its page and pictures."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from isentrope.study import page
from isentrope.study.experiments import EXPERIMENTS, READ, STEPS
from isentrope.study.runs import Lab


def main(
    out: Annotated[Path, typer.Option(help="Folder of results and pictures; the page is beside it.")] = Path(
        "docs/study"
    ),
    only: Annotated[str, typer.Option(help="Experiments, separated by commas. [default: all]")] = "",
    seeds: Annotated[int, typer.Option(min=2, help="Runs of each condition.")] = 6,
    steps: Annotated[int, typer.Option(min=1, help="Updates of a run, a multiple of 16.")] = 640,
) -> None:
    """Run what is missing of the study, and write its page and pictures. Minutes on one core."""
    torch.set_num_threads(1)
    lab = Lab(out, tuple(range(seeds)), steps, lambda text: print(text, flush=True))
    for name in only.split(",") if only else EXPERIMENTS:
        lab.experiment(name, EXPERIMENTS[name](), STEPS.get(name), READ.get(name))
    if not only:
        page.write(out)


if __name__ == "__main__":
    typer.run(main)
