"""What stands beside verl's own files in `global_step_N/`: controllers' state and task numbers, `isentrope_state.json`.

It is written before verl marks the checkpoint as the latest, so a checkpoint that verl resumes from has it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isentrope.control import State
from isentrope.engines.state import CheckpointError, check_state
from isentrope.objective import Objective
from isentrope.record import read_json, write_json

STATE_FILE = "isentrope_state.json"
VERSION = 1


@dataclass
class Progress:
    """What the driver carries from step to step: controllers' state, and the tasks in the order of their numbers."""

    state: State
    tasks: list[str] = field(default_factory=list)


def save(folder: str | Path, objective: Objective, progress: Progress) -> None:
    """Write the state file into a checkpoint folder, which is made if it is not there."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    content = {"version": VERSION, "objective": str(objective), "state": progress.state, "tasks": progress.tasks}
    write_json(path / STATE_FILE, content)


def load(folder: str | Path, objective: Objective) -> Progress:
    """The inverse of `save`. CheckpointError for a state of other controllers, or no file where there are any."""
    if not (Path(folder) / STATE_FILE).is_file() and not objective.controllers():
        return Progress({})  # a run that verl's own trainer began: nothing to take up
    content = _read(folder)
    check_state(str(folder), content["state"], objective)
    return Progress({name: float(x) for name, x in content["state"].items()}, list(content["tasks"]))


def state_of(folder: str | Path) -> State:
    """The controllers' state in a checkpoint folder of verl's (`global_step_N`), by "path.number"."""
    return {name: float(x) for name, x in _read(folder)["state"].items()}


def _read(folder: str | Path) -> dict[str, Any]:
    path = Path(folder) / STATE_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no {STATE_FILE}: our trainer did not save it, so the controllers' state is not there; "
            "start a new run from its weights"
        )
    content: dict[str, Any] = read_json(path)
    if content.get("version") != VERSION:
        raise CheckpointError(f"{path} has version {content.get('version')!r}; this library reads version {VERSION}")
    return content
