"""Selection: which rows or tokens count. A rule returns True where a token (bool [B,T]) or row (bool [B]) is kept.

What is dropped gets no gradient; the advantage of a dropped row becomes 0, that of a dropped token stays as it is.
count="kept": what is dropped leaves the normaliser; "all": it stays there.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isentrope import masked
from isentrope.control import Hysteresis, Number, require, require_number

__all__ = ["HighEntropyTokens", "NegativeGate", "TemperedSuccesses", "Untruncated", "VaryingReward"]

Count = Literal["kept", "all"]


def _check_count(rule: object, count: str) -> None:
    require(rule, "count", count in ("kept", "all"), '"kept" or "all"')


@dataclass(frozen=True)
class HighEntropyTokens:
    """The 80/20 rule: keep the top ceil(rho N) of the batch's N tokens by old_entropy; ties go to the earlier position.

    Source: Wang et al., Beyond the 80/20 Rule, arXiv:2506.01939; rho = .2.
    """

    rho: Number = 0.2
    count: Count = "kept"

    def __post_init__(self) -> None:
        require_number(self, "rho", 0, 1)
        _check_count(self, self.count)

    def __call__(self, *, old_entropy: Tensor, mask: Tensor) -> Tensor:
        return masked.top(old_entropy, mask, masked.share_up(self.rho, int(mask.sum())))


@dataclass(frozen=True)
class VaryingReward:
    """Keep rows of groups whose rewards differ; a group of one is dropped.

    Source: Yu et al., DAPO (dynamic sampling), arXiv:2503.14476; sampling again in their place is the engine's part.
    """

    count: Count = "kept"

    def __post_init__(self) -> None:
        _check_count(self, self.count)

    def __call__(self, *, reward: Tensor, group: Tensor) -> Tensor:
        return ~masked.group_constant(reward, masked.groups(group))


@dataclass(frozen=True)
class Untruncated:
    """Keep rows that ended before the length limit (overlong filtering).  Source: DAPO, arXiv:2503.14476."""

    count: Count = "kept"

    def __post_init__(self) -> None:
        _check_count(self, self.count)

    def __call__(self, *, length_limit_hit: Tensor) -> Tensor:
        return ~length_limit_hit


@dataclass(frozen=True)
class NegativeGate:
    """AEPO's adaptive negative gate: while it is on, rows with A < 0 (their token mean) are dropped.

    on: 1 or 0; by default the switch that turns on above 1.2 and off below .8 of the initial entropy, updated with
    the batch before it acts.
    Source: AEPO in QwenLong-L1.5, arXiv:2512.12967; the thresholds are ours.
    """

    on: Number = Hysteresis()
    count: Count = "kept"

    def __post_init__(self) -> None:
        require_number(self, "on", 0, 1)
        _check_count(self, self.count)

    def __call__(self, *, advantage: Tensor, mask: Tensor) -> Tensor:
        row = masked.row_mean(advantage, mask)
        return (row >= 0) | torch.full_like(row, not self.on, dtype=torch.bool)


@dataclass(frozen=True)
class TemperedSuccesses:
    """Of the rows sampled at another temperature keep those with A > 0 (their token mean); keep all others.

    Source: AEPO, arXiv:2510.08141: only samples that do better than their group pull the policy towards the tempered
    distribution.
    """

    count: Count = "kept"

    def __post_init__(self) -> None:
        _check_count(self, self.count)

    def __call__(self, *, tempered: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
        return ~tempered | (masked.row_mean(advantage, mask) > 0)
