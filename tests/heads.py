"""Heads to compute with, the plain computation with the whole matrix of logits, and the backends that can run here."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope import theory
from isentrope._kernels import build
from isentrope.logprobs import HeadOutput, backend_in_use, logprobs

NATIVE = backend_in_use(torch.zeros(1, 2), torch.zeros(1, 2))
LIBRARY = build.target()
ON_CPU = [
    "eager",
    pytest.param("native", marks=pytest.mark.skipif(NATIVE.backend != "native", reason=NATIVE.reason)),
    pytest.param(
        "triton",
        marks=[
            pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
            pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy's, of the interpreter
        ],
    ),
]
every_backend = pytest.mark.parametrize("backend", ON_CPU)
# What the gradient of a product loses when one factor is rounded to the weight's type (relative, in the norm).
GRADIENT_LOSS = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class Case:
    hidden: Tensor
    weight: Tensor
    target: Tensor
    bias: Tensor | None = None
    softcap: float | None = None
    temperature: float = 1.0

    @property
    def options(self) -> dict[str, Any]:
        return {"softcap": self.softcap, "temperature": self.temperature}

    def leaves(self, dtype: torch.dtype | None = None) -> list[Tensor | None]:
        """Fresh copies of hidden, weight and bias that ask for a gradient."""
        inputs = (self.hidden, self.weight, self.bias)
        return [None if x is None else x.to(dtype or x.dtype).clone().requires_grad_() for x in inputs]


def draw(
    rows: int, vocab: int, width: int, dtype: torch.dtype, bias: bool = False, spread: float = 2.0, **options: Any
) -> Case:
    torch.manual_seed(rows * vocab + width)
    hidden, weight = torch.randn(rows, width), torch.randn(vocab, width) * spread / width**0.5
    return Case(
        hidden.to(dtype),
        weight.to(dtype),
        torch.randint(vocab, (rows,)),
        torch.randn(vocab, dtype=torch.promote_types(dtype, torch.float32)) if bias else None,
        **options,
    )


def plain_logits(case: Case, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    z = hidden @ weight.t()
    z = z if bias is None else z + bias
    z = z if case.softcap is None else case.softcap * torch.tanh(z / case.softcap)
    return z / case.temperature


def plain(case: Case, weights: Tensor, entropy_weights: Tensor) -> list[Tensor]:
    """logp, entropy and the gradients of sum(weights logp + entropy_weights entropy), float64."""
    leaves = case.leaves(torch.float64)
    z = plain_logits(case, *leaves)
    logp = theory.log_probabilities(z).gather(1, case.target[:, None])[:, 0]
    entropy = theory.entropy(z)
    ((weights * logp).sum() + (entropy_weights * entropy).sum()).backward()
    return [logp.detach(), entropy.detach(), *(x.grad for x in leaves if x is not None)]


def ours(case: Case, weights: Tensor, entropy_weights: Tensor | None = None, **options: Any) -> list[Tensor]:
    leaves = case.leaves()
    out = run(case, leaves, entropy_gradient=entropy_weights is not None, **options)
    total = (weights * out.logp).sum()
    total = total if entropy_weights is None else total + (entropy_weights * out.entropy).sum()
    total.backward()
    return [out.logp.detach(), out.entropy.detach(), *(x.grad for x in leaves if x is not None)]


def run(case: Case, leaves: list[Tensor | None] | None = None, **options: Any) -> HeadOutput:
    hidden, weight, bias = leaves or [case.hidden, case.weight, case.bias]
    return logprobs(hidden, weight, case.target, bias=bias, **case.options, **options)


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def logits_case(logits: list[float], target: int, dtype: torch.dtype = torch.float32) -> Case:
    """A head whose logits are given: hidden is 1 and the weight holds them (those that are -inf come by the bias)."""
    z = torch.tensor(logits, dtype=torch.float64)
    forbidden = z == -torch.inf
    weight = torch.stack([z.masked_fill(forbidden, 0), torch.zeros_like(z)], 1).to(dtype)
    bias = torch.zeros_like(z).masked_fill(forbidden, -torch.inf).float() if bool(forbidden.any()) else None
    return Case(torch.tensor([[1.0, 0.0]], dtype=dtype), weight, torch.tensor([target]), bias)


BENDS = [{}, {"softcap": 3.0, "temperature": 0.7}, {"bias": True}, {"bias": True, "softcap": 5.0, "temperature": 1.3}]
