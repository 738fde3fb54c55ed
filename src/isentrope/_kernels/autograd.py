"""What is differentiated: a row's log-probability and entropy in general, and a sum of log-probabilities with known
weights.

With g = dL/dlogp, b = dL/dH, a = g + b H and a row's p and H:
dz_v = -p_v (a + b log p_v) for v != y, and dz_y = own = g (1 - p_y) - b p_y (log p_y + H).
dh = scale sum_v dz_v f_v w_v and dW = scale (dz f)^T h need the logits again, except that with b = 0 the forward pass
can prepare dh: q = sum over v != y of p_v f_v w_v (`Statistics.mean`) gives dh = scale (own f_y w_y - a q). The
target's part is added row by row in the dtype of the statistics.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from isentrope._kernels.head import Backend, Chosen, Head, Statistics, Sums, Want, chosen, measure

Coefficient = Callable[[Tensor, Tensor, slice], Tensor]


@dataclass(frozen=True)
class Plan:
    """How a head is computed, and what for."""

    backend: Backend
    want: Want
    entropy_gradient: bool = False

    def pieces(self, head: Head) -> list[slice]:
        """Rows that are computed together."""
        return head.pieces(self.backend.rows_at_once(head, self.want.store))

    def public(self, parts: list[Statistics], like: Tensor) -> list[Tensor | None]:
        """The fields of `HeadOutput`, None where not wanted."""
        moments, top = self.want.moments, self.want.top_k > 0
        wanted = {"logp": True, "entropy": True, "squared": moments, "squared_logp": moments, "top_mass": top}
        return [join(parts, name, like) if wanted[name] else None for name in wanted]


def join(parts: list[Statistics], name: str, like: Tensor) -> Tensor:
    """One statistic of all pieces; of no pieces: empty."""
    found = [getattr(part, name) for part in parts]
    return torch.cat(found) if found else like.new_zeros(0, *like.shape[1:])


@dataclass(frozen=True)
class Bend:
    """What happens to a logit after the matrix product."""

    softcap: float | None
    scale: float


def add_chosen(d_weight: Tensor, hidden: Tensor, target: Tensor, own: Tensor) -> Tensor:
    """d_weight with own_i h_i added at row y_i, summed in the dtype of `own` before it is rounded to d_weight's."""
    pulls = own[:, None] * hidden.to(own.dtype)
    if d_weight.dtype == own.dtype:
        return d_weight.index_add_(0, target, pulls)
    rows, index = torch.unique(target, return_inverse=True)
    sums = d_weight[rows].to(own.dtype).index_add_(0, index, pulls)
    d_weight[rows] = sums.to(d_weight.dtype)
    return d_weight


class Logprobs(Function):
    """Forward: the statistics, and what makes the gradient of hidden a sum of known vectors. Backward: logits again,
    for the gradient of the weight alone.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, bend: Bend, plan: Plan
    ) -> tuple[Tensor | None, ...]:
        head = Head(hidden, weight, target, bias, bend.softcap, bend.scale)
        with torch.autocast(hidden.device.type, enabled=False):
            picked = chosen(head)
            parts = [measure(plan.backend, head.rows(s), picked.rows(s), plan.want)[0] for s in plan.pieces(head)]
        results = plan.public(parts, picked.logit)
        kept = [join(parts, name, picked.logit) for name in ("others", "lse")]
        mean = join(parts, "mean", picked.row) if plan.want.mean else None
        ctx.save_for_backward(hidden, weight, bias, target, *results[:2], *kept, mean)
        ctx.bend, ctx.plan = bend, plan
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in results[1 + plan.entropy_gradient :] if x is not None))
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, logp, entropy, others, lse, mean = ctx.saved_tensors
        head = Head(hidden, weight, target, bias, ctx.bend.softcap, ctx.bend.scale)
        a = torch.zeros_like(logp) if grads[0] is None else grads[0]
        own, b = a * others, grads[1] if ctx.plan.entropy_gradient else None
        if b is not None:
            p = logp.exp()
            own = own - b * torch.where(p > 0, p * (logp + entropy), 0.0)  # not 0 * -inf
            a = a + b * entropy
        d_hidden = d_weight = d_bias = None
        with torch.autocast(hidden.device.type, enabled=False):
            picked = chosen(head)
            own = own * head.scale * (1 if picked.slope is None else picked.slope)
            active = (a != 0) if b is None else (a != 0) | (b != 0)  # advantage 0, masked: whatever the row holds
            if ctx.needs_input_grad[0]:
                d_hidden = rest_of_hidden(ctx.plan.backend, head, lse, a, b, mean).addcmul_(own[:, None], picked.row)
                d_hidden.masked_fill_(~active[:, None], 0)
            if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
                d_weight, d_bias = weight_gradient(ctx.plan.backend, head, active, lse, own, a, b)
        return as_inputs(d_hidden, hidden), as_inputs(d_weight, weight), d_bias, None, None, None


def rest_of_hidden(
    backend: Backend, head: Head, lse: Tensor, a: Tensor, b: Tensor | None, mean: Tensor | None
) -> Tensor:
    """d_hidden without the target's part: from what the forward pass prepared, or computed now."""
    if mean is None:
        return backend.hidden_gradient(head, lse, a, torch.zeros_like(a) if b is None else b)
    return (-head.scale * a)[:, None] * mean


def as_inputs(gradient: Tensor | None, x: Tensor) -> Tensor | None:
    """The gradient in its input's dtype."""
    return None if gradient is None else gradient.to(x.dtype)


def weight_gradient(
    backend: Backend, head: Head, active: Tensor, lse: Tensor, own: Tensor, a: Tensor, b: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """d_weight and d_bias; rows that are not active are left out and cost nothing."""
    if not bool(active.all()):
        head, lse, own, a = head.rows(active), lse[active], own[active], a[active]
        b = None if b is None else b[active]
    d_weight, d_bias = backend.gradient(head, lse, a, b)
    d_bias = None if d_bias is None else d_bias.index_add_(0, head.target, own)
    return add_chosen(d_weight, head.hidden, head.target, own), d_bias


class PolicyGradient(Function):
    """sum_t c_t log p_t; its gradient is made in the forward pass, piece by piece, and only scaled in the backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        bend: Bend,
        plan: Plan,
        coefficient: Coefficient,
    ) -> tuple[Tensor | None, ...]:
        head = Head(hidden, weight, target, bias, bend.softcap, bend.scale)
        kept = Kept.empty(head, ctx.needs_input_grad, plan)
        parts, sums, value = [], None, torch.zeros((), dtype=torch.float64, device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in plan.pieces(head):
                piece, picked = head.rows(rows), chosen(head.rows(rows))
                part, sums = measure(plan.backend, piece, picked, plan.want, sums and sums.store)
                c = weights_of_tokens(coefficient, part, rows)
                value += (c.double() * part.logp).sum()
                kept.add(plan.backend, piece, picked, part, sums, c, rows)
                parts.append(part.without_vectors())
        del sums  # the largest piece of memory, before the gradients are rounded into another
        ctx.kept = kept.finished(head)
        results = plan.public(parts, hidden.new_zeros(0, dtype=head.wide))
        ctx.mark_non_differentiable(*(x for x in results if x is not None))
        return value.to(head.wide), *results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        if ctx.kept is None:
            raise RuntimeError("policy_gradient's backward pass ran before: its gradient is kept once; call it again")
        kept, ctx.kept = ctx.kept, None
        unit = grad.device.type == "cpu" and float(grad) == 1.0
        gradients = [x if x is None or unit else x.mul_(grad.to(x.dtype)) for x in kept]
        return *gradients, None, None, None, None


def weights_of_tokens(coefficient: Coefficient, part: Statistics, rows: slice) -> Tensor:
    """c [n] from the user's function, checked."""
    c = coefficient(part.logp, part.entropy, rows)
    if c.shape != part.logp.shape:
        raise ValueError(f"coefficient returned {list(c.shape)}, it must return one weight a token: [{len(part.logp)}]")
    return c.detach().to(part.logp.dtype)


@dataclass
class Kept:
    """The gradients that are collected over the pieces, in the dtype of the statistics; None where not needed."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @staticmethod
    def empty(head: Head, needs: Sequence[bool], plan: Plan) -> "Kept":
        """The plan says whether there is a gradient at all, `needs` for which input."""
        want, pieces = plan.want, len(plan.pieces(head))
        weight = plan.backend.collector(head, pieces) if want.store and needs[1] else None
        return Kept(
            torch.empty_like(head.hidden) if want.mean and needs[0] else None,
            weight if weight is None or pieces else weight.zero_(),  # no piece will write it
            torch.zeros_like(head.bias) if head.bias is not None and want.store and needs[2] else None,
        )

    def add(
        self, backend: Backend, head: Head, picked: Chosen, part: Statistics, sums: Sums, c: Tensor, rows: slice
    ) -> None:
        """One piece: dh and the piece's share of dW and db."""
        own = c * part.others * head.scale * (1 if picked.slope is None else picked.slope)
        if self.hidden is not None and part.mean is not None:
            d_hidden = own[:, None] * picked.row - (c * head.scale)[:, None] * part.mean
            self.hidden[rows] = d_hidden.to(self.hidden.dtype)
        each = (-head.scale * c / part.total)[:, None]
        first = rows.start == 0
        if self.weight is not None:
            backend.product(sums, each * head.hidden.to(each.dtype), self.weight, add=not first)
            add_chosen(self.weight, head.hidden, head.target, own)
        if self.bias is not None:
            backend.product(sums, each, self.bias[:, None], add=not first)
            self.bias.index_add_(0, head.target, own)

    def finished(self, head: Head) -> list[Tensor | None]:
        """In the inputs' dtypes; bias keeps that of the statistics."""
        weight = None if self.weight is None else self.weight.to(head.weight.dtype)
        return [self.hidden, weight, self.bias]
