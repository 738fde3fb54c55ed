"""verl's trainers with an objective: `prepare` on the driver once per rollout batch, `loss` in the workers.

One class for each of verl's V1 trainers; what they share is `ObjectiveSteps`. Rollouts, rewards, log-probabilities,
critic, weight transfer, validation and checkpoints stay verl's. The rest is three methods:

* `_compute_advantage` takes the place of verl's estimator: it fetches what verl fetches there, and `entropy` where the
  objective reads it, removes verl's pad rows, lets the controllers observe, and puts back `advantages` and what else
  the loss of the objective reads.
* `_update_actor` sends the controllers' state and the totals of one update along with the batch, and logs.
* `_save_checkpoint` and `_load_checkpoint` keep the controllers' state beside verl's files (`verl_state`).

A KL penalty in the reward (`algorithm.use_kl_in_reward`) and verl's sampler correction (`algorithm.rollout_correction`)
act as in verl, but tokens that verl rejects get weight 0 and stay in the count.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import open_dict
from tensordict import TensorDict
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSeparateAsync, PPOTrainerSync
from verl.workers.utils.padding import response_to_nested

from isentrope.engines import verl_dump, verl_state
from isentrope.engines.verl_columns import Rollout, rollout
from isentrope.engines.verl_hook import VerlCorrection
from isentrope.engines.verl_keys import TARGET, TRAINER_MODES, lookup, objective_of
from isentrope.engines.verl_loss import ObjectiveLoss, pooled
from isentrope.engines.verl_options import check
from isentrope.engines.verl_prepare import MESSAGE, Prepared, message, prepare, rollout_metrics
from isentrope.engines.verl_state import Progress
from isentrope.errors import IsentropeWarning
from isentrope.objective import Objective

_TOKEN_FIELDS = (
    "response_mask",
    "rm_scores",
    "old_log_probs",
    "entropy",
    "rollout_log_probs",
    "ref_log_prob",
    "values",
)
_ROW_FIELDS = ("uid", "task", "data_source", "extra_fields")


def settle(config: Any, objective: Objective, base_mode: str) -> None:
    """Set the keys of verl that follow from the objective: what it must compute and start, and whose trainer ours
    extends.

    config: changed in place, before verl reads it. The mode is verl's own from here on, by which verl picks its replay
    buffer; a reference model and a critic are started where the objective reads their columns.
    """
    needs = objective.columns()
    read = needs.prepare | needs.loss | needs.optional
    actor = config.actor_rollout_ref.actor
    with open_dict(config):
        config.trainer.v1.trainer_mode = base_mode
        config.critic.enable = "value" in needs.prepare | needs.loss
        actor.calculate_entropy = bool(actor.get("calculate_entropy", False)) or "entropy" in read
        actor.use_kl_loss = (
            "ref_logp" in needs.prepare | needs.loss
        )  # verl starts a reference for it; its loss is unused
        if actor.policy_loss.get("_target_") == TARGET:
            actor.policy_loss.driver = True


class ObjectiveSteps:
    """What our trainers have in common; comes before one of verl's V1 trainers among the bases.

    Raises ConfigError, before anything is started, for what cannot be honoured (`verl_options.refusals`). Warns where a
    rule cannot act.
    """

    base_mode: ClassVar[str]
    config: Any
    actor_rollout_wg: Any
    global_steps: int

    def __init__(self, config: Any) -> None:
        objective = objective_of(config)
        check(config, objective)
        self._limit = float(config.data.max_response_length)
        self._objective = _with_correction(objective, config)
        self._progress = Progress(objective.init())
        self._message = ""
        self._dump = verl_dump.dump_of(config)
        settle(config, objective, self.base_mode)
        _warn(config, objective)
        super().__init__(config)  # type: ignore[call-arg]

    def _setup(self) -> None:
        super()._setup()  # type: ignore[misc]
        self.actor_rollout_wg.set_loss_fn(ObjectiveLoss.of(self._objective))

    # -- once per rollout batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        wanted = [name for name in _TOKEN_FIELDS if name != "entropy" or self._reads_old_entropy]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[*wanted, *_ROW_FIELDS])
        nested_mask = data["response_mask"]
        found = self._rollout(data, batch.keys, metrics)
        prepared = prepare(self._objective, found, self._progress)
        self._progress = prepared.progress
        self._message = message(prepared, self._num_updates(len(batch)))
        metrics.update(self._verls_entropy(metrics) | rollout_metrics(prepared))
        self._dump_tokens(batch, found, prepared)
        fields = {
            name: response_to_nested(column, nested_mask) if prepared.is_token_wise(name) else column
            for name, column in prepared.fields.items()
        }
        fields |= self._correction_fields(found, nested_mask)
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch))
        )

    def _verls_entropy(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """verl's own mean of the old policy's entropy, where it is the mean over tokens, by its name of ours."""
        is_mean = self.config.actor_rollout_ref.actor.loss_agg_mode == "token-mean"
        return {"entropy/old_exact": metrics["actor/entropy"]} if is_mean and "actor/entropy" in metrics else {}

    @property
    def _reads_old_entropy(self) -> bool:
        """verl has had the entropies on the driver already, for its metric; they come again only if they are read."""
        needs = self._objective.columns()
        return "old_entropy" in needs.prepare | needs.loss | needs.optional

    def _rollout(self, data: TensorDict, keys: list[str], metrics: dict[str, Any]) -> Rollout:
        """The columns of verl's batch. data: as it comes out of the TransferQueue."""
        uids, tasks = _listed(data, "uid"), _listed(data, "task") or _listed(data, "data_source")
        lengths = data["response_mask"].offsets().diff()
        tokens = data.select(*(name for name in _TOKEN_FIELDS if name in _names(data))).to_padded_tensor()
        fields = self._rewarded({name: tokens[name] for name in _names(tokens)}, metrics)
        numbers = None if tasks is None else self._task_numbers(tasks, uids)
        assert uids is not None, "verl gives every row a uid"
        unscored = _unscored(_listed(data, "extra_fields"))
        if unscored is not None:
            real = [x for uid, x in zip(uids, unscored, strict=True) if not str(uid).startswith("pad")]
            metrics["unscored"] = sum(real) / max(1, len(real))
        return rollout(fields, uids, keys, numbers, lengths, self._limit, unscored)

    def _rewarded(self, fields: dict[str, Tensor], metrics: dict[str, Any]) -> dict[str, Tensor]:
        """With `token_level_rewards`, and `rollout_is_weights` where verl corrects for the sampler."""
        proto = DataProto.from_dict(tensors=fields | {"token_level_scores": fields["rm_scores"]})
        proto.batch["token_level_rewards"] = fields["rm_scores"]
        if self.config.algorithm.use_kl_in_reward:
            proto, found = apply_kl_penalty(proto, self.kl_ctrl_in_reward, self.config.algorithm.kl_penalty)  # type: ignore[attr-defined]
            metrics.update(found)
        if self._verl_corrects:
            mask = fields["response_mask"]
            proto, found = compute_rollout_correction_and_add_to_batch(proto, self.config.algorithm.rollout_correction)
            metrics.update(found)
            weights = proto.batch.get("rollout_is_weights", mask.float())
            proto.batch["rollout_is_weights"] = weights * proto.batch["response_mask"]
            proto.batch["response_mask"] = mask
        return {name: proto.batch[name] for name in _names(proto.batch)}

    @property
    def _verl_corrects(self) -> bool:
        return isinstance(self._objective.correction, VerlCorrection)

    def _correction_fields(self, found: Rollout, nested_mask: Tensor) -> dict[str, Tensor]:
        if not self._verl_corrects:
            return {}
        weights = found.whole(found.columns["rollout_is_weights"])
        return {"rollout_is_weights": response_to_nested(weights, nested_mask)}

    def _task_numbers(self, names: list[Any], uids: list[Any] | None) -> list[int]:
        """A number for each row; a new name of a real row gets the next one, in the order of names."""
        real = {str(n) for n, uid in zip(names, uids or names, strict=True) if not str(uid).startswith("pad")}
        self._progress.tasks += sorted(real - set(self._progress.tasks))
        index = {name: i for i, name in enumerate(self._progress.tasks)}
        return [index.get(str(name), 0) for name in names]

    def _num_updates(self, num_rows: int) -> int:
        """Updates in one pass over a rollout batch of so many rows, verl's pad rows included."""
        actor = self.config.actor_rollout_ref
        return max(1, num_rows // (actor.actor.ppo_mini_batch_size * actor.rollout.n))

    def _dump_tokens(self, batch: Any, found: Rollout, prepared: Prepared) -> None:
        """Write the token dump, in the rollout batches that the configuration names (`verl_dump`)."""
        if self._dump is None or not self._dump.wants(self.global_steps):
            return
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=list(verl_dump.FIELDS)
        ).to_padded_tensor()
        width = found.columns["mask"].shape[1]
        fetched = {name: data[name][:, :width][found.places] for name in verl_dump.FIELDS}
        totals = prepared.totals.scaled(1 / self._num_updates(len(batch)))
        now = self._objective.at(self._progress.state)
        self._dump.write(self.global_steps, now, prepared.rows, totals, fetched)

    # -- once per rollout batch, all its updates

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch.extra_info[MESSAGE] = self._message
        batch = super()._update_actor(batch, metrics)  # type: ignore[misc]
        found = pooled(metrics, "actor/")
        metrics.update(found)
        return batch

    # -- checkpoints

    def _save_checkpoint(self) -> None:
        verl_state.save(self._folder(self.global_steps), self._objective, self._progress)
        super()._save_checkpoint()  # type: ignore[misc]

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()  # type: ignore[misc]
        if self.global_steps > 0:
            asked = self.config.trainer.resume_mode == "resume_path"
            folder = self.config.trainer.resume_from_path if asked else self._folder(self.global_steps)
            self._progress = verl_state.load(folder, self._objective)

    def _folder(self, step: int) -> str:
        return os.path.join(self.config.trainer.default_local_dir, f"global_step_{step}")


class IsentropeTrainer(ObjectiveSteps, PPOTrainerSync):
    """`trainer_mode=isentrope`: verl's synchronous trainer."""

    base_mode = "sync"


class IsentropeColocateAsync(ObjectiveSteps, PPOTrainerColocateAsync):
    """`trainer_mode=isentrope_colocate_async`: rollouts go on while the same GPUs train."""

    base_mode = "colocate_async"


class IsentropeSeparateAsync(ObjectiveSteps, PPOTrainerSeparateAsync):
    """`trainer_mode=isentrope_separate_async`: rollouts on GPUs of their own.

    verl takes `parameter_sync_step` batches a step: each is a rollout batch, which controllers observe.
    """

    base_mode = "separate_async"


TRAINERS = {
    name: trainer
    for trainer in (IsentropeTrainer, IsentropeColocateAsync, IsentropeSeparateAsync)
    for name, mode in TRAINER_MODES.items()
    if mode == trainer.base_mode
}


def _with_correction(objective: Objective, config: Any) -> Objective:
    """verl's sampler correction as the objective's, where it is on."""
    section = lookup(config, "algorithm.rollout_correction", {}) or {}
    active = (section.get("rollout_is") or section.get("rollout_rs")) and not section.get("bypass_mode", False)
    return replace(objective, correction=VerlCorrection()) if active else objective


def _warn(config: Any, objective: Objective) -> None:
    actor, rows = config.actor_rollout_ref.actor, config.data.train_batch_size
    updates = max(1, rows // actor.ppo_mini_batch_size) * actor.ppo_epochs
    for sentence in objective.inert(updates, config.actor_rollout_ref.rollout.n):
        warnings.warn(sentence, IsentropeWarning, stacklevel=3)


def _listed(data: Mapping[str, Any], name: str) -> list[Any] | None:
    """A field of values that are no tensors, as a list; None where it is not there."""
    if name not in _names(data):
        return None
    found = data[name]
    return list(found.tolist() if isinstance(found, torch.Tensor | np.ndarray) or hasattr(found, "tolist") else found)


def _unscored(extra_fields: list[Any] | None) -> list[bool] | None:
    """For each row whether its verifier could not judge it (`tasks.compute_score`); None where none says anything."""
    given = [getattr(held, "data", held) for held in extra_fields or []]
    said = [held.get("reward_extra_info") or {} if isinstance(held, dict) else {} for held in given]
    return [bool(info.get("unscored")) for info in said] if any("unscored" in info for info in said) else None


def _names(data: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in data.keys()]  # noqa: SIM118  (a TensorDict iterates over rows)
