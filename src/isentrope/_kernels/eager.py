"""The head in PyTorch alone: on any device, in float64 too; a piece of rows at a time.

Logits are accumulated and kept in float32 whatever the inputs. On a CPU that costs bfloat16 inputs their fast matrix
product, which returns bfloat16 there (on a GPU it can return float32); the products behind the logits, whose results
are gradients, take it.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isentrope._kernels.head import Head, Sums, Want

LOGITS_AT_ONCE = {"cpu": 2**23, "cuda": 2**26}  # 32 and 256 MiB of float32; three or four such pieces are held
LOWEST = -1000.0  # nats; exp is 0 in float64 too, and 0 * -inf would be NaN


@functools.cache
def fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices in hardware."""
    return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def factor_dtype(weight: Tensor, wide: torch.dtype) -> torch.dtype:
    """Dtype of e (or a gradient of logits) as a factor of a product: bfloat16 for a bfloat16 weight where that is fast,
    else that of the statistics. Not float16, whose range e leaves.
    """
    fast = weight.dtype == torch.bfloat16 and (weight.is_cuda or fast_bfloat16())
    return torch.bfloat16 if fast else wide


def exact_product(a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    """a b in the dtype of the statistics, without rounding the result to that of the factors."""
    if a.is_cuda and a.dtype == b.dtype and a.dtype in (torch.float16, torch.bfloat16):
        return torch.mm(a, b, out_dtype=wide)
    return a.to(wide) @ b.to(wide)


def product(a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    """The same, but rounded once to bfloat16 where a is that, b can be, and a CPU would be slow otherwise."""
    if a.dtype == torch.bfloat16 and not a.is_cuda:
        return (a @ b.to(torch.bfloat16)).to(wide)
    return exact_product(a, b, wide)


def without_target(logits: Tensor, target: Tensor) -> Tensor:
    """The logits with -inf at the target, in place."""
    return logits.scatter_(1, target[:, None], -torch.inf)


@dataclass(frozen=True)
class Eager:
    """See the module. chunk: rows held at a time; None: few enough that their logits are small.

    `Fused` replaces the methods that make logits.
    """

    chunk: int | None = None

    def rows_at_once(self, head: Head, store: bool) -> int:
        if self.chunk is not None:
            return self.chunk
        logits = LOGITS_AT_ONCE.get(head.weight.device.type, LOGITS_AT_ONCE["cuda"])
        return min(1024, max(16, logits // max(len(head.weight), 1)))

    def forward(self, head: Head, shift: Tensor, want: Want, reuse: Any = None) -> Sums:
        d, slope = head.finish_logits(exact_product(head.hidden, head.weight.t(), head.wide))
        d = without_target(d, head.target).sub_(shift[:, None])
        top = d.topk(min(want.top_k, d.shape[1])).values if want.top_k else None
        peak = d.amax(1) if d.shape[1] else shift.new_full(shift.shape, -torch.inf)
        e = d.exp()
        ed = d.clamp_(min=LOWEST).mul_(e)
        weighted = e if slope is None else e * slope
        return Sums(
            rest=e.sum(1).double(),
            cross=ed.sum(1).double(),
            peak=peak,
            square=(e * e).sum(1).double() if want.moments else None,
            square_cross=(e * ed).sum(1).double() if want.moments else None,
            top=top,
            mean=self.weighted(weighted, head) if want.mean else None,
            store=weighted.to(factor_dtype(head.weight, head.wide)) if want.store else None,
        )

    def hidden_gradient(self, head: Head, lse: Tensor, a: Tensor, b: Tensor) -> Tensor:
        parts = [
            self.weighted(self.logit_gradient(head.rows(s), lse[s], a[s], b[s]), head)
            for s in head.pieces(self.rows_at_once(head, store=False))
        ]
        return torch.cat(parts) if parts else torch.zeros_like(head.hidden, dtype=head.wide)

    def weighted(self, e: Tensor, head: Head) -> Tensor:
        """Sum over v of e w_v, [N, H]."""
        return product(e.to(factor_dtype(head.weight, head.wide)), head.weight, head.wide)

    def gradient(self, head: Head, lse: Tensor, a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor | None]:
        weight = torch.zeros_like(head.weight, dtype=head.wide)
        bias = None if head.bias is None else torch.zeros_like(head.bias)
        for piece in head.pieces(self.rows_at_once(head, store=False)):
            dz = self.logit_gradient(head.rows(piece), lse[piece], a[piece], None if b is None else b[piece])
            self.add_product(dz.to(factor_dtype(head.weight, head.wide)), head.hidden[piece], weight)
            bias = None if bias is None else bias.add_(dz.sum(0, dtype=bias.dtype))
        return weight, bias

    def logit_gradient(self, head: Head, lse: Tensor, a: Tensor, b: Tensor | None) -> Tensor:
        """dz [N, V] with 0 at the target."""
        log_p, slope = head.finish_logits(exact_product(head.hidden, head.weight.t(), head.wide))
        log_p = without_target(log_p, head.target).sub_(lse[:, None])
        dz = log_p.exp()
        dz = dz.mul_(a[:, None] if b is None else log_p.clamp_(min=LOWEST).mul_(b[:, None]).add_(a[:, None]))
        return (dz if slope is None else dz.mul_(slope)).mul_(-head.scale)

    def collector(self, head: Head, pieces: int) -> Tensor:
        return torch.empty_like(head.weight, dtype=head.wide)

    def product(self, sums: Sums, scaled: Tensor, out: Tensor, add: bool) -> None:
        self.add_product(sums.store, scaled.to(sums.store.dtype), out if add else out.zero_())

    def add_product(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        """out += left^T right."""
        if left.dtype == torch.bfloat16 and not out.is_cuda:
            out.add_(left.t() @ right.to(torch.bfloat16))  # rounded once, as in `product`, but not copied
        elif left.dtype == torch.bfloat16:
            out.add_(exact_product(left.t(), right, out.dtype))
        else:
            out.addmm_(left.t(), right.to(out.dtype))
