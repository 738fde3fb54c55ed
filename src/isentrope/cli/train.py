"""`isentrope train`: a recipe and a few options in, a trained model and its run folder out."""

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from isentrope.cli import _completion
from isentrope.cli._errors import INTERRUPTED
from isentrope.cli._output import new_folder, print_json
from isentrope.errors import IsentropeError

# Who runs a recipe, and who says what it would run, by the recipe's engine: modules with run(recipe, folder, resume,
# as_json) and plan(recipe, out, as_json). Imported when used: each imports its host framework.
SESSIONS = {
    "trl": "isentrope.cli._session",
    "verl": "isentrope.cli._verl_session",
    "tabular": "isentrope.cli._tabular_session",
}
PLANS = {
    "trl": "isentrope.cli._plan",
    "verl": "isentrope.cli._verl_plan",
    "tabular": "isentrope.cli._tabular_plan",
}

# Options that a resumed run may change: they say how long and what else to write, not what is learnt.
RESUMABLE = ("trainer.steps", "output.", "evaluation.")


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="TOML file, or a recipe of the package. [default: that of the model or engine]",
            autocompletion=_completion.recipes,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A recipe, or a configuration of `trl grpo` (YAML or TOML).")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="Preset, or file.py:name.", autocompletion=_completion.objectives)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="embedded, smollm2, a folder, or a cached hub id.", autocompletion=_completion.models),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Task, or file.py:name; takes the place of the recipe's tasks.", autocompletion=_completion.tasks
        ),
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe.", autocompletion=_completion.settings),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="trl: this machine; verl: a Ray cluster; tabular: exact. [default: trl]",
            autocompletion=_completion.engines,
        ),
    ] = None,
    laptop: Annotated[
        bool, typer.Option("--laptop", help="With engine verl: rehearse the cluster's job on the CPUs of this machine.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of problems, sampling and training.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/TIME-TASK-OBJECTIVE]")] = None,
    tokens: Annotated[int | None, typer.Option(metavar="N", help="Dump the tokens of every Nth step.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out from its last checkpoint.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run, and what cannot be honoured; train nothing.")
    ] = False,
    gpus: Annotated[int | None, typer.Option(min=1, help="With --dry-run: GPUs to plan for. [default: 1]")] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(min=1, metavar="GIB", help="With --dry-run: memory of one. [default: 80]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, everything else on stderr.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """Train a language model with an entropy-controlled objective.

    Example: isentrope train --objective gepo --steps 200 --out runs/mine

    What TRL's own command runs, with another objective: isentrope train --config grpo.yaml --objective ce_gppo

    Without arguments: CE-GPPO on the embedded model, minutes on two CPU cores. Ctrl-C saves a checkpoint; --resume
    goes on from it.
    """
    choices = _choices(
        objective=objective,
        model=model,
        task=task,
        steps=steps,
        seed=seed,
        tokens=tokens,
        engine=engine,
        laptop=laptop or None,
    )
    if config is not None and recipe is not None:
        raise IsentropeError(f"--config {config} and the recipe {recipe} are two of a kind; leave one out")
    source = Source(recipe, config, tuple(assign or ()), _processes(dry_run, gpus))
    folder, resolved = (_resume if resume else _start)(source, out, choices)
    hardware = _hardware(dry_run, resolved.engine, gpus=gpus, gpu_gib=gpu_memory)
    if dry_run:
        importlib.import_module(PLANS[resolved.engine]).plan(resolved, out, as_json=as_json, **hardware)
        return
    session = importlib.import_module(SESSIONS[resolved.engine])
    summary = session.run(resolved, folder, resume=resume, as_json=as_json)
    if as_json:
        print_json(summary)
    if summary["interrupted"]:
        raise typer.Exit(INTERRUPTED)


@dataclass(frozen=True)
class Source:
    """Where a run is read from: a recipe, or a file of TRL's or ours. assign: --set. processes: of the run."""

    recipe: str | None
    config: Path | None
    assign: tuple[str, ...]
    processes: int


def _processes(dry_run: bool, gpus: int | None) -> int:
    """How many processes there will be: one for each GPU of a plan, else those that a launcher started."""
    return gpus if dry_run and gpus else int(os.environ.get("WORLD_SIZE", "1"))


def _hardware(dry_run: bool, engine: str, **given: float | None) -> dict[str, Any]:
    """The hardware to plan for, as it was given; refused where nothing would read it."""
    found = {name: value for name, value in given.items() if value is not None}
    if found and not dry_run:
        raise IsentropeError(
            "--gpus and --gpu-memory are for --dry-run; a run takes the GPUs that its launcher gives it"
        )
    if found and engine != "trl":
        raise IsentropeError(
            f"--gpus and --gpu-memory are for engine trl; the table [{engine}] says what {engine} gets"
        )
    return found


def _choices(**given: Any) -> dict[str, Any]:
    """Dotted recipe keys for the options that were given."""
    keys = {
        "objective": "objective",
        "model": "model.name",
        "task": "task",
        "steps": "trainer.steps",
        "seed": "seed",
        "tokens": "output.tokens_every",
        "engine": "engine",
        "laptop": "laptop",
    }
    chosen = {keys[name]: value for name, value in given.items() if value is not None}
    if "task" in chosen:
        chosen["task"] = [{"name": chosen["task"]}]
    return chosen


def _start(source: Source, out: Path | None, choices: dict[str, Any]) -> tuple[Path, Any]:
    """Folder and recipe of a new run."""
    from isentrope import recipe as recipes

    # a model or an engine that has a recipe of its own is not given that of another
    own = [name for key in ("model.name", "engine") if (name := choices.get(key)) in recipes.names()]
    if source.config is not None:
        resolved = _configured(source, source.config, choices)
    else:
        resolved = recipes.load(source.recipe or next(iter(own), "default"), source.assign, choices)
    folder = out or (Path(resolved.output.dir) if resolved.output.dir else None)
    if folder is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise IsentropeError("several processes need the same run folder; name it with --out")
    return folder or _timed_folder(resolved), resolved


def _configured(source: Source, config: Path, choices: dict[str, Any]) -> Any:
    """The recipe of --config: the file's own, or what a configuration of TRL comes to."""
    from isentrope import recipe as recipes
    from isentrope.engines import trl_config

    table = trl_config.read(config)
    if not trl_config.is_trl(config, table):
        return recipes.load(str(config), source.assign, choices)
    if choices.get("engine", "trl") != "trl":
        raise IsentropeError(
            f"--config {config} is a configuration of TRL, which engine {choices['engine']} cannot read"
        )
    left = trl_config.assigned(table, source.assign)
    chosen = trl_config.replaced(table, choices)
    label = f"--config {config}"
    made = trl_config.to_table(table, label, config.parent, source.processes, chosen.get("objective"))
    return recipes.resolve(made, label, left, chosen)


def _timed_folder(recipe: Any) -> Path:
    """runs/TIME-TASK-OBJECTIVE, of a recipe's names."""
    objective = recipe.objective if isinstance(recipe.objective, str) else recipe.objective.get("preset", "objective")
    parts = [*(task.name for task in recipe.task), str(objective)]
    return new_folder("runs", "-".join(Path(part.rpartition(":")[2]).stem for part in parts))


def _resume(source: Source, out: Path | None, choices: dict[str, Any]) -> tuple[Path, Any]:
    """Folder and recipe of a run that goes on: what it learns stays as it was recorded."""
    from isentrope import recipe as recipes
    from isentrope.record import RunFolder

    if out is None:
        raise IsentropeError("--resume needs --out with the folder of the run to continue")
    if given := source.recipe or source.config:
        raise IsentropeError(f"--resume takes the recipe recorded in {out}; leave out {given}")
    assign = source.assign
    fixed = [
        key for key in [*choices, *(text.partition("=")[0].strip() for text in assign)] if not key.startswith(RESUMABLE)
    ]
    if fixed:
        raise IsentropeError(f"--resume cannot change {fixed[0]}; start a new run for that, or leave it out")
    path = RunFolder(out).recipe
    if path.is_file() and (resolved := recipes.load(str(path), assign, choices)).engine == "verl":
        from isentrope.engines.verl_run import resumable

        resumable(out)
        return out, resolved
    folder = RunFolder.resume(out)
    return out, recipes.load(str(folder.recipe), assign, choices)
