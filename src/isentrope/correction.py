"""Rollout correction: a detached factor on J for the gap between the sampler's and the trainer's probabilities.

rho = exp(old_logp - rollout_logp). A token without `rollout_logp` (NaN or infinite there, or no column at all) counts
as rho = 1. Bounds are closed; rejected tokens stay in the count.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope import masked
from isentrope.control import Number, is_number, require, require_number

__all__ = ["IcePop", "SequenceMask", "TruncatedImportance"]


def mismatch(old_logp: Tensor, rollout_logp: Tensor | None) -> Tensor:
    """log rho [B,T], detached; 0 where the sampler gave no finite log-probability."""
    if rollout_logp is None:
        return torch.zeros_like(old_logp)
    known = torch.isfinite(rollout_logp)
    return masked.fill(old_logp - masked.fill(rollout_logp, known), known).detach()


@dataclass(frozen=True)
class TruncatedImportance:
    """min(rho, cap).  Source: Yao et al., truncated importance sampling for rollout mismatch; as TRL's and verl's
    token-level correction.
    """

    cap: Number = 2.0

    def __post_init__(self) -> None:
        require_number(self, "cap", low=0)

    def __call__(self, *, old_logp: Tensor, rollout_logp: Tensor | None = None) -> Tensor:
        return masked.ratio(mismatch(old_logp, rollout_logp)).clamp(max=self.cap)


@dataclass(frozen=True)
class IcePop:
    """rho inside [low, high], 0 outside.  Source: Ring-1T (IcePop), arXiv:2510.18855."""

    low: Number = 0.5
    high: Number = 5.0

    def __post_init__(self) -> None:
        _require_band(self)

    def __call__(self, *, old_logp: Tensor, rollout_logp: Tensor | None = None) -> Tensor:
        rho = masked.ratio(mismatch(old_logp, rollout_logp))
        return masked.fill(rho, (rho >= self.low) & (rho <= self.high))


@dataclass(frozen=True)
class SequenceMask:
    """0 for rows whose product of rho over their tokens is outside [low, high]; 1 for the others, or the product with
    weight=True.
    """

    low: Number = 0.5
    high: Number = 2.0
    weight: bool = False

    def __post_init__(self) -> None:
        _require_band(self)

    def __call__(self, *, old_logp: Tensor, mask: Tensor, rollout_logp: Tensor | None = None) -> Tensor:
        product = masked.ratio(masked.fill(mismatch(old_logp, rollout_logp), mask).sum(-1))
        inside = (product >= self.low) & (product <= self.high)
        factor = masked.fill(product if self.weight else torch.ones_like(product), inside)
        return factor[:, None].expand(mask.shape)


def _require_band(rule: "IcePop | SequenceMask") -> None:
    require_number(rule, "low", low=0)
    require_number(rule, "high", low=0)
    if is_number(rule.low) and is_number(rule.high):
        require(rule, "high", rule.low <= rule.high, f"at least low = {rule.low}")
