"""Runs a trainer and keeps what it did: losses, gradients and parameters of every optimizer step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

# TRL calls what this transformers has renamed
MARKS = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:.*deprecated and will be removed in v6:FutureWarning")]


def whole(x: Tensor) -> Tensor:
    """A sharded tensor gathered from all ranks; any other as it is."""
    return x.full_tensor() if isinstance(x, DTensor) else x


@dataclass
class Watcher(TrainerCallback):
    """Flattened gradients before, and parameters after each optimizer step."""

    gradients: list[Tensor] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    sharded: list[bool] = field(default_factory=list)  # by step: whether every gradient lies on several ranks

    def on_pre_optimizer_step(self, *args: Any, model: torch.nn.Module, **kwargs: Any) -> None:
        learnt = [p for p in model.parameters() if p.requires_grad]
        found = [p.grad if p.grad is not None else torch.zeros_like(p) for p in learnt]
        self.gradients.append(torch.cat([whole(g).flatten() for g in found]).clone())
        self.sharded.append(all(isinstance(g, DTensor) for g in found))

    def on_step_end(self, *args: Any, model: torch.nn.Module, **kwargs: Any) -> None:
        self.parameters.append(torch.cat([whole(p.detach()).flatten() for p in model.parameters()]).clone())


@dataclass
class Run:
    """What a training run did."""

    trainer: Any
    gradients: list[Tensor]
    parameters: list[Tensor]
    history: list[dict[str, float]]
    sharded: list[bool] = field(default_factory=list)

    def logged(self, key: str) -> list[float]:
        return [line[key] for line in self.history if key in line]


class NoEngine:
    """Stands where TRL would start vLLM."""

    def __init__(self, **kwargs: Any) -> None:
        self.arguments = kwargs

    def sync_weights(self) -> None:
        """Nothing to synchronise."""


def train(make: Callable[..., Any], resume: str | None = None, **arguments: Any) -> Run:
    """Make a trainer, train it, and return what happened."""
    watcher = Watcher()
    trainer = make(callbacks=[watcher, *arguments.pop("callbacks", [])], **arguments)
    trainer.train(resume_from_checkpoint=resume)
    return Run(trainer, watcher.gradients, watcher.parameters, trainer.state.log_history, watcher.sharded)


def relative_distance(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest element of b."""
    return float((a - b).abs().max() / b.abs().max())
