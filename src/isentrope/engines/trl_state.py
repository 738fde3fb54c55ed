"""What a checkpoint holds beyond TRL's own files, so that a resumed run continues exactly.

* `isentrope_state.json`: what is the same on all ranks: the controllers' state, task names, counters, half-filled log lines.
* `isentrope_rank<i>.pt`: what each rank has for itself: pooled numerators, the loss since the last log line and, in the
  middle of a rollout batch, the prepared rows that later updates still use. TRL alone loses those rows on resume.
"""

import os
from pathlib import Path
from typing import Any

import torch

from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.record import read_json, replacing, write_json

STATE_FILE = "isentrope_state.json"
VERSION = 1


class CheckpointError(IsentropeError, ValueError):
    """A checkpoint that this run cannot continue from."""


def save_shared(folder: str, content: dict[str, Any]) -> None:
    """Write what all ranks share, whole or not at all."""
    write_json(Path(folder) / STATE_FILE, {"version": VERSION} | content)


def save_rank(folder: str, rank: int, content: dict[str, Any]) -> None:
    """Write what this rank alone has; tensors, numbers, strings and containers of them."""
    os.makedirs(folder, exist_ok=True)  # other ranks may come before the one that saves the model
    with replacing(_rank_file(folder, rank)) as temporary:
        torch.save(content, temporary)


def load_shared(folder: str, layout: dict[str, int], objective: Objective) -> dict[str, Any]:
    """Read and check `isentrope_state.json`.

    layout: this run's process count, batch sizes and reuse of rollouts; they must be the checkpoint's.
    objective: its controllers must be those whose state the checkpoint holds.
    Raises CheckpointError for a checkpoint that is not ours, of another layout or of other controllers.
    """
    path = Path(folder) / STATE_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no {STATE_FILE}: it was not saved by ObjectiveTrainer; to start from its weights pass it as the model"
        )
    content: dict[str, Any] = read_json(path)
    if content.get("version") != VERSION:
        raise CheckpointError(f"{path} has version {content.get('version')!r}; this library reads version {VERSION}")
    _check_layout(folder, content["layout"], layout)
    _check_state(folder, content["state"], objective)
    return content


def load_rank(folder: str, rank: int, device: torch.device) -> dict[str, Any]:
    """Read this rank's file; its tensors come to `device`. CheckpointError where it is missing."""
    path = _rank_file(folder, rank)
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: the checkpoint is incomplete (or was saved with save_only_model)")
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return content


def _rank_file(folder: str, rank: int) -> Path:
    return Path(folder) / f"isentrope_rank{rank}.pt"


def _check_layout(folder: str, saved: dict[str, int], current: dict[str, int]) -> None:
    changed = [
        f"{name} {saved.get(name)} then, {value} now" for name, value in current.items() if saved.get(name) != value
    ]
    if changed:
        raise CheckpointError(
            f"{folder} was saved with other settings: {'; '.join(changed)}. Resume with the same ones, or start a new run from its weights"
        )


def _check_state(folder: str, state: dict[str, float], objective: Objective) -> None:
    """A state may have more numbers than `init` gives (a target found in the first batch), but none of another controller."""
    paths = tuple(f"{path}." for path in objective.controllers())
    stray = [key for key in state if not key.startswith(paths)] if paths else list(state)
    missing = [key for key in objective.init() if key not in state]
    if stray or missing:
        raise CheckpointError(
            f"{folder} holds the state of another objective: it has {sorted(state) or 'no controllers'}, this objective's controllers "
            f"are {', '.join(objective.controllers()) or 'none'}. Resume with the same objective, or start a new run from its weights"
        )
