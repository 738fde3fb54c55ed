"""The objective in verl's own trainers: the advantage in its estimator, the rest in its policy loss.

```console
$ python -m verl.trainer.main_ppo ... algorithm.adv_estimator=isentrope/ce_gppo \
    actor_rollout_ref.actor.policy_loss.loss_mode=isentrope/ce_gppo
```

This serves objectives whose rules need no more than verl passes there (`verl_placement.hook_refusals` names what is
missing for the others, and `trainer.v1.trainer_mode=isentrope` supplies it). The loss is divided by the mini-batch's
tokens and rows over all ranks, as verl counts them, so any split into micro-batches or ranks gives the same gradient.
An entropy bonus (`entropy_coeff`), a KL loss (`use_kl_loss`) and a sampler correction
(`algorithm.rollout_correction`) of verl's are added by verl and act as in verl.

The metrics are verl's (`actor/pg_clipfrac`, `actor/ppo_kl`), means over micro-batches as verl takes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from isentrope import masked, spec
from isentrope.aggregate import Totals
from isentrope.engines.verl_columns import group_numbers, is_pad
from isentrope.engines.verl_keys import ConfigError, lookup, named, objective_source
from isentrope.engines.verl_placement import driver_part, hook_refusals, needs_length
from isentrope.objective import Objective


@dataclass(frozen=True)
class VerlCorrection:
    """verl's own sampler correction (`algorithm.rollout_correction`) as a rule of the slot `correction`.

    rollout_is_weights: [B,T], from verl; rejected tokens have 0. Returns it: a factor on J.
    """

    def __call__(self, *, rollout_is_weights: Tensor) -> Tensor:
        return rollout_is_weights


@cache
def hosted(source: str, loss_scale_factor: float | None = None) -> Objective:
    """The objective of a source, once a process; ConfigError where the hooks of verl's own trainers cannot host it."""
    objective = spec.load(source)
    found = hook_refusals(objective, loss_scale_factor)
    if found:
        raise ConfigError("; ".join(found))
    return objective


def advantages(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    config: Any = None,
    index: Sequence[Any] | None = None,
    *,
    name: str = "",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The advantage estimator `isentrope`: (advantages, returns), both [N,T], 0 behind the mask and in verl's pad rows.

    token_level_rewards, response_mask: [N,T]. index: the uid of each row, equal for a prompt's rows. config: verl's
    `algorithm` section, from whose root the objective is read if the estimator's name does not hold it.
    Further columns that verl hands to an estimator (`reward_baselines`) serve none of ours.
    """
    if index is None:
        raise ConfigError(
            "the advantage estimator `isentrope` needs the uid of each row, which this trainer does not pass"
        )
    part = driver_part(hosted(name or _source_of(config), _scale_factor(config)))
    mask = response_mask.bool()
    real = [i for i in range(len(mask)) if not is_pad(index[i], mask[i])]
    batch = {
        "reward": token_level_rewards.sum(-1)[real].float(),
        "group": group_numbers([index[i] for i in real]),
        "mask": mask[real],
    }
    found = torch.zeros_like(token_level_rewards, dtype=torch.float32)
    if real:
        found[real] = part.prepare(batch)[0]["advantage"]
    return found, found


def _root(config: Any) -> Mapping[str, Any]:
    root = getattr(config, "_get_root", None)
    found: Mapping[str, Any] = {"algorithm": config} if root is None else root()
    return found


def _source_of(config: Any) -> str:
    return objective_source(_root(config))


def _scale_factor(config: Any) -> float | None:
    return lookup(_root(config), "actor_rollout_ref.actor.loss_scale_factor")


def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",  # noqa: ARG001  (verl passes it by name)
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    *,
    name: str = "",
) -> tuple[Tensor, dict[str, Any]]:
    """The policy loss `isentrope`: (loss, metrics) of one micro-batch, as verl calls it.

    All tensors [B,T]. config: verl's ActorConfig; `global_batch_info` holds the mini-batch's tokens and rows over all
    ranks, and the number of ranks, over which verl averages gradients. loss_agg_mode belongs to what verl adds (entropy
    bonus, KL loss); ours is the slot `aggregate`.
    """
    objective = hosted(name or _named_in(config), config.loss_scale_factor)
    mask = response_mask.bool()
    rows = {"mask": mask, "selected": mask, "counted": mask, "excluded": torch.zeros_like(mask)}
    rows |= {"logp": log_prob, "old_logp": old_log_prob, "advantage": masked.fill(masked.upcast(advantages), mask)}
    if needs_length(objective):
        rows["length_limit"] = torch.full((len(mask),), float(config.loss_scale_factor), device=mask.device)
    if rollout_is_weights is not None:
        objective, rows = _corrected(objective), rows | {"rollout_is_weights": rollout_is_weights}
    totals, num_ranks = _totals(config.global_batch_info, mask)
    return objective.loss(rows, totals) * num_ranks, _metrics(objective, rows)


def _named_in(config: Any) -> str:
    source = config.policy_loss.get("objective") or named(config.policy_loss.get("loss_mode"))
    if not source:
        raise ConfigError("policy_loss.loss_mode=isentrope names no objective: set loss_mode=isentrope/NAME")
    return str(source)


def _corrected(objective: Objective) -> Objective:
    if objective.correction is not None:
        raise ConfigError(
            "the sampler would be corrected twice: by the slot `correction` and by algorithm.rollout_correction; "
            "leave one of them"
        )
    return replace(objective, correction=VerlCorrection())


def _totals(info: Mapping[str, Any], mask: Tensor) -> tuple[Totals, int]:
    """The mini-batch's totals over all ranks as verl counts them, and the ranks; this micro-batch's if it does not."""
    tokens, rows = info.get("batch_num_tokens"), info.get("global_batch_size")
    tokens = float(mask.sum()) if tokens is None else float(tokens)
    rows = float(mask.any(-1).sum()) if rows is None else float(rows)
    return Totals(tokens, rows, 0.0), int(info.get("dp_size") or 1)


@torch.no_grad()
def _metrics(objective: Objective, rows: dict[str, Tensor]) -> dict[str, float]:
    clean = objective.cleaned(rows)
    log_ratio = clean["logp"] - clean["old_logp"]
    found = {"actor/ppo_kl": float(masked.mean(-log_ratio, clean["mask"]))}
    sides = objective.clipped(clean)
    if sides is not None:
        clipped = (sides[0] | sides[1]).to(log_ratio.dtype)
        found["actor/pg_clipfrac"] = float(masked.mean(clipped, clean["mask"]))
    return found
