"""Ratios: the log of new over old probability, by token or by sequence. Each rule returns log-ratios [B,T],
unbounded.
"""

from dataclasses import dataclass

from torch import Tensor

from isentrope import masked

__all__ = ["SequenceRatio", "TokenRatio"]


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
