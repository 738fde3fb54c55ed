"""SkyRL 0.3: our objectives as its policy loss and its advantage estimator, in three lines of an entry point.

```text
from isentrope.engines import skyrl

Config = make_config(algorithm_cls=skyrl.AlgorithmConfig)      # SkyRL's, with room for what travels with a mini-batch
class Trainer(skyrl.Unscaled, RayPPOTrainer): ...              # what the experiment's get_trainer returns
skyrl.register("ce_gppo")                                      # before SkyRL validates the configuration

trainer.algorithm.policy_loss_type=isentrope trainer.algorithm.advantage_estimator=isentrope
trainer.algorithm.loss_reduction=token_mean                    # what the objective's `aggregate` is called there
```

**The reduction.** SkyRL folds it into the advantages: before a mini-batch goes to the workers, `_normalize_advantages`
divides each advantage by a count of tokens or rows, and the losses of micro-batches are summed. SkyRL's own Clip-Cov
then compares covariances that are smaller by that count with bounds of 1 and 5, and never acts; a penalty beside the
advantages weighs that much more. `Unscaled` leaves the advantages as they were computed, and sends the counts with each
mini-batch, so that the objective's own `aggregate` divides by them.

**Columns.** `prepare` runs on the driver on the whole training batch, with the old, the reference's and the sampler's
log-probabilities. Rows that SkyRL pads with have an empty `loss_mask` and enter no statistic. The loss sees what losses
of SkyRL see. What `select` drops leaves `loss_mask`, as in SkyRL's own filter of groups without variance. Controllers
observe on the driver; their state goes with each mini-batch, and into SkyRL's checkpoints. `refusals` names what an
objective lacks. In step-wise training the estimator sees what SkyRL gives it, rewards and groups of the last steps, and
an objective with controllers or a selection is refused.

**Options.** `eps_clip_low`, `eps_clip_high`, `clip_ratio_c`, `off_policy_correction`, `advantage_batch_normalize` are
slots of the objective here, and refused unless at their defaults. `use_kl_loss` and `use_entropy_loss` stay SkyRL's: it
adds these terms to the loss itself.
"""

import dataclasses
import importlib.util
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if importlib.util.find_spec("skyrl") is None:
    raise ImportError(
        "isentrope.engines.skyrl needs SkyRL 0.3: install isentrope in the environment that SkyRL trains in; there is"
        " none in this one"
    )

import torch
from skyrl.backends.skyrl_train.utils.io import io
from skyrl.backends.skyrl_train.utils.off_policy_correction_utils import off_policy_correction_enabled
from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry, PolicyLossRegistry
from skyrl.train.config import AlgorithmConfig as SkyRLAlgorithmConfig
from torch import Tensor

from isentrope import masked, spec
from isentrope.aggregate import ConstantLength, SequenceMean, TokenMean, Totals
from isentrope.columns import name_of
from isentrope.control import State
from isentrope.engines import loss_hook
from isentrope.engines.loss_hook import EngineError, Seam
from isentrope.objective import Objective

__all__ = ["AdvantageEstimator", "AlgorithmConfig", "EngineError", "PolicyLoss", "Unscaled", "refusals", "register"]

NAME = "isentrope"
STATE_FILE = "isentrope_state.json"
REDUCTIONS: dict[type, str] = {
    TokenMean: "token_mean",
    SequenceMean: "sequence_mean",
    ConstantLength: "seq_mean_token_sum_norm",
}
REPLACED = {"eps_clip_low": "surrogate", "eps_clip_high": "surrogate", "clip_ratio_c": "surrogate"}
SEAM = Seam(
    "SkyRL",
    prepare=frozenset({"reward", "group", "mask", "value", "old_logp", "ref_logp", "rollout_logp"}),
    loss=frozenset({"logp", "old_logp", "rollout_logp", "mask"}),
    keeps_state=True,
    masks_tokens=True,
)
_PADDING = re.compile(r"pad\d+")  # SkyRL's ids of the rows that it pads a batch with

# The advantages of the batch at hand, from the trainer to the estimator, which SkyRL calls with fewer columns.
_prepared: ContextVar[Tensor | None] = ContextVar("_prepared", default=None)


@dataclass
class AlgorithmConfig(SkyRLAlgorithmConfig):
    """SkyRL's `trainer.algorithm`, and what `Unscaled` sends with each mini-batch: nothing to set by hand."""

    mini_batch: dict[str, Any] = field(default_factory=dict)


def register(objective: Objective | str | Path | Mapping[str, Any], name: str = NAME) -> None:
    """Makes `name` known to SkyRL as a policy loss and as an advantage estimator, in this process and, through SkyRL's
    registry actor, in its workers.

    Raises EngineError for an objective that SkyRL cannot host exactly; ValueError, SkyRL's, for a name in use.
    """
    loaded = spec.load(objective)
    found = refusals(loaded)
    if found:
        raise EngineError("SkyRL cannot host this objective exactly: " + "; ".join(found))
    PolicyLossRegistry.register(name, PolicyLoss(loaded))
    AdvantageEstimatorRegistry.register(name, AdvantageEstimator(loaded))


def refusals(objective: Objective) -> list[str]:
    """Sentences on what SkyRL has no place for; empty where it hosts the objective exactly."""
    if type(objective.aggregate) not in REDUCTIONS:
        known = ", ".join(kind.__name__ for kind in REDUCTIONS)
        return [f"aggregate: {name_of(objective.aggregate)} needs more than a mini-batch's counts, so not {known}"]
    return loss_hook.refusals(_with_length(objective, 1), SEAM)


def _with_length(objective: Objective, max_seq_len: int | None) -> Objective:
    """ConstantLength without a length takes SkyRL's `max_seq_len`."""
    if objective.aggregate == ConstantLength():
        return replace(objective, aggregate=ConstantLength(max_seq_len))
    return objective


@dataclass(frozen=True)
class PolicyLoss:
    """A policy loss by SkyRL's signature: -J of a micro-batch; the losses of all micro-batches and ranks add up.

    advantages: as computed, not divided by counts. config: `AlgorithmConfig` with the mini-batch's totals and state.
    Returns the loss, a scalar with a graph, and the shares of tokens beyond the clip's bounds.
    Raises EngineError for an option that contradicts the objective, and where the trainer lacks `Unscaled`.
    """

    objective: Objective

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        config: Any,
        loss_mask: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        check_options(self.objective, config)
        totals, state = _mini_batch(config)
        columns = loss_hook.rows(
            logp=log_probs,
            old_logp=old_log_probs,
            advantage=advantages,
            mask=torch.ones_like(log_probs, dtype=torch.bool) if loss_mask is None else loss_mask > 0,
            rollout_logp=rollout_logprobs,
        )
        loss_hook.check_sampler(self.objective, columns, "SkyRL", "set generator.sampling_params.logprobs=1")
        now = _with_length(self.objective.at(state), config.max_seq_len)
        low, high = (float(share) for share in loss_hook.clip_shares(now, columns))
        return now.loss(columns, totals), {"clip_ratio": low + high, "clip_low": low, "clip_high": high}


def _mini_batch(config: Any) -> tuple[Totals, State]:
    sent = getattr(config, "mini_batch", None)
    if not sent:
        raise EngineError(
            "SkyRL divided the advantages by token counts and sent none along: put isentrope.engines.skyrl.Unscaled"
            " before the trainer's bases, and build the configuration with algorithm_cls=skyrl.AlgorithmConfig"
        )
    return Totals(**sent["totals"]), dict(sent["state"])


def check_options(objective: Objective, config: Any) -> None:
    """EngineError for an option of `trainer.algorithm` that the objective replaces or contradicts."""
    defaults = {f.name: f.default for f in dataclasses.fields(config)}
    for option, slot in REPLACED.items():
        value = getattr(config, option)
        if value != defaults[option]:
            raise EngineError(f"{option}={value!r} has no effect here; the objective's slot `{slot}` decides")
    if off_policy_correction_enabled(config.off_policy_correction):
        raise EngineError(
            "off_policy_correction acts inside SkyRL's own losses; fill the objective's slot `correction`"
        )
    if config.advantage_batch_normalize:
        raise EngineError("advantage_batch_normalize=True would whiten over padding; use advantage=BatchWhitened()")
    _check_reduction(objective.aggregate, config)


def _check_reduction(aggregate: Any, config: Any) -> None:
    wanted = REDUCTIONS[type(aggregate)]
    if config.loss_reduction != wanted:
        raise EngineError(
            f"loss_reduction={config.loss_reduction!r} contradicts the objective's {name_of(aggregate)}: set {wanted!r}"
        )
    length = getattr(aggregate, "length", None)
    if length is not None and length != config.max_seq_len:
        raise EngineError(
            f"max_seq_len={config.max_seq_len} contradicts ConstantLength(length={length}): set both alike"
        )


@dataclass(frozen=True)
class AdvantageEstimator:
    """An advantage estimator by SkyRL's signature: what `Unscaled` prepared, or `prepare` on the columns given here.

    Returns (advantages, returns), both [B,T] and the same. Rows that SkyRL pads with (ids pad0, pad1, ...) get 0.
    """

    objective: Objective

    def __call__(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Sequence[Any],
        values: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        advantage = _prepared.get()
        if advantage is None:
            real = torch.tensor([_PADDING.fullmatch(str(uid)) is None for uid in index], device=response_mask.device)
            columns = _columns(token_level_rewards, index, (response_mask > 0) & real[:, None], value=values)
            advantage = loss_hook.advantages(self.objective, columns)
        return advantage, advantage


def _columns(rewards: Tensor, index: Sequence[Any], mask: Tensor, **optional: Tensor | None) -> dict[str, Tensor]:
    numbers = {uid: i for i, uid in enumerate(dict.fromkeys(map(str, index)))}
    group = torch.tensor([numbers[str(uid)] for uid in index], device=mask.device)
    columns = {"reward": rewards.sum(-1), "group": group, "mask": mask}
    return columns | {name: x for name, x in optional.items() if x is not None}


class Unscaled:
    """Goes before SkyRL's trainer in the bases: `prepare` with all columns, advantages as computed, counts and
    controllers' state with each mini-batch and in each checkpoint.
    """

    cfg: Any
    dispatch: Any
    global_step: int
    _state: State | None = None

    def compute_advantages_and_returns(self, data: Any) -> Any:
        """SkyRL's, with the advantages of `prepare`; what `select` drops leaves `loss_mask`."""
        objective = self._objective()
        if self.cfg.generator.step_wise_trajectories:
            if objective.controllers() or objective.select:
                raise EngineError(
                    "step_wise_trajectories=True shows `prepare` no more than rewards and groups of the"
                    " last steps: take an objective without controllers and `select`"
                )
            return super().compute_advantages_and_returns(data)  # type: ignore[misc]
        mask = data["loss_mask"] > 0
        given = {"old_logp": "action_log_probs", "ref_logp": "base_action_log_probs"}
        given |= {"rollout_logp": "rollout_logprobs", "value": "values"}
        optional = {name: data.get(key) for name, key in given.items()}
        columns = _columns(data["rewards"], data.metadata["uids"], mask, **optional)
        prepared, self._state = objective.prepare(columns, self._state)
        token = _prepared.set(prepared["advantage"])
        try:
            data = super().compute_advantages_and_returns(data)  # type: ignore[misc]
        finally:
            _prepared.reset(token)
        data["loss_mask"] = masked.fill(data["loss_mask"].float(), prepared["selected"].to(data["loss_mask"].device))
        return data

    def _objective(self) -> Objective:
        """The objective of SkyRL's estimator and loss; EngineError where one of them is not ours."""
        algorithm = self.cfg.trainer.algorithm
        estimator = AdvantageEstimatorRegistry.get(algorithm.advantage_estimator)
        loss = PolicyLossRegistry.get(algorithm.policy_loss_type)
        if not isinstance(estimator, AdvantageEstimator) or not isinstance(loss, PolicyLoss):
            raise EngineError(
                f"advantage_estimator={algorithm.advantage_estimator!r} and policy_loss_type="
                f"{algorithm.policy_loss_type!r} must both be names given to isentrope.engines.skyrl.register"
            )
        if estimator.objective != loss.objective:
            raise EngineError("advantage_estimator and policy_loss_type name different objectives: give both one name")
        check_options(loss.objective, algorithm)
        return loss.objective

    def _normalize_advantages(self, data: Any, *boundaries: Any, **more: Any) -> Any:
        """Nothing: the objective's `aggregate` divides in the loss."""
        return data

    def _execute_training_step(self, model: str, data: Any) -> Any:
        """SkyRL's, with the totals of each mini-batch and the state sent along."""
        if model != "policy":
            return super()._execute_training_step(model, data)  # type: ignore[misc]
        state = self._objective().init() if self._state is None else self._state
        sent = [
            {"totals": dataclasses.asdict(_totals(data["loss_mask"][first:last])), "state": dict(state)}
            for first, last in data.metadata["policy_mini_batch_boundaries"]
        ]
        plain, self.dispatch = self.dispatch, _Sending(self.dispatch, sent)
        try:
            return super()._execute_training_step(model, data)  # type: ignore[misc]
        finally:
            self.dispatch = plain

    def save_checkpoints(self) -> Any:
        """SkyRL's; the state is written before, so that a checkpoint that SkyRL calls complete has it."""
        folder = os.path.join(self.cfg.trainer.ckpt_path, f"global_step_{self.global_step}")
        io.makedirs(folder, exist_ok=True)
        with io.open_file(os.path.join(folder, STATE_FILE), "w") as file:
            json.dump(self._state or self._objective().init(), file)
        return super().save_checkpoints()  # type: ignore[misc]

    def load_checkpoints(self) -> Any:
        """SkyRL's, and the state; EngineError for a checkpoint without one where the objective has controllers."""
        step, folder = super().load_checkpoints()  # type: ignore[misc]
        if folder is not None:
            self._state = self._load_state(os.path.join(str(folder), STATE_FILE))
        return step, folder

    def _load_state(self, path: str) -> State:
        if io.exists(path):
            with io.open_file(path, "r") as file:
                state: State = json.load(file)
            return state
        if self._objective().controllers():
            raise EngineError(f"{path} is missing: the checkpoint is not of this objective, whose controllers need it")
        return {}


def _totals(mask: Tensor) -> Totals:
    tokens = masked.row_count(mask > 0)
    return Totals(float(tokens.sum()), float((tokens > 0).sum()), 0.0)  # groups: no reduction here divides by them


class _Sending:
    """SkyRL's dispatch, which sends its part of `sent` with each staged mini-batch."""

    def __init__(self, dispatch: Any, sent: list[dict[str, Any]]) -> None:
        self._dispatch, self._sent, self._of = dispatch, sent, dict[int, dict[str, Any]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatch, name)

    def stage_data(self, model: str, data: Any, boundaries: Any) -> Any:
        staged = self._dispatch.stage_data(model, data, boundaries)
        self._of = {id(chunk): part for chunk, part in zip(staged, self._sent, strict=True)}
        return staged

    def forward_backward_from_staged(self, model: str, chunk_refs: Any, **more: Any) -> Any:
        config = {"mini_batch": self._of[id(chunk_refs)]} | (more.pop("loss_fn_config", None) or {})
        return self._dispatch.forward_backward_from_staged(model, chunk_refs, loss_fn_config=config, **more)
