"""Masked means, group sums and the only place with an epsilon or a clamp.

Every function takes the mask as an argument, puts `torch.where` on the input (so that NaN behind the mask reaches
neither value nor gradient) and works in the dtype it is given, float32 or wider.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MAX_LOG_RATIO = 20.0  # nats; exp overflows float32 at 88.7
MIN_LOGP = -20.0  # nats; floor of a surprisal that scales an advantage
STD_EPS = 1e-6  # reward units; added to a group's standard deviation
VARIANCE_EPS = 1e-8  # under the root of a whitening
ENTROPY_EPS = 1e-8  # nats; both sides of an entropy ratio
COUNT_SLACK = 1e-9  # a product such as .1 * 30 may exceed 3 by rounding


def upcast(x: Tensor) -> Tensor:
    """float16 and bfloat16 become float32; everything else stays."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def is_finite(x: Tensor) -> Tensor:
    """True where x is neither infinite nor NaN; half the passes over memory of `torch.isfinite`."""
    return x.abs() < torch.inf


def finite_within(x: Tensor, mask: Tensor) -> Tensor:
    """The True positions at which x is finite."""
    if x.device.type == "cpu" and bool(torch.isfinite(x.sum())):
        return mask  # a sum takes a tenth of the comparison's time here; on a GPU its value would have to be waited for
    return mask & is_finite(x)


def fill(x: Tensor, mask: Tensor, value: float = 0.0) -> Tensor:
    """x where mask is True, `value` elsewhere; the gradient at the other positions is exactly 0."""
    plain = x.shape == mask.shape or not x.requires_grad
    if value == 0 and plain and x.device.type == "cpu" and x.dtype == torch.float32:
        blanked: Tensor = _Blank.apply(x, mask)  # type: ignore[no-untyped-call]
        return blanked
    return torch.where(mask, x, torch.full((), value, dtype=x.dtype, device=x.device))


class _Blank(torch.autograd.Function):
    """`torch.where(mask, x, 0)` by an integer product of the bits, which turns NaN into 0 too: a third of the time on a
    CPU, where torch's selection is not vectorised.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        kept, bits = mask.int(), x.view(torch.int32)
        fits = kept.shape == torch.broadcast_shapes(kept.shape, bits.shape)  # type: ignore[no-untyped-call]
        return (kept.mul_(bits) if fits else kept * bits).view(torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return fill(gradients[0], mask), None


def row_count(mask: Tensor) -> Tensor:
    """The number of True positions of each row, [B] int64."""
    return mask.sum(-1, dtype=torch.int32).long()  # sum makes a copy of the whole mask in the type of the result


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over all True positions, a scalar; 0 where there are none."""
    return fill(x, mask).sum() / mask.count_nonzero().clamp(min=1)


def row_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the True positions of each row, [B]; 0 for a row without any."""
    return fill(x, mask).sum(-1) / row_count(mask).clamp(min=1)


def variance(x: Tensor, mask: Tensor) -> Tensor:
    """Population variance over all True positions, a scalar, by the two-pass formula: never negative."""
    x = fill(x, mask)  # before the square: NaN times a gradient of 0 is NaN
    return mean((x - mean(x, mask)).square(), mask)


def centred(x: Tensor, mask: Tensor) -> Tensor:
    """x minus its mean over the True positions; 0 elsewhere, and exactly 0 where all of them hold one value: a residue
    of the mean would be ranked, or blown up by a division by the deviation.
    """
    if x.numel() == 0:
        return x
    varies = fill(x, mask, torch.inf).amin() < fill(x, mask, -torch.inf).amax()
    return fill(x - mean(x, mask), mask & varies)


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """(x - m) / sqrt(v + 1e-8) with the mean and population variance over the True positions; 0 elsewhere, and where
    all of them hold one value.
    """
    x = fill(x, mask)
    return centred(x, mask) * (variance(x, mask) + VARIANCE_EPS).rsqrt()


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 where the denominator is 0."""
    empty = denominator == 0
    return fill(numerator / torch.where(empty, torch.ones_like(denominator), denominator), ~empty)


def reciprocal(count: float) -> float:
    """1 / count, and 0 for an empty count: an empty batch has loss 0."""
    return 1.0 / count if count > 0 else 0.0


def bound(log_ratio: Tensor) -> Tensor:
    """clip(log_ratio, -20, 20), without gradient from 20 nats on."""
    # clamp has the same values, but its gradient takes four passes over memory instead of one
    return functional.hardtanh(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def ratio(log_ratio: Tensor) -> Tensor:
    """exp(clip(log_ratio, -20, 20)), without gradient from 20 nats on."""
    return bound(log_ratio).exp_()


def limited(x: Tensor, limit: Tensor) -> Tensor:
    """`limit`, with the gradient of x where both are equal and none elsewhere: x after a clip to tokenwise bounds."""
    # a comparison into float and arithmetic: torch.where on an irregular condition costs twenty times as much on a CPU
    inside = torch.eq(limit, x.detach(), out=torch.empty_like(limit))
    return torch.addcmul(limit, inside, x - x.detach())


def unit(x: Tensor) -> Tensor:
    """u = exp(x - sg(x)): the value is 1 and the gradient that of x, also where exp(x) under- or overflows."""
    return (x - x.detach()).exp()


@dataclass(frozen=True)
class Groups:
    """Rows sorted into groups: index [B] counts groups from 0, size [B] is the number of rows of the row's group."""

    index: Tensor
    size: Tensor
    count: int


def groups(group: Tensor) -> Groups:
    """Number the groups of a batch; ids may be any integers in any order."""
    _, index, sizes = torch.unique(group, return_inverse=True, return_counts=True)
    return Groups(index, sizes[index], len(sizes))


def group_sum(x: Tensor, g: Groups) -> Tensor:
    """Sum of x [B] over each group, one value a group."""
    return torch.zeros(g.count, dtype=x.dtype, device=x.device).index_add_(0, g.index, x)


def group_mean(x: Tensor, g: Groups) -> Tensor:
    """Mean of x [B] over the row's group, [B]."""
    return group_sum(x, g)[g.index] / g.size


def group_constant(x: Tensor, g: Groups) -> Tensor:
    """True [B] for rows whose group holds one value only (a group of one too); exact, no rounding is involved."""
    start = torch.full((g.count,), torch.inf, dtype=x.dtype, device=x.device)
    low = start.scatter_reduce(0, g.index, x, "amin")
    high = (-start).scatter_reduce(0, g.index, x, "amax")
    return (low == high)[g.index]


def group_std(x: Tensor, g: Groups, ddof: int) -> Tensor:
    """Standard deviation of x [B] over the row's group, [B]; 0 for groups of no more than ddof rows."""
    centred = x - group_mean(x, g)
    squares = group_sum(centred.square(), g)[g.index]
    return (squares / (g.size - ddof).clamp(min=1)).sqrt()


def group_quantile(x: Tensor, g: Groups, quantile: float) -> Tensor:
    """The smallest x of the row's group that a share `quantile` of the group, or more, does not exceed; [B]."""
    order = torch.argsort(x, stable=True)
    order = order[torch.argsort(g.index[order], stable=True)]
    size = group_sum(torch.ones_like(g.index), g)
    rank = (quantile * size - COUNT_SLACK).ceil().long().clamp(min=1)
    return x[order][(size.cumsum(0) - size + rank - 1)[g.index]]


def group_token_mean(x: Tensor, mask: Tensor, group: Tensor) -> tuple[Tensor, Groups]:
    """Mean of x [B,T] over all True positions of each group (one value a group; NaN for a group without tokens), and
    the groups.
    """
    g = groups(group)
    totals = group_sum(fill(x, mask).sum(-1), g)
    return totals / group_sum(row_count(mask).to(x.dtype), g), g


def top(x: Tensor, mask: Tensor, count: int, tie: Tensor | None = None) -> Tensor:
    """The `count` largest values among the True positions, as a bool tensor of x's shape; ties go to the larger
    `scramble` of `tie` (of x's shape), else to the earlier position.
    """
    flat, count = fill(x, mask, -torch.inf).flatten(), min(count, int(mask.sum()))
    if count == 0:
        return torch.zeros_like(mask)
    least = flat.topk(count, sorted=False).values.amin()
    chosen = flat > least
    level = ((flat == least) & mask.flatten()).nonzero().flatten()
    if tie is not None:
        level = level[torch.argsort(scramble(tie.flatten()[level], 0), descending=True, stable=True)]
    chosen[level[: count - int(chosen.sum())]] = True
    return chosen.view_as(mask)


def draw(x: Tensor, mask: Tensor, count: int, seed: int) -> Tensor:
    """`count` of the True positions, as a bool tensor of x's shape: those with the largest `scramble` of x."""
    places = mask.flatten().nonzero().flatten()
    number = scramble(x.flatten()[places], seed)
    chosen = torch.zeros_like(mask)
    chosen.view(-1)[places[top(number, torch.ones_like(number, dtype=torch.bool), count)]] = True
    return chosen


def share(fraction: float, count: int, minimum: int = 0) -> int:
    """floor(fraction * count), at least `minimum`."""
    return max(minimum, int(fraction * count + COUNT_SLACK))


def share_up(fraction: float, count: int) -> int:
    """ceil(fraction * count), robust against rounding of the product."""
    return -int(-(fraction * count - COUNT_SLACK) // 1)


def scramble(x: Tensor, seed: int) -> Tensor:
    """A pseudo-random number in [0, 1) for every element, from its value and the seed alone.

    Equal values get equal numbers, so the result follows any permutation, padding or split of the batch; the bits of
    x in float32 go through a multiply-and-shift mixer. float64 out.
    """
    bits = x.float().contiguous().view(torch.int32).to(torch.int64) + seed * 0x9E3779B1
    for factor in (0x2C1B3C6D, 0x297A2D39, 0x1B56C4E9):
        bits = ((bits ^ (bits >> 16)) * factor) & 0xFFFFFFFF
    return (bits ^ (bits >> 15)).double() / 2**32
