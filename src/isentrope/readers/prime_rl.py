"""prime-rl's token exports: `token_exports/step_N/rank_R.jsonl`, a line a sequence, a list a column.

Trainer and sampler log-probabilities, exact entropy, advantage and loss mask of every token; no update's weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isentrope.errors import IsentropeError
from isentrope.readers import _text
from isentrope.run import Facts, Run

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "token_exports"
NAMES = {
    "old_logp": "trainer_logprobs",
    "rollout_logp": "inference_logprobs",
    "entropy": "entropy",
    "advantage": "advantages",
    "token_id": "token_ids",
}
NOTE = "a token export holds one pass of the trainer: no ratio within a rollout batch, no weights"


def export_files(folder: Path) -> list[Path]:
    """The exports under a folder, which may be a run's output folder, `token_exports`, or one of its steps."""
    found = [
        *folder.glob(f"{FOLDER}/step_*/rank_*.jsonl"),
        *folder.glob("step_*/rank_*.jsonl"),
        *folder.glob("rank_*.jsonl"),
    ]
    return sorted(found, key=lambda path: (_step(path), path.name))


def is_export(row: Mapping[str, Any]) -> bool:
    """Whether a line is a sequence of a token export."""
    return "trainer_logprobs" in row and "loss_mask" in row


def read(paths: list[Path], name: str) -> Run:
    """The run of these exports; its curves are measured from the tokens."""
    return Run(
        name=name,
        engine="prime-rl",
        facts=Facts(entropy_kind="exact"),
        tokens=Sequences(tuple(paths)),
        sources=(f"{len(paths)} token exports",),
        notes=(NOTE,),
    )


@dataclass(frozen=True)
class Sequences:
    """The tokens of exports, a sequence at a time."""

    paths: tuple[Path, ...]

    def batches(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Step and the loss-masked tokens of one sequence."""
        tasks: dict[str, int] = {}
        for path in self.paths:
            for number, row in _text.objects(path):
                columns = _columns(row, f"{path} line {number}")
                if env := row.get("env_name"):
                    index = tasks.setdefault(str(env), len(tasks))
                    columns["task"] = columns["position"].new_full((len(columns["position"]),), index)
                yield int(_text.step_of(row, "step", f"{path} line {number}")), columns


def _columns(row: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    import torch

    mask = row.get("loss_mask")
    if not isinstance(mask, list):
        raise IsentropeError(f"{where} has no list under 'loss_mask'; this is no token export")
    keep = torch.tensor([bool(x) for x in mask], dtype=torch.bool)
    found = {ours: _column(row, theirs, len(mask), where) for ours, theirs in NAMES.items()}
    kept = {ours: column[keep] for ours, column in found.items() if column is not None}
    return kept | {"position": torch.arange(int(keep.sum()))}


def _column(row: Mapping[str, Any], name: str, length: int, where: str) -> Tensor | None:
    import torch

    values = row.get(name)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != length:
        found = len(values) if isinstance(values, list) else type(values).__name__
        raise IsentropeError(f"{where}: {name!r} must be a list of {length} numbers, as 'loss_mask'; found {found}")
    try:
        return torch.tensor([float("nan") if x is None else float(x) for x in values], dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise IsentropeError(f"{where}: {name!r} holds something else than numbers: {error}") from error


def _step(path: Path) -> int:
    match = re.fullmatch(r"step_(\d+)", path.parent.name)
    return int(match[1]) if match else 0
