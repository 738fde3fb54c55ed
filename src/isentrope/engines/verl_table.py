"""The table `[verl]` of a recipe: any key of verl's configuration by its own name, checked against verl's own schema.

`[verl]` takes dotted keys ("trainer.nnodes" = 2) or nested tables ([verl.trainer] nnodes = 2). Known are the keys of
verl's composed configuration, the fields of its dataclasses, and whatever stands below a key that verl leaves open
(`engine_kwargs.vllm`, `override_config`, `ray_kwargs.ray_init`, ...). A key written with a leading "+" is added
unchecked, as on verl's own command line. `model_engine` chooses the training engine: "dp" (FSDP), "megatron", "veomni",
"torchtitan".
"""

import dataclasses
import difflib
import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.recipe import suggestion

TESTED = ((0, 9), (0, 10))  # from the first, below the second
ENGINE = "model_engine"  # chosen while composing, not a key of the result
# Below these verl reads what it is given: no schema lists the keys.
OPEN = (
    "ray_kwargs.ray_init",
    "actor_rollout_ref.rollout.engine_kwargs",
    "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs",
    "actor_rollout_ref.model.override_config",
    "reward.custom_reward_function.reward_kwargs",
    "data",
    "algorithm",
)

# Keys of verl that a recipe sets under a name of its own.
OWNED_BY_RECIPE = {
    "actor_rollout_ref.model.path": "model.name",
    "actor_rollout_ref.actor.optim.lr": "trainer.learning_rate",
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "trainer.lr_schedule",
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "trainer.warmup_steps",
    "actor_rollout_ref.actor.optim.clip_grad": "trainer.max_grad_norm",
    "actor_rollout_ref.actor.grad_clip": "trainer.max_grad_norm",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "trainer.minibatches",
    "actor_rollout_ref.actor.ppo_epochs": "trainer.passes",
    "actor_rollout_ref.actor.ppo_micro_batch_size": "trainer.micro_batch",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "trainer.micro_batch",
    "actor_rollout_ref.rollout.n": "trainer.group_size",
    "actor_rollout_ref.rollout.temperature": "trainer.temperature",
    "actor_rollout_ref.rollout.seed": "seed",
    "data.seed": "seed",
    "data.train_batch_size": "trainer.prompts",
    "data.max_response_length": "trainer.max_completion_length",
    "data.train_files": "task",
    "data.val_files": "task",
    "trainer.total_training_steps": "trainer.steps",
    "trainer.total_epochs": "trainer.steps",
    "trainer.save_freq": "output.checkpoint_every",
    "trainer.max_actor_ckpt_to_keep": "output.keep_checkpoints",
    "trainer.max_critic_ckpt_to_keep": "output.keep_checkpoints",
    "trainer.logger": "output.report_to",
    "trainer.val_before_train": "evaluation.problems",
    "trainer.test_freq": "evaluation.problems",
    "actor_rollout_ref.rollout.val_kwargs.n": "evaluation.samples",
    "actor_rollout_ref.rollout.val_kwargs.temperature": "evaluation.temperature",
    "actor_rollout_ref.rollout.val_kwargs.do_sample": "evaluation.samples",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "objective",
    "actor_rollout_ref.actor.policy_loss.objective": "objective",
    "actor_rollout_ref.actor.policy_loss._target_": "objective",
    "reward.custom_reward_function.path": "task",
    "reward.custom_reward_function.name": "task",
    "trainer.device": "laptop",
}
# Keys that the command sets because its record and its display depend on them.
FIXED_BY_COMMAND = (
    "trainer.default_local_dir",
    "trainer.resume_mode",
    "trainer.resume_from_path",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "trainer.project_name",
    "trainer.experiment_name",
    "trainer.use_v1",
)


def check_table(table: Mapping[str, Any], label: str) -> None:
    """Refuse keys that verl lacks, that a recipe sets elsewhere, or that the command sets; name the nearest."""
    flat = flatten(table)
    _refuse_owned(flat, label)
    if importlib.util.find_spec("verl") is None:
        return  # a recipe is also read where it cannot run; a run says so
    config = compose(engine_of(flat))
    known = sorted(leaves(config))
    for key in flat:
        if not (key.startswith("+") or key == ENGINE or is_known(config, key)):
            raise IsentropeError(f"{label}: [verl] has no key {key!r}{_nearest(key, known)}")


def _refuse_owned(flat: Mapping[str, Any], label: str) -> None:
    for key in flat:
        if key.removeprefix("+") in OWNED_BY_RECIPE:
            owner = OWNED_BY_RECIPE[key.removeprefix("+")]
            raise IsentropeError(f"{label}: [verl] {key} is set by {owner}; use that key")
        if key.removeprefix("+") in FIXED_BY_COMMAND:
            raise IsentropeError(f"{label}: [verl] {key} is set by the command itself; remove it")


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys and values of nested tables, in order.

    >>> flatten({"trainer": {"nnodes": 2}, "data.shuffle": False, "a": {"b": {}}})
    {'trainer.nnodes': 2, 'data.shuffle': False, 'a.b': {}}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def engine_of(flat: Mapping[str, Any]) -> str:
    """The training engine that a flat table chooses."""
    return str(flat.get(ENGINE, "dp"))


@functools.cache
def _composed(engine: str) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    with initialize_config_dir(str(config_folder()), version_base=None):
        try:
            return hydra_compose("ppo_trainer", overrides=[f"{ENGINE}={engine}"])
        except HydraException as error:
            raise IsentropeError(f"verl has no {ENGINE} {engine!r}: {str(error).splitlines()[0]}") from error


def compose(engine: str = "dp") -> Any:
    """verl's default configuration as an OmegaConf DictConfig of one's own, its interpolations kept."""
    import copy

    return copy.deepcopy(_composed(engine))


def config_folder() -> Path:
    """Where verl's yaml files lie, found without importing verl. IsentropeError without a tested version of it."""
    version = check_version()
    found = importlib.util.find_spec("verl")
    folder = Path(next(iter(found.submodule_search_locations or [""]))) / "trainer" / "config" if found else Path()
    if not (folder / "ppo_trainer.yaml").is_file():
        raise IsentropeError(f"verl {version} has no trainer/config/ppo_trainer.yaml; reinstall it")
    return folder


def check_version() -> str:
    """The version of verl that is installed. IsentropeError where there is none, or one outside the tested range."""
    low, high = (".".join(map(str, bound)) for bound in TESTED)
    try:
        version = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        raise IsentropeError(
            "engine verl needs the package verl, which is not in this environment:"
            " pip install 'isentrope[verl]', or make .venv-verl"
        ) from None
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if not TESTED[0] <= parts < TESTED[1]:
        raise IsentropeError(
            f"verl is {version}; isentrope is tested with >= {low}, < {high}: pip install 'verl>={low},<{high}'"
        )
    return version


def is_known(config: Any, key: str) -> bool:
    """Whether verl's configuration has this dotted key, or a place where such a key may stand."""
    if any(key.startswith(f"{place}.") for place in OPEN):
        return True
    *parents, last = key.split(".")
    node, path = config, ""
    for name in parents:
        if not _has(node, name):
            return bool(path) and _is_open(node)
        node, path = _get(node, name), name
    return _has(node, last) or last in _dataclass_fields(node) or (bool(path) and _is_open(node))


def _has(node: Any, name: str) -> bool:
    from omegaconf import DictConfig

    return isinstance(node, DictConfig) and name in node.keys()  # noqa: SIM118  # `in node` is False for missing values


def _get(node: Any, name: str) -> Any:
    from omegaconf import OmegaConf

    if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name):
        return None
    return node[name]


def _is_open(node: Any) -> bool:
    """An empty mapping, or nothing, in verl's defaults: what stands below is for the user to say."""
    return node is None or (hasattr(node, "keys") and not node.keys())


def _dataclass_fields(node: Any) -> set[str]:
    """The fields of the dataclass that verl makes of this node."""
    from omegaconf import DictConfig

    target = node.get("_target_") if isinstance(node, DictConfig) else None
    if not isinstance(target, str):
        return set()
    module, _, name = target.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    return {f.name for f in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()


def leaves(node: Any, prefix: str = "") -> Iterator[str]:
    """All dotted keys of a configuration that hold no further ones."""
    from omegaconf import DictConfig

    for name in node.keys():  # noqa: SIM118
        value = _get(node, name)
        if isinstance(value, DictConfig) and value.keys():
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _nearest(key: str, known: list[str]) -> str:
    """The nearest key: the same last name elsewhere, else the most alike; the way to add one unchecked."""
    same = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    near = difflib.get_close_matches(key, same or known, n=1, cutoff=0.3 if same else 0.6)
    hint = f"; did you mean {near[0]!r}?" if near else f"{suggestion(key, known)};"
    return f"{hint} one that verl reads without listing it is written '+{key}'"
