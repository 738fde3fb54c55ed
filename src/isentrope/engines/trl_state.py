"""What a checkpoint holds beyond TRL's own files, so that a resumed run continues exactly.

* `isentrope_state.json`: what is the same on all ranks: the controllers' state, task names, counters, half-filled log
  lines, the temperature of the rollout batch, what the diagnostics keep over the run, pass rates of a curriculum.
* `isentrope_rank<i>.pt`: what each rank has for itself: pooled numerators, sums of the diagnostics, the loss since the
  last log line and, in the middle of a rollout batch, the prepared rows that later updates still use. TRL alone loses
  those rows on resume.

Both are written before TRL's files: a checkpoint with a `trainer_state.json` has them.
"""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from isentrope.engines.state import CheckpointError as CheckpointError
from isentrope.engines.state import check_state
from isentrope.engines.trl_batch import TaskNames
from isentrope.record import read_json, replacing, write_json

STATE_FILE = "isentrope_state.json"
VERSION = 3
_LAYOUT = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "num_iterations",
    "num_generations",
)


def save(trainer: Any, folder: str) -> None:
    """Write this rank's file, and on the rank that saves also what all share; each whole or not at all."""
    os.makedirs(folder, exist_ok=True)  # other ranks may come before the one that saves the model
    with replacing(_rank_file(folder, trainer)) as temporary:
        torch.save(_own(trainer), temporary)
    if trainer.args.should_save:
        write_json(Path(folder) / STATE_FILE, {"version": VERSION, "layout": _layout(trainer)} | _shared(trainer))


def _own(trainer: Any) -> dict[str, Any]:
    reuse = trainer.args.steps_per_generation * trainer.num_iterations
    return {
        "pool": trainer._pools["train"].state(),
        "loss": trainer._tr_loss.detach(),
        "rows": trainer._buffered_inputs if trainer._step % reuse else None,
        "diagnostics": trainer._diagnostics.own(),
    }


def _shared(trainer: Any) -> dict[str, Any]:
    return {
        "objective": str(trainer.objective),
        "state": trainer._state,
        "tasks": trainer._tasks.names,
        "micro_step": trainer._step,
        "num_rollouts": trainer._num_rollouts,
        "metrics": dict(trainer._metrics["train"]),
        "last_logged_step": trainer._globalstep_last_logged,
        "temperature": trainer._sampling.temperature,
        "diagnostics": trainer._diagnostics.shared(),
        "skipped_steps": trainer._skipped_steps.count,
        "prompts": trainer._prompts.state(),
    }


def load(trainer: Any, folder: str) -> None:
    """Put a trainer where the checkpoint left off. CheckpointError for one that is not ours, incomplete, of other
    batch sizes, rollout reuse or process count, or of other controllers.
    """
    shared, own = _read_shared(folder), _read_own(folder, trainer)
    _check_layout(folder, shared["layout"], _layout(trainer))
    check_state(folder, shared["state"], trainer._objective)
    trainer._state = shared["state"]
    trainer._tasks = TaskNames(shared["tasks"])
    trainer._step, trainer._num_rollouts = shared["micro_step"], shared["num_rollouts"]
    trainer._metrics["train"].update(shared["metrics"])
    trainer._sampling.temperature = shared["temperature"]
    trainer._skipped_steps.count = shared["skipped_steps"]
    trainer._prompts.load(shared.get("prompts"))
    trainer._diagnostics.load(shared["diagnostics"], own["diagnostics"])
    trainer._pools["train"].load(own["pool"], trainer.accelerator.device)
    trainer._buffered_inputs = _moved(own["rows"], trainer.accelerator.device)
    trainer._window = own["loss"], shared["last_logged_step"]


class ContinueWindow(TrainerCallback):
    """Takes up the loss that was summed since the last log line; the training loop has just set it to 0."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        trainer = self._trainer
        if trainer._window is not None:
            loss, trainer._globalstep_last_logged = trainer._window
            trainer._tr_loss += loss
            trainer._window = None


def _rank_file(folder: str, trainer: Any) -> Path:
    return Path(folder) / f"isentrope_rank{trainer.accelerator.process_index}.pt"


def _read_shared(folder: str) -> dict[str, Any]:
    path = Path(folder) / STATE_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no {STATE_FILE}: ObjectiveTrainer did not save it; to use its weights pass it as model"
        )
    content: dict[str, Any] = read_json(path)
    if content.get("version") != VERSION:
        raise CheckpointError(f"{path} has version {content.get('version')!r}; this library reads version {VERSION}")
    return content


def _read_own(folder: str, trainer: Any) -> dict[str, Any]:
    path = _rank_file(folder, trainer)
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: the checkpoint is incomplete, or was saved with fewer processes")
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content


def _moved(rows: list[dict[str, Any]] | None, device: torch.device) -> list[dict[str, Any]] | None:
    """Rows on the device; numbers of the whole batch, which have no dimension, stay where they are."""
    if rows is None:
        return None
    return [
        {k: v.to(device) if isinstance(v, torch.Tensor) and v.ndim else v for k, v in part.items()} for part in rows
    ]


def _layout(trainer: Any) -> dict[str, int]:
    return {"processes": trainer.accelerator.num_processes} | {name: getattr(trainer.args, name) for name in _LAYOUT}


def _check_layout(folder: str, saved: dict[str, int], current: dict[str, int]) -> None:
    changed = [f"{key} was {saved.get(key)}, is {value}" for key, value in current.items() if saved.get(key) != value]
    if changed:
        raise CheckpointError(
            f"{folder} was saved with other settings: {'; '.join(changed)}. Resume with the same ones, or start a new "
            "run from its weights"
        )
