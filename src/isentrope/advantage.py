"""Advantages: from rewards to one number per row (or per token where there is a critic).

A rule returns [B] (broadcast over the row's tokens) or [B,T].
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isentrope import masked
from isentrope.columns import invoke
from isentrope.control import Number, require, require_number

__all__ = [
    "BatchWhitened",
    "GeneralizedAdvantage",
    "GroupCentred",
    "GroupRelative",
    "LeaveOneOut",
    "QuantileBaseline",
    "Signed",
    "SoftOverlong",
]


def _centred(reward: Tensor, g: masked.Groups) -> Tensor:
    """R - mean_g, and exactly 0 for equal rewards: a rounding residue would be blown up by a division by the std."""
    return masked.fill(reward - masked.group_mean(reward, g), ~masked.group_constant(reward, g))


@dataclass(frozen=True)
class GroupRelative:
    """Group-relative advantage: A_i = (R_i - mean_g R) / (std_g R + eps).

    reward: [B], any unit.  group: [B] int, equal for samples of one prompt, any order.
    ddof: 1 for the sample standard deviation, 0 for the population's.  scale: "group" divides by the group's std,
    "batch" by that of all rewards.
    Returns [B], dimensionless; exactly 0 for a group of one or of equal rewards.
    Source: Shao et al., DeepSeekMath, arXiv:2402.03300, sec. 4.1.2. TRL's eps is 1e-4.

    >>> reward, group = torch.tensor([1.0, 0, 0, 1, 0]), torch.tensor([7, 7, 7, 7, 7])
    >>> [round(a, 4) for a in GroupRelative()(reward=reward, group=group).tolist()]
    [1.0954, -0.7303, -0.7303, 1.0954, -0.7303]
    """

    eps: Number = masked.STD_EPS
    ddof: int = 1
    scale: Literal["group", "batch"] = "group"

    def __post_init__(self) -> None:
        require_number(self, "eps", low=0)
        require(self, "ddof", self.ddof in (0, 1), "0 or 1")
        require(self, "scale", self.scale in ("group", "batch"), '"group" or "batch"')

    def __call__(self, *, reward: Tensor, group: Tensor) -> Tensor:
        g = masked.groups(group)
        everything = masked.groups(torch.zeros_like(group))
        std = masked.group_std(reward, g if self.scale == "group" else everything, self.ddof)
        return masked.divide(_centred(reward, g), std + self.eps)


@dataclass(frozen=True)
class GroupCentred:
    """Group-centred advantage: A_i = R_i - mean_g R.

    Returns [B] in the reward's unit; exactly 0 for a group of one or of equal rewards.
    Source: Liu et al., Understanding R1-Zero-Like Training (Dr. GRPO), arXiv:2503.20783.
    """

    def __call__(self, *, reward: Tensor, group: Tensor) -> Tensor:
        return _centred(reward, masked.groups(group))


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out advantage: A_i = K/(K-1) (R_i - mean_g R), K the size of the group.

    It equals R_i minus the mean of the other rewards of the group. Returns [B]; exactly 0 for a group of one or of
    equal rewards.
    Source: Ahmadian et al., Back to Basics (RLOO), arXiv:2402.14740.
    """

    def __call__(self, *, reward: Tensor, group: Tensor) -> Tensor:
        g = masked.groups(group)
        size = g.size.to(reward.dtype)
        return _centred(reward, g) * (size / (size - 1).clamp(min=1))


@dataclass(frozen=True)
class QuantileBaseline:
    """Quantile advantage: A_i = (R_i - Q_g) / (std_g R + eps), Q_g the group's quantile of reward instead of its mean.

    quantile: K in (0, 1]; Q_g is the smallest reward that at least a share K of the group does not exceed. With rewards
    0 and 1 and a share p of successes: for p <= 1 - K only successes have an advantage, for p > 1 - K only failures.
    Returns [B]; exactly 0 for a group of one or of equal rewards. The std is the sample's, as in `GroupRelative`.
    Source: Wu et al., Quantile Advantage Estimation for Entropy-Safe Reasoning, arXiv:2509.22611. K = .4 is ours.

    >>> reward, group = torch.tensor([1.0, 0, 0, 0]), torch.tensor([3, 3, 3, 3])
    >>> [round(a, 4) for a in QuantileBaseline(quantile=0.4)(reward=reward, group=group).tolist()]
    [2.0, 0.0, 0.0, 0.0]
    """

    quantile: Number = 0.4
    eps: Number = masked.STD_EPS

    def __post_init__(self) -> None:
        require_number(self, "quantile", 0, 1)
        require(self, "quantile", self.quantile != 0, "above 0")
        require_number(self, "eps", low=0)

    def __call__(self, *, reward: Tensor, group: Tensor) -> Tensor:
        g = masked.groups(group)
        std = masked.group_std(reward, g, ddof=1)
        return masked.divide(reward - masked.group_quantile(reward, g, self.quantile), std + self.eps)


@dataclass(frozen=True)
class BatchWhitened:
    """Group-centred, then whitened over the batch: (A - m) / sqrt(v + 1e-8).

    m, v: token-weighted mean and population variance over the whole batch (a row counts once a token). Returns [B,T].
    Source: Hu et al., REINFORCE++ (baseline variant), arXiv:2501.03262.
    """

    def __call__(self, *, reward: Tensor, group: Tensor, mask: Tensor) -> Tensor:
        centred = _centred(reward, masked.groups(group))
        return masked.whiten(centred[:, None].expand(mask.shape), mask)


@dataclass(frozen=True)
class Signed:
    """Signed advantage: lambda_pos where R > threshold, else -lambda_neg.

    Negative-sample reinforcement is (0, 1), positive (1, 0), W-REINFORCE (.1, 1). Returns [B].
    Source: Zhu et al., The Surprising Effectiveness of Negative Reinforcement, arXiv:2506.01347.
    """

    lambda_pos: Number = 1.0
    lambda_neg: Number = 1.0
    threshold: Number = 0.5

    def __post_init__(self) -> None:
        require_number(self, "lambda_pos", low=0)
        require_number(self, "lambda_neg", low=0)
        require_number(self, "threshold")

    def __call__(self, *, reward: Tensor) -> Tensor:
        right = torch.full_like(reward, float(self.lambda_pos))
        return torch.where(reward > self.threshold, right, torch.full_like(reward, -float(self.lambda_neg)))


@dataclass(frozen=True)
class GeneralizedAdvantage:
    """Generalized advantage estimation with a critic: A_t = sum_k (gamma lam)^k delta_{t+k}, delta_t = r_t + gamma
    V_{t+1} - V_t.

    reward: [B], paid at the row's last token.  value: [B,T], the critic's value before the token.  Masked positions
    are skipped: the token after a tool's output follows the one before it. whiten: (A - m) / sqrt(v + 1e-8) over the
    batch's tokens. Returns [B,T].
    Source: Schulman et al., arXiv:1506.02438; gamma = lam = 1 is usual for language models.
    """

    gamma: Number = 1.0
    lam: Number = 1.0
    whiten: bool = True

    def __post_init__(self) -> None:
        require_number(self, "gamma", 0, 1)
        require_number(self, "lam", 0, 1)

    def __call__(self, *, reward: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        following, running = torch.zeros_like(value[:, 0]), torch.zeros_like(value[:, 0])
        pays = reward.to(value.dtype)
        columns = []
        for t in reversed(range(mask.shape[1])):
            here = mask[:, t]
            delta = pays + self.gamma * following - value[:, t]
            running = torch.where(here, delta + self.gamma * self.lam * running, running)
            following = torch.where(here, value[:, t], following)
            pays = torch.where(here, torch.zeros_like(pays), pays)  # paid once, at the last token
            columns.append(running)
        advantage = masked.fill(torch.stack(columns[::-1], 1), mask)
        return masked.whiten(advantage, mask) if self.whiten else advantage


@dataclass(frozen=True)
class SoftOverlong:
    """Soft overlong penalty: the reward is lowered before `advantage` sees it, the more the closer a row comes to the
    limit.

    n tokens, limit L, buffer L_c: 0 up to L - L_c, then (L - L_c - n) / L_c, at worst -1; times `coef`. limit: None
    takes the column `length_limit`.
    Source: Yu et al., DAPO, arXiv:2503.14476, eq. 13 (L_max 20480 = L, L_cache 4096 = buffer).
    """

    advantage: object
    buffer: Number
    limit: float | None = None
    coef: Number = 1.0
    wraps = ("advantage",)

    def __post_init__(self) -> None:
        require_number(self, "buffer", low=1)
        require_number(self, "coef", low=0)

    def __call__(
        self, *, reward: Tensor, mask: Tensor, length_limit: Tensor | None = None, **columns: Tensor
    ) -> Tensor:
        limit = length_limit if self.limit is None else torch.full_like(reward, self.limit)
        if limit is None:
            raise ValueError("SoftOverlong needs limit=... or the column `length_limit`")
        over = (limit - self.buffer - mask.sum(-1)) / self.buffer
        penalised = reward + self.coef * over.clamp(-1, 0).to(reward.dtype)
        return invoke(self.advantage, {"reward": penalised, "mask": mask} | columns)
