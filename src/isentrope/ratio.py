"""Ratios: the log of new over old probability, by token or by sequence. Each rule returns log-ratios [B,T],
unbounded.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from isentrope import masked
from isentrope.columns import name_of
from isentrope.control import is_number

__all__ = ["SequenceRatio", "TokenRatio"]

_TOKEN_BOUND = 0.05  # bounds on a ratio from here on are a token's
_SEQUENCE_BOUND = 0.005  # up to here, a sequence's


@dataclass(frozen=True)
class TokenRatio:
    """log r_t = logp - old_logp.  Source: Schulman et al., PPO, arXiv:1707.06347."""

    def __call__(self, *, logp: Tensor, old_logp: Tensor) -> Tensor:
        return logp - old_logp


@dataclass(frozen=True)
class SequenceRatio:
    """GSPO: log s = mean_t (logp - old_logp), given to every token as log s_t = sg(log s) + logp - sg(logp).

    The mean runs over the row's mask, so a row of one token has its token ratio. The value is the sequence's, the
    gradient the token's own.
    Source: Zheng et al., GSPO (token variant, eq. 13-14), arXiv:2507.18071.

    >>> import torch
    >>> logp, old = torch.tensor([[0.1, -0.2, 0.05]]), torch.zeros(1, 3)
    >>> [round(s, 5) for s in SequenceRatio()(logp=logp, old_logp=old, mask=old == 0).exp()[0].tolist()]
    [0.98347, 0.98347, 0.98347]
    """

    def __call__(self, *, logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
        log_s = masked.row_mean((logp - old_logp).detach(), mask)
        return log_s[:, None] + (logp - logp.detach())

    def of_rows(self, *, logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
        """log s itself, [B,1]: the n tokens of a row that share J(log s) sum to n J, and each has its gradient."""
        return masked.row_mean(logp - old_logp, mask)[:, None]


def mismatched_bounds(ratio: Any, surrogate: Any) -> list[str]:
    """A sequence's ratio moves by thousandths, a token's by tenths: the bounds of one are wrong for the other."""
    while hasattr(surrogate, "surrogate"):
        surrogate = surrogate.surrogate
    sides: list[Any] = [getattr(surrogate, side, None) for side in ("low", "high")]
    bounds = [x for x in sides if is_number(x)]
    if not bounds or not hasattr(surrogate, "clipped"):
        return []
    shown = f"surrogate: the bounds {', '.join(f'{x:g}' for x in bounds)} of {name_of(surrogate)} are meant for"
    if isinstance(ratio, SequenceRatio) and min(bounds) >= _TOKEN_BOUND:
        return [f"{shown} tokens; the ratio of a sequence is a mean that rarely leaves them. GSPO takes 3e-4 and 4e-4."]
    if isinstance(ratio, TokenRatio) and max(bounds) <= _SEQUENCE_BOUND:
        return [f"{shown} sequences; nearly every token is beyond them. PPO takes .2 for both."]
    return []
