"""The head with Triton: the first matrix product writes exponentials, not logits, and the rows' sums on the way.

A piece of rows at a time, as in `eager`: what is held is e (or the gradient of the logits) in the type of the weight;
the other products are PyTorch's. Written for GPUs; where none is at hand its tests run under Triton's interpreter
(TRITON_INTERPRET=1), which says that the numbers are right and nothing about speed: so it is used by name only.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import os
from dataclasses import dataclass
from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from isentrope._kernels.eager import Eager, factor_dtype
from isentrope._kernels.head import Head, Sums, Want

ROWS, TOKENS, DEPTH = 64, 128, 32  # of a tile, and of one step through the hidden size
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def obstacle(hidden: Tensor) -> str | None:
    """Why Triton cannot compute these hidden states; None if it can."""
    if hidden.dtype == torch.float64:
        return "float64 is computed by PyTorch"
    if not hidden.is_cuda and not INTERPRETED:
        return f"the hidden states are on {hidden.device}, not on a GPU (TRITON_INTERPRET=1 runs it anywhere, slowly)"
    return None


@triton.jit
def logits(
    hidden,
    weight,
    bias,
    target,
    rows,
    tokens,
    num_rows,
    vocab,
    width,
    cap,
    scale,
    BIAS: tl.constexpr,
    CAP: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A tile [ROWS, TOKENS] of logits, -inf at targets and beyond the edges, and the slope of the cap."""
    product = tl.zeros((ROWS, TOKENS), dtype=tl.float32)
    for start in range(0, width, DEPTH):
        k = start + tl.arange(0, DEPTH)
        left_mask = (rows[:, None] < num_rows) & (k[None, :] < width)
        right_mask = (k[:, None] < width) & (tokens[None, :] < vocab)
        left = tl.load(hidden + rows[:, None].to(tl.int64) * width + k[None, :], mask=left_mask, other=0.0)
        right = tl.load(weight + tokens[None, :].to(tl.int64) * width + k[:, None], mask=right_mask, other=0.0)
        if UPCAST:  # the interpreter's own product of bfloat16 factors is wrong (Triton 3.7.1)
            left, right = left.to(tl.float32), right.to(tl.float32)
        product = tl.dot(left, right, product, input_precision="ieee")
    z = product
    if BIAS:
        z += tl.load(bias + tokens, mask=tokens < vocab, other=0.0)[None, :]
    slope = tl.full((ROWS, TOKENS), 1.0, dtype=tl.float32)
    if CAP:
        bent = 2.0 / (1.0 + tl.exp(-2.0 * z / cap)) - 1.0  # tanh
        slope = 1.0 - bent * bent
        z = cap * bent
    z = z * scale
    y = tl.load(target + rows, mask=rows < num_rows, other=-1)
    counts = (tokens[None, :] != y[:, None]) & (tokens[None, :] < vocab) & (rows[:, None] < num_rows)
    return tl.where(counts, z, float("-inf")), slope


@triton.jit
def exponentials(
    hidden,
    weight,
    bias,
    target,
    shift,
    out,
    sums,
    peak,
    num_rows,
    vocab,
    width,
    cap,
    scale,
    BIAS: tl.constexpr,
    CAP: tl.constexpr,
    MOMENTS: tl.constexpr,
    OUT: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """e slope to out [rows, vocab]; the tile's sums to sums [4, tiles, rows] and peak [tiles, rows]."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(1)
    tokens = tile * TOKENS + tl.arange(0, TOKENS)
    z, slope = logits(
        hidden, weight, bias, target, rows, tokens, num_rows, vocab, width, cap, scale,
        BIAS, CAP, ROWS, TOKENS, DEPTH, UPCAST,
    )  # fmt: skip
    inside = rows < num_rows
    d = z - tl.load(shift + rows, mask=inside, other=0.0)[:, None]
    e = tl.exp(d)
    ed = tl.where(e > 0, e * d, tl.where(d == d, 0.0, d))
    at, step = tile.to(tl.int64) * num_rows + rows, tl.num_programs(1).to(tl.int64) * num_rows
    tl.store(peak + at, tl.max(d, 1), mask=inside)
    tl.store(sums + at, tl.sum(e, 1), mask=inside)
    tl.store(sums + step + at, tl.sum(ed, 1), mask=inside)
    if MOMENTS:
        tl.store(sums + 2 * step + at, tl.sum(e * e, 1), mask=inside)
        tl.store(sums + 3 * step + at, tl.sum(e * ed, 1), mask=inside)
    if OUT:
        place = rows[:, None].to(tl.int64) * vocab + tokens[None, :]
        value = (e * slope).to(out.dtype.element_ty)
        tl.store(out + place, value, mask=inside[:, None] & (tokens[None, :] < vocab))


@triton.jit
def gradients(
    hidden,
    weight,
    bias,
    target,
    lse,
    a,
    b,
    out,
    num_rows,
    vocab,
    width,
    cap,
    scale,
    BIAS: tl.constexpr,
    CAP: tl.constexpr,
    B: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """-p (a + b log p) slope scale to out [rows, vocab]."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tokens = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    z, slope = logits(
        hidden, weight, bias, target, rows, tokens, num_rows, vocab, width, cap, scale,
        BIAS, CAP, ROWS, TOKENS, DEPTH, UPCAST,
    )  # fmt: skip
    inside = rows < num_rows
    log_p = z - tl.load(lse + rows, mask=inside, other=0.0)[:, None]
    p = tl.exp(log_p)
    factor = tl.load(a + rows, mask=inside, other=0.0)[:, None] + tl.zeros((ROWS, TOKENS), dtype=tl.float32)
    if B:
        factor += tl.load(b + rows, mask=inside, other=0.0)[:, None] * tl.where(p > 0, log_p, 0.0)
    place = rows[:, None].to(tl.int64) * vocab + tokens[None, :]
    value = (-p * factor * slope * scale).to(out.dtype.element_ty)
    tl.store(out + place, value, mask=inside[:, None] & (tokens[None, :] < vocab))


@dataclass(frozen=True)
class Fused(Eager):
    """See the module."""

    def forward(self, head: Head, shift: Tensor, want: Want, reuse: Any = None) -> Sums:
        if want.top_k:  # needs e of whole rows in float32
            return super().forward(head, shift, want)
        num_rows, vocab = len(head.target), len(head.weight)
        tiles = triton.cdiv(vocab, TOKENS)
        sums = shift.new_zeros(4, tiles, num_rows)
        peak = shift.new_empty(tiles, num_rows)
        keep = want.mean or want.store
        e = self._piece(head) if keep else sums
        grid = (triton.cdiv(num_rows, ROWS), tiles)
        exponentials[grid](
            *_operands(head),
            shift.contiguous(),
            e,
            sums,
            peak,
            *_sizes(head),
            **_flags(head),
            MOMENTS=want.moments,
            OUT=keep,
        )
        rest, cross, square, square_cross = sums.sum(1, dtype=torch.float64).unbind()
        return Sums(
            rest=rest,
            cross=cross,
            peak=peak.amax(0),
            square=square if want.moments else None,
            square_cross=square_cross if want.moments else None,
            mean=self.weighted(e, head) if want.mean else None,
            store=e if want.store else None,
        )

    def logit_gradient(self, head: Head, lse: Tensor, a: Tensor, b: Tensor | None) -> Tensor:
        dz = self._piece(head)
        grid = (triton.cdiv(len(head.target), ROWS), triton.cdiv(len(head.weight), TOKENS))
        factors = (lse.contiguous(), a.contiguous(), a.contiguous() if b is None else b.contiguous())
        gradients[grid](*_operands(head), *factors, dz, *_sizes(head), **_flags(head), B=b is not None)
        return dz

    def _piece(self, head: Head) -> Tensor:
        dtype = factor_dtype(head.weight, head.wide)
        return torch.empty(len(head.target), len(head.weight), dtype=dtype, device=head.weight.device)


def _operands(head: Head) -> tuple[Tensor, ...]:
    hidden, weight, target = head.hidden.contiguous(), head.weight.contiguous(), head.target.contiguous()
    return hidden, weight, weight if head.bias is None else head.bias.contiguous(), target


def _sizes(head: Head) -> tuple[float, ...]:
    return len(head.target), *head.weight.shape, head.softcap or 1.0, head.scale


def _flags(head: Head) -> dict[str, Any]:
    return {
        "BIAS": head.bias is not None,
        "CAP": head.softcap is not None,
        "ROWS": ROWS,
        "TOKENS": TOKENS,
        "DEPTH": DEPTH,
        "UPCAST": INTERPRETED,
    }
