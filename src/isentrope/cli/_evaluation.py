"""What an evaluation is asked to do, resolved: which model, which problems, which settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from isentrope import record, tasks
from isentrope.cli._output import new_folder
from isentrope.cli._sources import is_world
from isentrope.errors import IsentropeError
from isentrope.recipe import parse_assignment
from isentrope.record import RunFolder
from isentrope.results import held_out_problems
from isentrope.tasks import Example, Task
from isentrope.tasks.registry import BUILT_IN

MOST_TOKENS = 1024  # of a completion, where neither the user nor a recipe says
SETTINGS = "settings.json"


@dataclass(frozen=True)
class Request:
    """What the user asked for; None where the choice is left to us."""

    model: str | None
    tasks: str | None
    samples: int
    data_dir: Path | None = None
    assign: tuple[str, ...] = ()
    seed: int = 0
    temperature: float | None = None
    max_tokens: int | None = None
    limit: int = 500
    batch: int = 64
    backend: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class Plan:
    """A request with every choice made.

    source: what the model is loaded from; for a run folder a checkpoint. tasks: name -> options. max_tokens: None until
    the model is loaded, which bounds it.
    """

    model: str
    source: str
    tasks: dict[str, dict[str, Any]]
    samples: int
    seed: int
    temperature: float
    max_tokens: int | None
    limit: int
    batch: int
    backend: str
    dtype: str

    def to_dict(self) -> dict[str, Any]:
        """The settings as settings.json and results.json hold them."""
        return asdict(self)

    def problems(self) -> list[tuple[Task, list[Example]]]:
        """The tasks with their test problems, at most `limit` of each."""
        made = load_tasks(self.tasks)
        return [(task, held_out_problems(task, self.limit, self.seed)) for task in made.values()]


def load_tasks(chosen: Mapping[str, Mapping[str, Any]]) -> dict[str, Task]:
    """The tasks of these options, by the names that their problems carry, which must differ."""
    made = [tasks.get(name, **options) for name, options in chosen.items()]
    found = {task.name: task for task in made}
    if len(found) < len(made):
        raise IsentropeError(f"the tasks {', '.join(chosen)} are not told apart: two are named {made[-1].name}")
    worlds = [task.name for task in made if is_world(task)]
    if worlds:
        raise IsentropeError(
            f"task {worlds[0]} is judged by servers that play it, not from texts; eval cannot score it"
        )
    return found


@dataclass(frozen=True)
class Defaults:
    """What a model brings along: a run folder its last checkpoint and its recipe's settings, another its name."""

    source: str
    tasks: dict[str, dict[str, Any]]
    temperature: float = 1.0
    max_tokens: int | None = None


def resolve(request: Request) -> Plan:
    """Make the choices that the request leaves open.

    A run folder gives its last checkpoint, its tasks with their options, the length of its completions and the
    temperature of its own evaluation. Raises IsentropeError for a run without checkpoint, or where no task is named.
    """
    assert request.model is not None
    given = _defaults(request.model)
    chosen = _named(request) or given.tasks
    if not chosen:
        is_missing = "/" in request.model and not Path(request.model).expanduser().exists()
        missing = f"there is no folder {request.model}; if it is a hub id, " if is_missing else ""
        raise IsentropeError(
            f"{missing}say what to evaluate {request.model} on: --tasks with some of {', '.join(tasks.names())}"
        )
    return Plan(
        model=request.model,
        source=given.source,
        tasks=_with_options(chosen, request),
        samples=request.samples,
        seed=request.seed,
        temperature=given.temperature if request.temperature is None else request.temperature,
        max_tokens=request.max_tokens or given.max_tokens,
        limit=request.limit,
        batch=request.batch,
        backend=request.backend,
        dtype=request.dtype,
    )


def _named(request: Request) -> dict[str, dict[str, Any]]:
    names = [name.strip() for name in (request.tasks or "").split(",") if name.strip()]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise IsentropeError(f"--tasks names {repeated[0]} more than once")
    return {name: {} for name in names}


def _defaults(model: str) -> Defaults:
    """What a model brings along. Raises IsentropeError for a run folder without a complete checkpoint."""
    from isentrope import recipe as recipes

    folder = RunFolder(Path(model).expanduser())
    if not folder.recipe.is_file():
        return Defaults(model, {})
    checkpoint = folder.last_checkpoint()
    if checkpoint is None:
        raise IsentropeError(f"{model} holds no complete checkpoint to evaluate; train on, or name a model")
    recipe = recipes.load(str(folder.recipe))
    return Defaults(
        source=str(checkpoint),
        tasks={task.name: dict(task.options) for task in recipe.task},
        temperature=recipe.evaluation.temperature,
        max_tokens=recipe.trainer.max_completion_length,
    )


def _with_options(chosen: Mapping[str, Mapping[str, Any]], request: Request) -> dict[str, dict[str, Any]]:
    """The tasks with --data-dir, where they read data, and --set."""
    made = {name: dict(options) for name, options in chosen.items()}
    if request.data_dir is not None:
        readers = [name for name in made if _reads_data(name)]
        if not readers:
            raise IsentropeError(f"--data-dir: none of the tasks {', '.join(made)} reads data; leave it out")
        for name in readers:
            made[name]["data_dir"] = str(request.data_dir)
    for text in request.assign:
        path, value = parse_assignment(text)
        name, dot, option = path.rpartition(".")
        if not dot or name not in made:
            raise IsentropeError(f"--set {text}: expected TASK.OPTION=VALUE with a task out of {', '.join(made)}")
        made[name][option] = value
    return made


def _reads_data(name: str) -> bool:
    return name in BUILT_IN and hasattr(tasks.get(name), "data_dir")


def for_completions(request: Request, path: Path) -> dict[str, Task]:
    """The tasks of a file of completions: those of --tasks, else those that the file names."""
    from isentrope import saved

    named = _named(request) or {name: {} for name in saved.names(path)}
    if not named:
        raise IsentropeError(f"{path} names no task; say which one with --tasks")
    return load_tasks(_with_options(named, request))


def folder_for(out: Path | None, name: str) -> Path:
    """Where the results go: --out, else a new folder named after the time and the model."""
    if out is not None:
        return out
    return new_folder("evaluations", Path(name).name or "model")


def open_folder(path: Path, plan: Plan, resume: bool) -> None:
    """A folder for results: new, or the one to continue, whose settings must be the same.

    Raises IsentropeError for a folder that is not empty, and with `resume` for one without settings or with others.
    """
    settings = path / SETTINGS
    if not resume:
        RunFolder.create(path)
        record.write_json(settings, plan.to_dict())
        return
    if not settings.is_file():
        raise IsentropeError(f"{path} holds no evaluation to continue (no {SETTINGS}); leave out --resume")
    before = record.read_json(settings)
    now = json.loads(json.dumps(plan.to_dict()))
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        name = changed[0]
        raise IsentropeError(
            f"--resume: {name} was {before.get(name)!r} in {path} and is {now[name]!r} now; continue with the same, or "
            "choose another --out"
        )


def other(plan: Plan, model: str) -> Plan:
    """The same evaluation of another model."""
    return replace(plan, model=model, source=_defaults(model).source)


def sorted_batches(lengths: Sequence[int], samples: int, batch: int) -> list[list[int]]:
    """Places of problems, shortest prompts first, in groups of `batch` completions or one problem.

    Depends on the arguments alone, so that a continued evaluation forms the same groups.

    >>> sorted_batches([5, 3, 9], samples=4, batch=8)
    [[1, 0], [2]]
    """
    order = sorted(range(len(lengths)), key=lambda place: (lengths[place], place))
    size = max(1, batch // samples)
    return [order[start : start + size] for start in range(0, len(order), size)]
