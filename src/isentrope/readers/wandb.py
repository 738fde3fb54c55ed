"""What to do with Weights & Biases files that are no export: say how to make one."""

from __future__ import annotations

from pathlib import Path

from isentrope.errors import IsentropeError

HOW = (
    "export the run's history as a table, for instance wandb.Api().run('ENTITY/PROJECT/RUN').history(samples=100000)"
    ".to_csv('history.csv'), or download a chart's CSV, and diagnose that; a run kept offline goes up first with"
    " `wandb sync FOLDER`"
)


def refuse_binary(path: Path) -> None:
    """IsentropeError for a `.wandb` file or a folder that holds one, with what to do instead."""
    found = path if path.suffix == ".wandb" else next(iter([*path.glob("*.wandb"), *path.glob("run-*/*.wandb")]), None)
    if found is not None:
        raise IsentropeError(f"{found} is W&B's own record, which is not read here: {HOW}")
