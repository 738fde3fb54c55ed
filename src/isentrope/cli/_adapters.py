"""Runs that train low-rank adapters in place of the weights: the recipe's `[model.lora]`.

The trainer puts the adapters on the model, and on resumption fills them from the checkpoint, which holds nothing else.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from isentrope import record
from isentrope.errors import IsentropeError
from isentrope.recipe import Recipe


def config(recipe: Recipe) -> Any:
    """peft's configuration of the adapters that a recipe asks for; None for none.

    IsentropeError where peft is not installed.
    """
    settings = recipe.model.lora
    if not settings.rank:
        return None
    if find_spec("peft") is None:
        raise IsentropeError(f"[model.lora] rank = {settings.rank} needs the package peft: pip install peft")
    from peft import LoraConfig

    return LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, target_modules=settings.targets, task_type="CAUSAL_LM"
    )


def source(recipe: Recipe, checkpoint: Path | None) -> str:
    """What a run loads its model from: the recipe's, or a checkpoint.

    A run with adapters that goes on loads what lies below them; one that has made its steps loads them, too.
    """
    if checkpoint is None:
        return recipe.model.name
    goes_on = record.checkpoint_step(checkpoint) < recipe.trainer.steps
    return recipe.model.name if recipe.model.lora.rank and goes_on else str(checkpoint)


def lines(recipe: Recipe) -> list[str]:
    """What is said of the adapters before the run."""
    found = recipe.model.lora
    targets = found.targets if isinstance(found.targets, str) else ", ".join(found.targets)
    return [f"adapters   rank {found.rank}, alpha {found.alpha}, on {targets}"] if found.rank else []
