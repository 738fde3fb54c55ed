"""What the tabular engine logs beyond `engines.metrics`: TRL's names for what the two share, and what is exact.

| key | meaning |
| --- | --- |
| `reward`, `reward_std`, `frac_reward_zero_std`, `completions/mean_length`, `completions/clipped_ratio` | of the rollout batch, as in TRL |
| `stage` | the stage that the step belongs to, 1 the first; where the recipe lists stages |
| `exact/entropy`, `exact/entropy/<task>` | entropy of the policy over all training problems after the update, expected over completions |
| `exact/reward`, `exact/reward/<task>` | probability that one completion is accepted, likewise |
| `exact/kl_start` | KL divergence from the initial policy, a token, likewise |
| `exact/gradient_norm`, `exact/gradient_cosine` | of the gradient of the expected reward on this update's problems, and its angle to the sampled one; measured steps |
| `diagnostics/predicted_change`, `diagnostics/measured_change` | entropy change of the update on its own problems: first order along the step that was made, and what happened; measured steps |
| `diagnostics/predicted_sampled` | the first-order change that the rows' weights predict, a step of the learning rate, their states taken as independent; measured steps |
| `diagnostics/*` | of `isentrope.diagnostics.summary`, with exact S; measured steps |
"""  # noqa: E501  (the table)

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isentrope import diagnostics
from isentrope.engines import metrics
from isentrope.engines import tabular_policy as policy
from isentrope.engines.tabular_problems import Problems

if TYPE_CHECKING:
    from isentrope.engines.tabular import TabularTrainer, Update


class Pool:
    """Numerators and denominators of one update."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def mean(self, name: str, numerator: Tensor, denominator: Tensor | float) -> None:
        """Add to the two sums of `name`."""
        pair = self._sums[name]
        pair[0] += float(numerator)
        pair[1] += float(denominator)

    def values(self) -> dict[str, float]:
        """The quotients; a name whose denominators sum to 0 is left out."""
        return {name: above / below for name, (above, below) in self._sums.items() if below}


@torch.no_grad()
def of_rollout(
    trainer: TabularTrainer, prepared: Mapping[str, Tensor], columns: Mapping[str, Tensor]
) -> dict[str, float]:
    """The numbers of a rollout batch."""
    pool = Pool()
    metrics.log_rollout(pool, prepared, trainer.world.names)
    rewards = columns["reward"].view(-1, trainer.recipe.trainer.group_size)
    rule = trainer.now.rollout
    found = {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std(1).mean()),
        "frac_reward_zero_std": float((rewards.amax(1) == rewards.amin(1)).double().mean()),
        "completions/mean_length": float(columns["mask"].sum(1).double().mean()),
    }
    if trainer.settings.ends:
        found["completions/clipped_ratio"] = float(columns["length_limit_hit"].double().mean())
    if rule.temperature is not None:
        found["rollout/temperature"] = float(rule.temperature)
    return found | pool.values()


@torch.no_grad()
def of_update(trainer: TabularTrainer, update: Update, loss: float) -> dict[str, float]:
    """The numbers of an update, before its step."""
    pool = Pool()
    rows = {name: x.detach() for name, x in update.rows.items()}
    metrics.log_update(pool, update.now, rows, trainer.world.names)
    return {"loss": loss} | pool.values()


@torch.no_grad()
def exact(trainer: TabularTrainer) -> dict[str, float]:
    """What is exactly true of the policy as it stands, over all training problems."""
    temperature, problems = trainer.recipe.trainer.temperature, trainer.problems
    log_tables = policy.tables(trainer.learnt, problems, temperature)
    reached, initial = policy.visits(log_tables), trainer.initial_tables
    solved = policy.success(log_tables, problems)
    found = {
        "exact/entropy": float(policy.entropy(log_tables, reached)),
        "exact/reward": float(solved.mean()),
        "exact/kl_start": float(policy.kl(log_tables, initial, reached)),
    }
    if len(trainer.world.names) > 1:
        total = (reached * policy.state_entropy(log_tables)).sum((1, 2))
        sums = [_by_task(problems, x, len(trainer.world.names)) for x in (total, reached.sum((1, 2)), solved)]
        number = torch.bincount(problems.task, minlength=len(trainer.world.names))
        for task, name in enumerate(trainer.world.names):
            if number[task]:
                found[f"exact/entropy/{name}"] = float(sums[0][task] / sums[1][task])
                found[f"exact/reward/{name}"] = float(sums[2][task] / number[task])
    return found


def _by_task(problems: Problems, x: Tensor, count: int) -> Tensor:
    return torch.bincount(problems.task, x, minlength=count)


@dataclass(frozen=True)
class Before:
    """What is known before a measured step: problems, their entropy and its gradient, tables, numbers to log."""

    problems: Problems
    entropy: float
    gradient: Tensor
    learnt: Tensor
    numbers: dict[str, float]


def exact_before(trainer: TabularTrainer, update: Update) -> Before:
    """Measure before the step: exact gradients on this update's problems, and what the rows say of the entropy."""
    problems = trainer.problems.at(update.sampled.problem)
    learnt = trainer.learnt.detach().clone().requires_grad_()
    temperature = trainer.recipe.trainer.temperature
    (reward_gradient,) = torch.autograd.grad(policy.expected_reward(learnt, problems, temperature), learnt)
    entropy = policy.policy_entropy(learnt, problems, temperature)
    (entropy_gradient,) = torch.autograd.grad(entropy, learnt)
    assert trainer.learnt.grad is not None, "the update went backward"
    rows = {name: x.detach() for name, x in update.rows.items()}
    tally = diagnostics.update(update.now, rows, update.totals)
    numbers: dict[str, Any] = {
        f"diagnostics/{k}": x for k, x in diagnostics.summary(tally, trainer.world.names).items()
    }
    numbers["diagnostics/predicted_sampled"] = trainer.learning_rate() * tally.total("change/all")
    numbers["exact/gradient_norm"] = float(reward_gradient.norm())
    cosine = torch.nn.functional.cosine_similarity(-trainer.learnt.grad.flatten(), reward_gradient.flatten(), 0)
    numbers["exact/gradient_cosine"] = float(cosine)
    for name in ("measured_change", "predicted_change"):
        numbers.pop(f"diagnostics/{name}", None)
    found = {name: x for name, x in numbers.items() if math.isfinite(x)}
    return Before(problems, float(entropy.detach()), entropy_gradient, learnt.detach(), found)


@torch.no_grad()
def exact_after(trainer: TabularTrainer, before: Before) -> dict[str, float]:
    """The entropy change of the step that was made: first order, and measured."""
    after = float(policy.policy_entropy(trainer.learnt, before.problems, trainer.recipe.trainer.temperature))
    return before.numbers | {
        "diagnostics/predicted_change": float((before.gradient * (trainer.learnt - before.learnt)).sum()),
        "diagnostics/measured_change": after - before.entropy,
    }
