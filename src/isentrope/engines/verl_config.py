"""A recipe as verl's configuration: every key of the recipe has its place there, or is refused.

A recipe counts optimizer steps, verl counts rollout batches: `steps`, `warmup_steps`, `checkpoint_every` and
`tokens_every` are divided by the updates on a rollout batch, and must come out whole. Weight decay is 0, as in the
other engines, unless `[verl]` says otherwise. `[verl]` is laid over the recipe's settings, a rehearsal's own
(`verl_laptop.settings`) in between, so that a user's word is the last.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isentrope import spec
from isentrope.engines import verl_laptop
from isentrope.engines.verl_data import PLAIN_TEMPLATE
from isentrope.engines.verl_table import check_version, compose, engine_of, flatten, is_known
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.recipe import DEFAULT_TIME_LIMIT, Evaluation, Recipe

GPUS, NODES = verl_laptop.RANKS, "trainer.nnodes"
LOSS = "actor_rollout_ref.actor.policy_loss"
OBJECTIVE = f"{LOSS}.objective"
TOKENS = "trainer.v1.isentrope.tokens"
OURS = (OBJECTIVE, TOKENS)  # the keys that verl gets from us
TRAINER = "trainer.v1.trainer_mode"
NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
SCHEDULE = {"dp": "lr_scheduler_type", "megatron": "lr_decay_style"}  # by training engine
TEMPLATE = "actor_rollout_ref.model.custom_chat_template"


@dataclass(frozen=True)
class Layout:
    """Where a job keeps its files, all below the run folder."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "verl.yaml"

    @property
    def train(self) -> Path:
        return self.folder / "verl" / "train.parquet"

    @property
    def test(self) -> Path:
        return self.folder / "verl" / "test.parquet"

    @property
    def metrics(self) -> Path:
        return self.folder / "verl" / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.folder / "verl" / "rollouts"

    @property
    def validation(self) -> Path:
        return self.folder / "verl" / "validation"

    @property
    def log(self) -> Path:
        return self.folder / "verl" / "job.log"

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


@dataclass(frozen=True)
class Batches:
    """The arithmetic of a job. Rows are completions; a rollout is what verl calls a step."""

    prompts: int
    rows: int
    minibatch_prompts: int
    micro_rows: int  # of one rank
    ranks: int
    updates_per_rollout: int
    rollouts: int

    def describe(self) -> str:
        """One line."""
        return (
            f"{self.rollouts} rollouts of {self.prompts} prompts = {self.rows} completions on {self.ranks}"
            f" rank{'s' * (self.ranks > 1)}, {self.updates_per_rollout} updates each of"
            f" {self.minibatch_prompts} prompts, {self.micro_rows} completions at a time on a rank;"
            f" {self.rollouts * self.updates_per_rollout} updates in all"
        )


def batches(recipe: Recipe, given: Mapping[str, Any]) -> Batches:
    """The arithmetic of a recipe with the flat table `given`; IsentropeError names what does not divide."""
    loop = recipe.trainer
    ranks = ranks_of(recipe, given)
    if loop.prompts % loop.minibatches:
        raise IsentropeError(
            f"trainer.prompts = {loop.prompts} do not divide into trainer.minibatches = {loop.minibatches}:"
            " verl cuts a rollout batch between prompts"
        )
    for what, rows in (("a minibatch", loop.rows // loop.minibatches), ("a micro-batch", loop.micro_rows)):
        if rows % ranks:
            raise IsentropeError(
                f"the {rows} completions of {what} do not divide among {ranks} ranks;"
                f" change trainer.prompts, group_size, minibatches or micro_batch, or [verl] {GPUS}"
            )
    return Batches(
        prompts=loop.prompts,
        rows=loop.rows,
        minibatch_prompts=loop.prompts // loop.minibatches,
        micro_rows=loop.micro_rows // ranks,
        ranks=ranks,
        updates_per_rollout=loop.updates_per_rollout,
        rollouts=in_rollouts(recipe, "trainer.steps", loop.steps),
    )


def ranks_of(recipe: Recipe, given: Mapping[str, Any]) -> int:
    """Training processes: those of `[verl]`, else 1 in a rehearsal and verl's own 8 on a cluster."""
    gpus, nodes = given.get(GPUS, 1 if recipe.laptop else 8), given.get(NODES, 1)
    if not all(isinstance(n, int) and n > 0 for n in (gpus, nodes)):
        raise IsentropeError(f"[verl] {GPUS} = {gpus!r} and {NODES} = {nodes!r} must be whole numbers above 0")
    if recipe.laptop and nodes > 1:
        raise IsentropeError(f"[verl] {NODES} = {nodes}: a laptop is one node; set {GPUS} for more ranks")
    return int(gpus * nodes)


def in_rollouts(recipe: Recipe, key: str, updates: int) -> int:
    """Optimizer steps in verl's unit. IsentropeError where that is no whole number."""
    per = recipe.trainer.updates_per_rollout
    if updates % per:
        low = updates - updates % per
        near = f"{low} or {low + per}" if low else str(per)
        raise IsentropeError(
            f"{key} = {updates} is no multiple of the {per} updates on a rollout batch, and verl goes by whole rollout"
            f" batches; set it to {near}"
        )
    return updates // per


def refuse_what_verl_lacks(recipe: Recipe) -> None:
    """IsentropeError for a key of the recipe that has no counterpart in verl."""
    loop, output = recipe.trainer, recipe.output
    lacking = {
        f"trainer.lr_schedule = {loop.lr_schedule!r}": (
            loop.lr_schedule == "linear" and engine_of(flatten(recipe.verl)) != "megatron",
            "its FSDP engine has constant and cosine; Megatron has linear too",
        ),
        f"trainer.sampler = {loop.sampler!r}": (loop.sampler != "auto", "verl samples with its own rollout servers"),
        f"trainer.reward_time_limit = {loop.reward_time_limit:g}": (
            loop.reward_time_limit != DEFAULT_TIME_LIMIT,
            "verl does not bound the time of its reward workers; leave it out",
        ),
        f"evaluation.batch = {recipe.evaluation.batch}": (
            recipe.evaluation.batch != Evaluation().batch,
            "verl's rollout servers batch by themselves; leave it out",
        ),
        f"output.diagnostics_every = {output.diagnostics_every}": (
            output.diagnostics_every > 0,
            "the verl engine measures no diagnostics while it trains; set it to 0",
        ),
    }
    for what, (is_so, why) in lacking.items():
        if is_so:
            raise IsentropeError(f"{what} cannot be had with engine verl: {why}")


def settings(
    recipe: Recipe, objective: Objective, layout: Layout, *, model: str, longest_prompt: int, plain: bool
) -> dict[str, Any]:
    """verl's configuration by dotted keys, as far as it departs from verl's defaults.

    model: path of the policy. longest_prompt: tokens, 0 if not known. plain: prompts are texts, not chats.
    """
    refuse_what_verl_lacks(recipe)
    given = flatten(recipe.verl)
    sizes = batches(recipe, given)
    found = (
        _objective(objective)
        | _model(recipe, model, plain)
        | _data(recipe, layout, longest_prompt)
        | _actor(recipe, sizes)
        | _rollout(recipe, sizes)
        | _loop(recipe, layout, sizes)
        | _evaluation(recipe)
    )
    if recipe.laptop:
        found |= verl_laptop.settings(sizes.ranks, given.get(TRAINER, "isentrope"), _servers(given))
    _refuse_another_verl(found, engine_of(given))
    found |= {key.removeprefix("+"): value for key, value in given.items()}
    return found


def _servers(given: Mapping[str, Any]) -> int:
    """Rollout servers on GPUs of their own, which only separate_async has."""
    section = "actor_rollout_ref.rollout"
    return int(given.get(f"{section}.nnodes", 0) * given.get(f"{section}.n_gpus_per_node", 1))


def _refuse_another_verl(found: Mapping[str, Any], engine: str) -> None:
    """IsentropeError where verl, with this training engine, lacks a key that carries something of the recipe."""
    config = compose(engine)
    for key in found:
        if key not in OURS and not is_known(config, key):
            raise IsentropeError(
                f"verl {check_version()} has no {key} with model_engine {engine!r}: use dp or megatron"
            )


def configuration(found: Mapping[str, Any]) -> Any:
    """verl's whole configuration (OmegaConf) with these settings."""
    from omegaconf import OmegaConf, open_dict

    config = compose(engine_of(found))
    with open_dict(config):
        for key, value in found.items():
            if key != "model_engine":
                OmegaConf.update(config, key, value, force_add=True)
    return config


def _objective(objective: Objective) -> dict[str, Any]:
    return {
        TRAINER: "isentrope",
        f"{LOSS}._target_": "isentrope.engines.verl.PolicyLossConfig",
        f"{LOSS}.loss_mode": "isentrope",
        OBJECTIVE: spec.dumps(objective),
        "algorithm.adv_estimator": "grpo",  # no critic; the objective's own advantage takes its place
    }


def _model(recipe: Recipe, model: str, plain: bool) -> dict[str, Any]:
    kind = NAMES[recipe.model.dtype]
    mixed = {"param_dtype": kind, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    engines = [f"actor_rollout_ref.{role}.fsdp_config" for role in ("actor", "ref")]
    is_fsdp = engine_of(flatten(recipe.verl)) == "dp"
    return {
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.rollout.dtype": recipe.model.dtype,
        **({TEMPLATE: PLAIN_TEMPLATE} if plain else {}),
        **({f"{engine}.model_dtype": kind for engine in engines} if is_fsdp else {}),
        **({f"{engine}.mixed_precision": mixed for engine in engines} if is_fsdp else {}),
    }


def _data(recipe: Recipe, layout: Layout, longest_prompt: int) -> dict[str, Any]:
    return {
        "data.train_files": str(layout.train.resolve()),
        "data.val_files": str(layout.test.resolve()),
        "data.train_batch_size": recipe.trainer.prompts,
        "data.max_response_length": recipe.trainer.max_completion_length,
        **({"data.max_prompt_length": longest_prompt} if longest_prompt else {}),
        "data.seed": recipe.seed,
        "reward.custom_reward_function.path": "pkg://isentrope.tasks.scoring",
        "reward.custom_reward_function.name": "compute_score",
    }


def _actor(recipe: Recipe, sizes: Batches) -> dict[str, Any]:
    loop, actor = recipe.trainer, "actor_rollout_ref.actor"
    norm, engine = loop.max_grad_norm or math.inf, engine_of(flatten(recipe.verl))
    return {
        f"{actor}.ppo_mini_batch_size": sizes.minibatch_prompts,
        f"{actor}.ppo_micro_batch_size_per_gpu": sizes.micro_rows,
        f"{actor}.ppo_epochs": loop.passes,
        f"{actor}.data_loader_seed": recipe.seed,
        f"{actor}.entropy_coeff": 0,
        f"{actor}.use_kl_loss": False,
        **({f"{actor}.grad_clip": norm} if engine == "dp" else {}),
        f"{actor}.optim.clip_grad": norm,
        f"{actor}.optim.lr": loop.learning_rate,
        f"{actor}.optim.{SCHEDULE.get(engine, SCHEDULE['dp'])}": loop.lr_schedule.removesuffix("_with_warmup"),
        f"{actor}.optim.lr_warmup_steps": in_rollouts(recipe, "trainer.warmup_steps", loop.warmup_steps) or -1,
        f"{actor}.optim.weight_decay": 0.0,
    }


def _rollout(recipe: Recipe, sizes: Batches) -> dict[str, Any]:
    rollout = "actor_rollout_ref.rollout"
    return {
        f"{rollout}.name": "vllm",
        f"{rollout}.n": recipe.trainer.group_size,
        f"{rollout}.temperature": recipe.trainer.temperature,
        f"{rollout}.seed": recipe.seed,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": sizes.micro_rows,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": sizes.micro_rows,
    }


def _loop(recipe: Recipe, layout: Layout, sizes: Batches) -> dict[str, Any]:
    every = in_rollouts(recipe, "output.checkpoint_every", recipe.output.checkpoint_every)
    tokens = in_rollouts(recipe, "output.tokens_every", recipe.output.tokens_every)
    checkpoint = "actor_rollout_ref.actor.checkpoint"
    return {
        "trainer.total_training_steps": sizes.rollouts,
        "trainer.total_epochs": sizes.rollouts,  # never the smaller bound: an epoch has at least one rollout batch
        "trainer.save_freq": every or sizes.rollouts,  # verl saves at the last step too
        "trainer.max_actor_ckpt_to_keep": recipe.output.keep_checkpoints,
        "trainer.max_critic_ckpt_to_keep": recipe.output.keep_checkpoints,
        f"{checkpoint}.save_contents": ["model", "optimizer", "extra", "hf_model"],  # the last for `isentrope eval`
        f"{checkpoint}.load_contents": ["model", "optimizer", "extra"],
        "trainer.default_local_dir": str(layout.checkpoints.resolve()),
        "trainer.resume_mode": "auto",
        "trainer.rollout_data_dir": str(layout.rollouts.resolve()) if tokens else None,
        **({TOKENS: _dump(layout, sizes, tokens)} if tokens else {}),
        "trainer.validation_data_dir": str(layout.validation.resolve()),
        "trainer.logger": ["console", "file", *recipe.output.report_to],
        "trainer.project_name": "isentrope",
        "trainer.experiment_name": layout.folder.name,
        GPUS: sizes.ranks,
        NODES: 1,
    }


def _dump(layout: Layout, sizes: Batches, every: int) -> dict[str, Any]:
    """The fields of `verl_dump.Dump`."""
    return {
        "folder": str(layout.tokens.resolve()),
        "every": every,
        "updates": sizes.updates_per_rollout,
        "prompts": sizes.prompts,
        "rows": sizes.rows,
    }


def _evaluation(recipe: Recipe) -> dict[str, Any]:
    wanted, values = recipe.evaluation.problems > 0, "actor_rollout_ref.rollout.val_kwargs"
    rollouts = in_rollouts(recipe, "trainer.steps", recipe.trainer.steps)
    return {
        "trainer.val_before_train": wanted,
        "trainer.test_freq": rollouts if wanted else -1,  # after the last one
        f"{values}.n": recipe.evaluation.samples,
        f"{values}.temperature": recipe.evaluation.temperature,
        f"{values}.do_sample": True,
    }
