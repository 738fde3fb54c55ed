"""Weights from trainer to rollout servers through a file, for the asynchronous trainers of a rehearsed job.

verl's own transports need an accelerator's network. One rank writes the whole model, the servers' workers wait for the
file; it is gone when all have read it.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

from isentrope.engines.verl_laptop import FILES
from isentrope.errors import IsentropeError

POLL = 0.05  # seconds
PATIENCE = 600.0  # seconds until the weights are given up


@CheckpointEngineRegistry.register(FILES)
class FileEngine(CheckpointEngine):
    """One transfer: `prepare` on every worker, `build_topology`, `init_process_group`, send and receive, `finalize`."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._is_master = is_master
        self._path: Path | None = None

    def prepare(self) -> dict[str, Any]:
        """The master names a file that is not there yet."""
        path = Path(tempfile.mkdtemp(prefix="isentrope-weights-")) / "weights.pt" if self._is_master else None
        return {"path": str(path) if path else None}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """The master's file for everybody."""
        (path,) = (found["path"] for found in metadata if found["path"])
        return {"path": [path] * actor_wg_world_size}, {"path": [path] * rollout_world_size}

    def init_process_group(self, path: str) -> None:
        self._path = Path(path)

    async def send_weights(self, weights: Iterable[tuple[str, Tensor]], global_steps: int | None = None) -> None:
        """Go through all weights, which gathers them from the ranks; the master writes them, whole or not at all."""
        found = {name: tensor.detach().cpu() async for name, tensor in ensure_async_iterator(weights)}
        if self._is_master:
            part = self._file().with_suffix(".part")
            torch.save(found, part)
            os.replace(part, self._file())

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Tensor]]:
        """The weights, once they are there. IsentropeError after ten minutes."""
        deadline = time.monotonic() + PATIENCE
        while not self._file().exists():
            if time.monotonic() > deadline:
                raise IsentropeError(f"the trainer wrote no weights to {self._file()} in {PATIENCE:g} seconds")
            await asyncio.sleep(POLL)
        for name, tensor in torch.load(self._file(), weights_only=True).items():
            yield name, tensor

    def finalize(self) -> None:
        """The master removes the file, which everybody has read by now."""
        if self._is_master and self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path.parent.rmdir()
        self._path = None

    def _file(self) -> Path:
        assert self._path is not None, "init_process_group comes first"
        return self._path
