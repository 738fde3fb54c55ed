"""The table `[trl]` of a recipe: fields of trl.GRPOConfig by their own names, but for those that the recipe sets."""

import dataclasses
import importlib.util
from collections.abc import Mapping

from isentrope.errors import IsentropeError
from isentrope.recipe import suggestion

# Fields of trl.GRPOConfig that a recipe sets under a name of its own.
OWNED_BY_RECIPE = {
    "learning_rate": "trainer.learning_rate",
    "lr_scheduler_type": "trainer.lr_schedule",
    "warmup_steps": "trainer.warmup_steps",
    "max_grad_norm": "trainer.max_grad_norm",
    "max_steps": "trainer.steps",
    "num_train_epochs": "trainer.steps",
    "num_generations": "trainer.group_size",
    "num_iterations": "trainer.passes",
    "steps_per_generation": "trainer.minibatches",
    "generation_batch_size": "trainer.prompts",
    "per_device_train_batch_size": "trainer.micro_batch",
    "gradient_accumulation_steps": "trainer.micro_batch",
    "max_completion_length": "trainer.max_completion_length",
    "temperature": "trainer.temperature",
    "seed": "seed",
    "output_dir": "output.dir",
    "report_to": "output.report_to",
    "save_steps": "output.checkpoint_every",
    "save_strategy": "output.checkpoint_every",
    "save_total_limit": "output.keep_checkpoints",
    "model_init_kwargs": "model.dtype",
}
# Fields that the command sets because its record and its display depend on them.
FIXED_BY_COMMAND = (
    "disable_tqdm",
    "logging_steps",
    "logging_strategy",
    "logging_first_step",
    "resume_from_checkpoint",
    "run_name",
)


def check_table(table: Mapping[str, object], label: str) -> None:
    """Refuse keys that are no field of trl.GRPOConfig or that a recipe sets elsewhere.

    Without TRL a recipe is still read, as for a plan or another engine; which fields it has is not known then.
    """
    known = _fields()
    for key in table:
        if key in OWNED_BY_RECIPE:
            raise IsentropeError(f"{label}: [trl] {key} is set by {OWNED_BY_RECIPE[key]}; use that key")
        if key in FIXED_BY_COMMAND:
            raise IsentropeError(f"{label}: [trl] {key} is set by the command itself; remove it")
        if known and key not in known:
            raise IsentropeError(f"{label}: [trl] has no key {key!r}{suggestion(key, known)}")


def _fields() -> list[str]:
    """The fields of trl.GRPOConfig; none where TRL is not installed."""
    if importlib.util.find_spec("trl") is None:
        return []
    from trl import GRPOConfig

    return [field.name for field in dataclasses.fields(GRPOConfig) if field.init]
