"""Shaping: from an advantage [B,T] to an advantage [B,T], by what is known of entropy.

A shaping rule that reads `logp` or `entropy` (the current policy's) runs inside `loss`, any other in `prepare`.
Everything is detached.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from isentrope import masked
from isentrope.control import ByTask, EntropyGain, GroupEntropyThreshold, Number, require, require_number, span

__all__ = ["Decorrelate", "GroupEntropyGate", "RescaleBySurprisal"]


def centred_logp(old_logp: Tensor, mask: Tensor, old_entropy: Tensor | None) -> Tensor:
    """L = old_logp + old_entropy, or old_logp minus its token mean where the entropy is missing; [B,T], nats."""
    return old_logp + old_entropy if old_entropy is not None else masked.centred(old_logp, mask)


@dataclass(frozen=True)
class Decorrelate:
    """REPO-D: A' = A - beta L, beta = zeta C, C = token mean of p A L, p = exp(old_logp).

    L: the centred log-probability (see `centred_logp`). normalise: beta = zeta C / Q with Q = token mean of p L^2 (Q
    = 0 gives beta 0); zeta = 1 then cancels the first-order entropy change (ours). Rows with A = 0 get -beta L too.
    Means are pooled over the whole rollout batch.
    Source: REPO, arXiv:2603.11682; zeta starts at 1 within [1e-3, 10].
    """

    zeta: Number = EntropyGain(start=1.0, low=1e-3, high=10.0)
    normalise: bool = False

    def __post_init__(self) -> None:
        require_number(self, "zeta")

    def __call__(
        self, advantage: Tensor, *, old_logp: Tensor, mask: Tensor, old_entropy: Tensor | None = None
    ) -> Tensor:
        centred = centred_logp(old_logp, mask, old_entropy)
        p = old_logp.exp()
        beta = self.zeta * masked.mean(p * advantage * centred, mask)
        if self.normalise:
            beta = masked.divide(beta, masked.mean(p * centred.square(), mask))
        return advantage - beta * centred


@dataclass(frozen=True)
class RescaleBySurprisal:
    """REPO-R: A > 0: max(0, A (1 - zeta lp)); A < 0: min(0, A (1 + zeta lp)); A = 0: 0, with lp = max(sg(logp), -20).

    The current policy's logp, at every update. centre: "none" (paper); "batch" subtracts the token mean of old_logp
    from lp, "vocab" adds the current exact entropy (both ours; the floor comes first).
    Source: REPO, arXiv:2603.11682; zeta starts at 1e-3 within [1e-4, .05].

    >>> rule = RescaleBySurprisal(zeta=0.1)
    >>> rule(torch.tensor([[2.0, -2.0, -2.0]]), logp=torch.tensor([[-3.0, -3.0, -12.0]]))
    tensor([[ 2.6000, -1.4000,  0.0000]])
    """

    zeta: Number = EntropyGain(start=1e-3, low=1e-4, high=0.05)
    centre: Literal["none", "batch", "vocab"] = "none"
    detached = ("entropy",)

    def __post_init__(self) -> None:
        require_number(self, "zeta")
        require(self, "centre", self.centre in ("none", "batch", "vocab"), '"none", "batch" or "vocab"')

    def prepare(self, *, old_logp: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """The token mean of old_logp over the whole rollout batch, for centre="batch"."""
        return {"mean_old_logp": masked.mean(old_logp, mask).expand(len(mask))} if self.centre == "batch" else {}

    def __call__(
        self, advantage: Tensor, *, logp: Tensor, mean_old_logp: Tensor | None = None, entropy: Tensor | None = None
    ) -> Tensor:
        lp = logp.detach().clamp(min=masked.MIN_LOGP)
        if self.centre == "batch":
            lp = lp - _present(mean_old_logp, "mean_old_logp")[:, None]
        if self.centre == "vocab":
            lp = lp + _present(entropy, "entropy").detach()
        raised = (advantage * (1 - self.zeta * lp)).clamp(min=0)
        lowered = (advantage * (1 + self.zeta * lp)).clamp(max=0)
        return torch.where(advantage > 0, raised, torch.where(advantage < 0, lowered, torch.zeros_like(advantage)))


def _present(column: Tensor | None, name: str) -> Tensor:
    if column is None:
        raise ValueError(f"RescaleBySurprisal needs the column `{name}` for its `centre`")
    return column


@dataclass(frozen=True)
class GroupEntropyGate:
    """GEPO: alpha_low A where A > 0 and H_g < H_low; alpha_high A where A < 0 and H_g > H_high; else A.

    H_g: -(sum of old_logp over all tokens of the group) / (their number), before any filter (ours). low, high: H_low
    and H_high in nats, by default moving thresholds that are updated with the batch before they act. Requires 0 <
    alpha_high < alpha_low < 1 (1 switches a side off).
    Source: GEPO, arXiv:2607.16850; not the "group expectation" method of that name.
    """

    alpha_low: Number = 0.5
    alpha_high: Number = 0.2
    low: Number = field(default=GroupEntropyThreshold(offset=-0.2))
    high: Number = field(default=GroupEntropyThreshold(offset=0.3))

    def __post_init__(self) -> None:
        require_number(self, "alpha_low", 0, 1)
        require_number(self, "alpha_high", 0, 1)
        low, high = span(self.alpha_low), span(self.alpha_high)
        ordered = True
        if low is not None and high is not None:
            ordered = (high[0] > 0 and high[1] < low[0] and low[1] < 1) or high == low == (1, 1)
        expected = f"within 0 < alpha_high < alpha_low < 1 (alpha_low is {self.alpha_low!r}), or both 1"
        require(self, "alpha_high", ordered, expected)

    def __call__(
        self, advantage: Tensor, *, old_logp: Tensor, mask: Tensor, group: Tensor, task: Tensor | None = None
    ) -> Tensor:
        per_group, g = masked.group_token_mean(-old_logp, mask, group)
        entropy = per_group[g.index][:, None]
        sharp = (advantage > 0) & (entropy < _threshold(self.low, task, entropy))
        loose = (advantage < 0) & (entropy > _threshold(self.high, task, entropy))
        kept = torch.where(loose, self.alpha_high, torch.ones_like(advantage))
        return advantage * torch.where(sharp, self.alpha_low, kept)


def _threshold(threshold: float | ByTask, task: Tensor | None, like: Tensor) -> Tensor:
    """The threshold of every row, [B,1]; NaN, which switches nothing, for a task that has none yet."""
    if not isinstance(threshold, tuple):
        return torch.full_like(like, threshold)
    if task is None:
        raise ValueError("GroupEntropyGate with thresholds by task needs the column `task`")
    rows = torch.full_like(like, torch.nan)
    for number, value in threshold:
        rows = torch.where((task == number)[:, None], value, rows)
    return rows
