"""The output head as a problem, what a backend returns for it, and the maths that every backend shares.

Notation: z_v the logits of a row (bias, soft-cap and temperature included), y its target, s the row's shift,
d_v = z_v - s, e_v = exp d_v. Sums run over v != y: the target's share is added here, so that 1 - p_y is accurate where
p_y is close to 1. f_v = 1 - tanh²(.) is the slope of the soft-cap (1 without one).
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

OVERFLOW = 40.0  # nats over the shift: e² summed over a million tokens still fits float32 (88 nats)


@dataclass(frozen=True)
class Head:
    """N rows of final hidden states, the weight that turns them into V logits each, and their targets."""

    hidden: Tensor  # [N, H], same dtype as weight
    weight: Tensor  # [V, H]
    target: Tensor  # [N] int64
    bias: Tensor | None = None  # [V], dtype of the statistics
    softcap: float | None = None
    scale: float = 1.0  # 1 / temperature

    @property
    def wide(self) -> torch.dtype:
        """Dtype of logits and statistics: float32, or float64 for float64 inputs."""
        return torch.float64 if self.hidden.dtype == torch.float64 else torch.float32

    def rows(self, piece: slice | Tensor) -> "Head":
        """The same head for some of the rows (a slice, or a bool for each)."""
        return replace(self, hidden=self.hidden[piece], target=self.target[piece])

    def pieces(self, size: int) -> list[slice]:
        """Slices of at most `size` rows that cover all of them."""
        num_rows = len(self.target)
        return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]

    def finish_logits(self, products: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits from hidden x weight [..., V], in place, and the slope f of the soft-cap (None without one)."""
        logits, slope = products if self.bias is None else products.add_(self.bias), None
        if self.softcap is not None:
            bent = logits.div_(self.softcap).tanh_()
            slope = 1 - bent.square()
            logits = bent.mul_(self.softcap)
        return (logits if self.scale == 1 else logits.mul_(self.scale)), slope


@dataclass(frozen=True)
class Chosen:
    """The target's own logit z_y [N], its soft-cap's slope f_y [N] or None, its row of the weight w_y [N, H]."""

    logit: Tensor
    slope: Tensor | None
    row: Tensor

    def rows(self, piece: slice) -> "Chosen":
        """The same for some of the rows."""
        return Chosen(self.logit[piece], None if self.slope is None else self.slope[piece], self.row[piece])


def chosen(head: Head) -> Chosen:
    """z_y from a dot product a row, in the dtype of the statistics."""
    row = head.weight[head.target].to(head.wide)
    logit = (head.hidden.to(head.wide) * row).sum(-1)
    bias = None if head.bias is None else head.bias[head.target]
    logit, slope = replace(head, bias=bias).finish_logits(logit)
    return Chosen(logit, slope, row)


@dataclass(frozen=True)
class Want:
    """What a forward pass computes beside the sums of e and e d."""

    moments: bool = False  # sums of e² and e² d
    top_k: int = 0  # the largest d, target left out
    mean: bool = False  # sum of e f w, [N, H]
    store: bool = False  # e f itself, for `Backend.product`


@dataclass(frozen=True)
class Sums:
    """Sums over v != y, [N] in float64 unless said otherwise; None where not wanted."""

    rest: Tensor  # e
    cross: Tensor  # e d
    peak: Tensor  # the largest d, dtype of the statistics
    square: Tensor | None = None  # e²
    square_cross: Tensor | None = None  # e² d
    top: Tensor | None = None  # [N, k] the largest d
    mean: Tensor | None = None  # [N, H] e f w, dtype of the statistics
    store: Any = None  # the backend's own form of e f


class Backend(Protocol):
    """What touches logits; everything else is shared."""

    def forward(self, head: Head, shift: Tensor, want: Want, reuse: Any = None) -> Sums:
        """The sums for a shift [N] that is nowhere more than OVERFLOW under the largest logit (else: garbage sums, but
        a right `peak`). reuse: the store of an earlier call, which may be overwritten.
        """
        ...

    def gradient(self, head: Head, lse: Tensor, a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The weight's gradient [V, H] and the bias's [V] for dz_v = -p_v (a + b log p_v) f_v / temperature, v != y;
        p_v = exp(z_v - lse), a and b [N]; the logits are computed again.
        """
        ...

    def hidden_gradient(self, head: Head, lse: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Sum over v != y of dz_v w_v, [N, H], for the same dz."""
        ...

    def collector(self, head: Head, pieces: int) -> Tensor:
        """Memory [V, H] that `product` can write to and, if there is more than one piece, add to."""
        ...

    def product(self, sums: Sums, scaled: Tensor, out: Tensor, add: bool) -> None:
        """Writes (or adds) store^T scaled to `out` [V, H]; scaled [N, H] in the dtype of the statistics."""
        ...

    def rows_at_once(self, head: Head, store: bool) -> int:
        """Rows that keep what is held at a time small; with `store`, e f of all of them is held."""
        ...


@dataclass(frozen=True)
class Statistics:
    """What follows from the sums, [N] unless said otherwise; p over all v, the target included."""

    logp: Tensor
    entropy: Tensor
    others: Tensor  # 1 - p_y
    lse: Tensor  # log sum exp z
    total: Tensor  # sum of e over all v
    squared: Tensor | None  # sum p²
    squared_logp: Tensor | None  # sum p² log p
    top_mass: Tensor | None
    mean: Tensor | None  # [N, H] sum over v != y of p f w

    def without_vectors(self) -> "Statistics":
        """Without what is [N, H]."""
        return replace(self, mean=None)


def measure(backend: Backend, head: Head, picked: Chosen, want: Want, reuse: Any = None) -> tuple[Statistics, Sums]:
    """Runs the forward pass with s = z_y, which is 1.0 exactly for the target and needs no pass for the maximum; again
    with s = max z where a target is more than 40 nats below it (p < 4e-18) or impossible.
    """
    shift = torch.where(picked.logit == -torch.inf, 0.0, picked.logit)
    sums = backend.forward(head, shift, want, reuse)
    far = (sums.peak > OVERFLOW) | (picked.logit == -torch.inf)
    if bool(far.any()):
        shift = torch.where(far, shift + sums.peak, shift)
        sums = backend.forward(head, shift, want, sums.store)
    return finish(sums, picked.logit, shift, want.top_k), sums


def finish(sums: Sums, logit: Tensor, shift: Tensor, top_k: int) -> Statistics:
    """From sums over v != y to the row's statistics, in float64 and returned in the dtype of the logits."""
    wide = logit.dtype
    own = (logit - shift).double()  # 0, or very negative where the shift is the maximum
    own_e = own.exp()
    own_cross = torch.where(own_e > 0, own_e * own, 0.0)
    total = sums.rest + own_e
    log_total = torch.where(own == 0, torch.log1p(sums.rest), total.log())
    entropy = (log_total - (sums.cross + own_cross) / total).clamp(min=0)
    squared = squared_logp = None
    if sums.square is not None and sums.square_cross is not None:
        squared = (sums.square + own_e.square()) / total.square()
        squared_logp = (sums.square_cross + own_e * own_cross) / total.square() - log_total * squared
    return Statistics(
        logp=(own - log_total).to(wide),
        entropy=entropy.to(wide),
        others=(sums.rest / total).to(wide),
        lse=(shift.double() + log_total).to(wide),
        total=total.to(wide),
        squared=None if squared is None else squared.to(wide),
        squared_logp=None if squared_logp is None else squared_logp.to(wide),
        top_mass=None if sums.top is None else top_mass(sums.top, own, total, top_k).to(wide),
        mean=None if sums.mean is None else sums.mean / total[:, None].to(wide),
    )


def top_mass(top: Tensor, own: Tensor, total: Tensor, k: int) -> Tensor:
    """Sum of the k largest probabilities, [N], from the largest d without the target's and the target's own."""
    everything = torch.cat([top.double(), own[:, None]], 1)
    return everything.topk(min(k, everything.shape[1])).values.exp().sum(1) / total
