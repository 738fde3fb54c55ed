"""The head through head.cpp: float32 and bfloat16 on CPUs with AVX-512 (and the tile unit, where there is one).

Float16 is computed in float32 (CPUs multiply it no faster). Pieces of one call run on torch.get_num_threads() threads.
"""

import ctypes
import functools
from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isentrope._kernels import build
from isentrope._kernels.head import Head, Sums, Want

LANES = 16
BLOCK = 256  # rows a tile: with TILE, operands and results of one product fit a second-level cache of 1 MiB
TILE = 128  # tokens of the vocabulary a tile
SPAN = 1024  # rows a thread keeps at a time: the packing of a tile of weights serves all of them
STORE_BYTES = 96 * 2**20  # of e, in the fused forward


class _Head(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("rows", "vocab", "width", "threads", "block", "tile")),
        *((name, c_float) for name in ("scale", "cap")),
        *((name, c_void_p) for name in ("hidden", "weight", "bias", "target", "shift")),
    ]


class _Forward(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("splits", "span", "top_k")),
        *((name, c_void_p) for name in ("sums", "peak", "top", "mean", "a", "b", "store")),
        ("moments", c_int64),
    ]


class _Gradient(Structure):
    _fields_ = [(name, c_void_p) for name in ("a", "b", "weight", "bias")]


class _Product(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("rows", "vocab", "width", "threads", "block", "tile")),
        *((name, c_void_p) for name in ("store", "scaled", "weight")),
        *((name, c_int64) for name in ("add", "narrow")),
    ]


def address(x: Tensor | None) -> int | None:
    """The data's address for C; None is null."""
    return None if x is None else x.data_ptr()


def round_up(x: int, to: int) -> int:
    return -(-x // to) * to


@functools.cache
def load() -> ctypes.CDLL:
    """The library with its functions' types, once a process; raises build.Unavailable with the reason."""
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        raise build.Unavailable(f"this CPU has {torch.backends.cpu.get_cpu_capability()}, not AVX-512")
    lib = build.library()
    for name, last in (("forward", [_Head, _Forward]), ("gradient", [_Head, _Gradient]), ("product", [_Product])):
        function = getattr(lib, f"head_{name}")
        function.argtypes = [c_int, *map(POINTER, last)]
        function.restype = c_int
    lib.head_error.restype = ctypes.c_char_p
    return lib


def call(name: str, dtype: torch.dtype, *arguments: Structure) -> None:
    """Calls head_<name>; a failure raises RuntimeError with the library's reason."""
    lib = load()
    if getattr(lib, f"head_{name}")(int(dtype == torch.bfloat16), *map(ctypes.byref, arguments)):
        raise RuntimeError(f"head_{name}: {lib.head_error().decode(errors='replace')}")


@dataclass(frozen=True)
class Native:
    """See the module. chunk: rows whose e is held at a time, where it is held at all; None: 96 MiB of them."""

    chunk: int | None = None

    def rows_at_once(self, head: Head, store: bool) -> int:
        if self.chunk is not None:
            return self.chunk
        if not store:
            return 4 * SPAN
        width = 2 if head.hidden.dtype == torch.bfloat16 else 4
        return max(BLOCK, STORE_BYTES // (width * max(len(head.weight), 1)) // BLOCK * BLOCK)

    def forward(self, head: Head, shift: Tensor, want: Want, reuse: Any = None) -> Sums:
        c = _Call(head, shift)
        span, splits = c.parts(whole=want.top_k > 0)
        sums = torch.zeros(splits, 4, c.padded, dtype=torch.float64)
        peak = torch.full((splits, c.padded), -torch.inf)
        top = torch.full((c.padded, want.top_k), -torch.inf) if want.top_k else None
        mean = torch.empty(splits, c.padded, c.struct.width) if want.mean else None
        store = _store(c, reuse) if want.store else None
        places = map(address, (sums, peak, top, mean, None, None, store))
        call("forward", c.hidden.dtype, c.struct, _Forward(splits, span, want.top_k, *places, want.moments))
        rest, cross, square, square_cross = sums.sum(0)[:, : c.rows].unbind()
        return Sums(
            rest=rest,
            cross=cross,
            peak=peak.amax(0)[: c.rows],
            square=square if want.moments else None,
            square_cross=square_cross if want.moments else None,
            top=None if top is None else top[: c.rows],
            mean=None if mean is None else mean.sum(0)[: c.rows] if splits > 1 else mean[0, : c.rows],
            store=store,
        )

    def hidden_gradient(self, head: Head, lse: Tensor, a: Tensor, b: Tensor) -> Tensor:
        c = _Call(head, lse)
        span, splits = c.parts(whole=False)
        sums = torch.zeros(splits, 4, c.padded, dtype=torch.float64)
        peak = torch.full((splits, c.padded), -torch.inf)
        mean = torch.empty(splits, c.padded, c.struct.width)
        factors = [torch.nn.functional.pad(x, (0, c.padded - c.rows)) for x in (a, b)]
        places = map(address, (sums, peak, None, mean, *factors, None))
        call("forward", c.hidden.dtype, c.struct, _Forward(splits, span, 0, *places, 0))
        return mean.sum(0)[: c.rows].mul_(-head.scale)

    def gradient(self, head: Head, lse: Tensor, a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor | None]:
        c = _Call(head, lse)
        weight = torch.empty_like(c.weight)
        bias = None if head.bias is None else torch.zeros(len(head.weight))
        a, b = a.contiguous(), None if b is None else b.contiguous()
        call("gradient", c.hidden.dtype, c.struct, _Gradient(*map(address, (a, b, weight, bias))))
        return weight, bias

    def collector(self, head: Head, pieces: int) -> Tensor:
        dtype = torch.bfloat16 if pieces == 1 and head.weight.dtype == torch.bfloat16 else torch.float32
        return torch.empty(head.weight.shape, dtype=dtype)  # row-major, whatever the weight is

    def product(self, sums: Sums, scaled: Tensor, out: Tensor, add: bool) -> None:
        scaled = scaled.to(sums.store.dtype).contiguous()
        sizes = (len(scaled), *out.shape, torch.get_num_threads(), min(BLOCK, round_up(len(scaled), LANES)), TILE)
        places = map(address, (sums.store, scaled, out))
        call("product", scaled.dtype, _Product(*sizes, *places, add, out.dtype != torch.float32))


def _store(c: "_Call", reuse: Tensor | None) -> Tensor:
    """Memory [V, padded] for e: that of an earlier piece if there is one, which costs no page faults again."""
    size = c.struct.vocab * c.padded
    if reuse is None or reuse.numel() < size:
        return torch.empty(c.struct.vocab, c.padded, dtype=c.hidden.dtype)
    return reuse.view(-1)[:size].view(c.struct.vocab, c.padded)


class _Call:
    """The arguments that every function takes; keeps the tensors behind their addresses alive."""

    def __init__(self, head: Head, shift: Tensor) -> None:
        dtype = torch.bfloat16 if head.hidden.dtype == torch.bfloat16 else torch.float32
        self.hidden, self.weight = head.hidden.to(dtype).contiguous(), head.weight.to(dtype).contiguous()
        self.others = [None if x is None else x.contiguous() for x in (head.bias, head.target, shift)]
        self.rows, width = head.hidden.shape
        self.padded = round_up(self.rows, LANES)
        self.threads = torch.get_num_threads()
        self.struct = _Head(
            *(self.rows, len(head.weight), width, self.threads, min(BLOCK, max(LANES, self.padded)), TILE),
            *(head.scale, head.softcap or 0.0),
            *map(address, (self.hidden, self.weight, *self.others)),
        )

    def parts(self, whole: bool) -> tuple[int, int]:
        """Rows a thread takes at a time, and the parts of the vocabulary that keep every thread busy with few rows;
        `whole`: one part.
        """
        span = min(SPAN, round_up(max(1, -(-self.padded // self.threads)), self.struct.block))
        spans, tiles = max(1, -(-self.padded // span)), -(-self.struct.vocab // TILE)
        return span, 1 if whole else max(1, min(-(-self.threads // spans), tiles))
