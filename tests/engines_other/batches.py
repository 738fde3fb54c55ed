"""A rollout batch with everything in it: uneven lengths, holes in the mask, several groups, an off-policy update."""

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS, TOKENS, GROUP = 16, 12, 4


@dataclass(frozen=True)
class Made:
    """columns: what `prepare` reads. logp: the current policy's, a leaf."""

    columns: dict[str, Tensor]
    logp: Tensor


def make(seed: int = 0, dtype: torch.dtype = torch.float64) -> Made:
    """Rows end at different tokens; one row's second token is a tool's; NaN stands behind the mask."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=dtype)

    lengths = torch.randint(2, TOKENS + 1, (ROWS,), generator=g)
    mask = torch.arange(TOKENS) < lengths[:, None]
    mask[3, 1] = False
    old = draw(ROWS, TOKENS).mul(-4)
    old[0, 0] = -12.0  # a rare token: a large covariance
    group = torch.arange(ROWS) // GROUP
    reward = torch.tensor([1.0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0.5, 0, 1, 0], dtype=dtype)
    nan = torch.full_like(old, torch.nan)
    columns = {
        "reward": reward,
        "group": group,
        "mask": mask,
        "old_logp": torch.where(mask, old, nan),
        "rollout_logp": torch.where(mask, old + 0.1 * draw(ROWS, TOKENS), nan),
        "ref_logp": torch.where(mask, old - 0.1, nan),
        "value": torch.where(mask, draw(ROWS, TOKENS), nan),
    }
    logp = (old + draw(ROWS, TOKENS) - 0.5).masked_fill(~mask, torch.nan)  # ratios from .6 to 1.6: clips on both sides
    return Made(columns, logp)
