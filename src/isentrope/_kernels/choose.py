"""Which backend computes a head, and why."""

import functools
import importlib
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope._kernels import build, native
from isentrope._kernels.eager import Eager
from isentrope._kernels.head import Backend, Head, Want, chosen, measure

NAMES = ("auto", "eager", "native", "triton")


@dataclass(frozen=True)
class Choice:
    """A backend by name and the sentence that says why it is the one; `str()` is both."""

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def choose(name: str, hidden: Tensor, weight: Tensor, chunk: int | None = None) -> tuple[Backend, Choice]:
    """The backend for these tensors. A backend asked for by name that cannot compute them raises ValueError."""
    if name not in NAMES:
        raise ValueError(f"backend={name!r} is unknown: one of {', '.join(NAMES)}")
    if name == "eager":
        return Eager(chunk), Choice("eager", "asked for")
    if name == "triton":
        return _triton(hidden, chunk)
    obstacle = native_obstacle(hidden, weight)
    if obstacle is None:
        return native.Native(chunk), Choice("native", "compiled for this CPU" if name == "auto" else "asked for")
    if name == "native":
        raise ValueError(f"backend='native' cannot be used: {obstacle}; backend='auto' falls back to PyTorch")
    return Eager(chunk), Choice("eager", obstacle)


def native_obstacle(hidden: Tensor, weight: Tensor) -> str | None:
    """Why the compiled backend cannot compute these tensors; None if it can."""
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    if hidden.device.type != "cpu":
        return f"the compiled head is for CPUs, the hidden states are on {hidden.device}"
    if dtype == torch.float64:
        return "float64 is computed by PyTorch"
    if dtype == torch.bfloat16 and hidden.shape[-1] % 2:
        return f"the CPU's bfloat16 kernels take an even hidden size, not {hidden.shape[-1]}"
    return native_fault(torch.bfloat16 if dtype == torch.bfloat16 else torch.float32)


@functools.cache
def native_fault(dtype: torch.dtype) -> str | None:
    """Compiles or loads the library and compares it with PyTorch on a small head, once a process; None: all is well."""
    hidden = torch.linspace(-2, 2, 20 * 6).sin().view(20, 6).to(dtype)
    weight = torch.linspace(-3, 3, 19 * 6).cos().view(19, 6).to(dtype)
    head = Head(hidden, weight, torch.arange(20) % 19)
    backends: tuple[Backend, ...] = (native.Native(), Eager())
    try:
        found = [measure(backend, head, chosen(head), Want(mean=True))[0] for backend in backends]
    except (build.Unavailable, RuntimeError) as error:
        return str(error)
    for name in ("logp", "entropy", "mean"):
        mine, reference = (getattr(s, name) for s in found)
        if not torch.allclose(mine, reference, rtol=0.02, atol=0.02):
            return f"the compiled head disagrees with PyTorch about {name} in {dtype}; empty {build.cache_folder()}"
    return None


def _triton(hidden: Tensor, chunk: int | None) -> tuple[Backend, Choice]:
    try:
        fused = importlib.import_module("isentrope._kernels.fused")  # Triton comes with PyTorch for GPUs only
    except ImportError as error:
        raise ValueError(f"backend='triton' cannot be used: {error}; backend='auto' falls back to PyTorch") from error
    if obstacle := fused.obstacle(hidden):
        raise ValueError(f"backend='triton' cannot be used: {obstacle}; backend='auto' falls back to PyTorch")
    return fused.Fused(chunk), Choice("triton", "asked for")
