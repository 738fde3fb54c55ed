"""Penalties: terms per token that are subtracted from J, with the policy term's weights. Rollout correction does not
multiply them.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isentrope import masked
from isentrope.control import Number, require, require_number

__all__ = ["EntropyBonus", "ReferenceKL"]


@dataclass(frozen=True)
class ReferenceKL:
    """coef * KL to the reference, estimated from the sampled token; d = logp - ref_logp.

    k1: d.  k2: d^2 / 2.  k3: exp(-d) + d - 1, exponent at most 20. The gradient is that of the printed value.
    Source: Schulman, Approximating KL divergence (2020).
    """

    coef: Number
    estimator: Literal["k1", "k2", "k3"] = "k3"

    def __post_init__(self) -> None:
        require_number(self, "coef", low=0)
        require(self, "estimator", self.estimator in ("k1", "k2", "k3"), '"k1", "k2" or "k3"')

    def __call__(self, *, logp: Tensor, ref_logp: Tensor) -> Tensor:
        return self.coef * reference_kl(logp - ref_logp, self.estimator)


def reference_kl(d: Tensor, estimator: str) -> Tensor:
    """The estimate k1, k2 or k3 of the KL divergence from d = logp - ref_logp, in nats."""
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d.square() / 2
    return (-d).clamp(max=masked.MAX_LOG_RATIO).exp() + d - 1


@dataclass(frozen=True)
class EntropyBonus:
    """-coef * entropy, exact and with gradient: a bonus for entropy.

    coef: per nat; at 0 no entropy gradient is asked for. target: active only while the measured entropy of the
    rollout batch is at or below it (Skywork-OR1, arXiv:2505.22312); None is always active.
    """

    coef: Number
    target: float | None = None

    def __post_init__(self) -> None:
        require_number(self, "coef")

    @property
    def detached(self) -> tuple[str, ...]:
        """A coefficient of 0 needs no graph through the entropy."""
        return ("entropy",) if self.coef == 0 else ()

    def prepare(self, *, mask: Tensor, measured_entropy: float) -> dict[str, Tensor]:
        """Whether the bonus is active for this rollout batch, the same for every row."""
        if self.target is None:
            return {}
        return {"active": torch.full((len(mask),), measured_entropy <= self.target, device=mask.device)}

    def __call__(self, *, entropy: Tensor, active: Tensor | None = None) -> Tensor:
        bonus = -self.coef * entropy
        return bonus if active is None else masked.fill(bonus, active[:, None].expand(bonus.shape))
