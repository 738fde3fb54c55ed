"""Log-probability and exact entropy of target tokens from final hidden states, without the token-by-vocabulary matrix.

z_v = softcap tanh((h . w_v + bias_v) / softcap) / temperature, p = softmax(z), all statistics in float32 (float64 for
float64 inputs) whatever the inputs are: logits are accumulated and used in float32, never rounded to bfloat16. Hidden
states and weight keep their dtype in the matrix products, and their gradients return in it.

`logprobs` is differentiable in general and costs four matrix products forward and backward (two with a frozen head,
five with `entropy_gradient`). `policy_gradient` is for a loss whose weight per token is known from the token's own
log-probability and entropy: its gradient is made in the forward pass, with three.

>>> hidden, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.5]])
>>> out = logprobs(hidden, weight, torch.tensor([1]))  # logits 0, 1, 1
>>> round(float(out.logp), 4), round(float(out.entropy), 4)
(-0.862, 1.0174)
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isentrope._kernels.autograd import Bend, Coefficient, Logprobs, Plan, PolicyGradient
from isentrope._kernels.choose import Choice, choose
from isentrope._kernels.head import Head, Want

__all__ = ["Choice", "HeadOutput", "backend_in_use", "logprobs", "policy_gradient"]


@dataclass(frozen=True)
class HeadOutput:
    """What a head says about its targets; every tensor has the targets' shape; nats.

    logp: log p_y, with gradient. entropy: -sum p log p, exact, never negative; with gradient only if asked for.
    squared: sum p², squared_logp: sum p² log p (`moments=True`, else None), without gradient.
    top_mass: the sum of the k largest probabilities (`top_k_mass=k`, else None), without gradient.
    """

    logp: Tensor
    entropy: Tensor
    squared: Tensor | None = None
    squared_logp: Tensor | None = None
    top_mass: Tensor | None = None

    @property
    def squared_mass(self) -> Tensor:
        """S = sum p² (log p + H), which makes `theory.predicted_change` exact; needs `moments=True`."""
        if self.squared is None or self.squared_logp is None:
            raise ValueError("squared_mass needs the moments: call logprobs(..., moments=True)")
        return self.squared_logp + self.entropy.detach() * self.squared


def logprobs(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    moments: bool = False,
    top_k_mass: int = 0,
    chunk: int | None = None,
    backend: str = "auto",
) -> HeadOutput:
    """Log-probability (differentiable) and entropy of the targets.

    hidden: [..., H]. weight: [V, H]; a plain tensor (gather a sharded one first). target: [...] int64 in [0, V); for a
    position that does not count choose any, or better leave the position out: it costs as much as any other.
    bias: [V]; -inf forbids a token. softcap: > 0 or None. temperature: > 0, divides the capped logits.
    entropy_gradient: whether entropy can be differentiated too (one more matrix product).
    chunk: rows held at a time where a backend holds logits; None keeps that small.
    backend: see `backend_in_use`.
    Gradients go to whichever of hidden, weight and bias require them. The same call gives the same bits again on a CPU
    with the same number of threads.

    Edge cases. A target at -inf has logp -inf and finite gradients. A row with every logit at -inf is no distribution:
    NaN. No rows: empty results, zero gradients. Mixed dtypes are computed in the wider. Autocast does not reach inside.
    Raises ValueError or TypeError for shapes, dtypes or options that cannot be, IndexError for a target outside [0, V).
    """
    head = _head(hidden, weight, target, bias, softcap, temperature)
    _check_counts(top_k_mass, chunk)
    # With an entropy gradient the backward pass makes that of hidden in one go, more accurately.
    mean = torch.is_grad_enabled() and hidden.requires_grad and not entropy_gradient
    plan = Plan(choose(backend, hidden, weight, chunk)[0], Want(moments, top_k_mass, mean), entropy_gradient)
    bend = Bend(head.softcap, head.scale)
    apply: Any = Logprobs.apply
    return _output(apply(head.hidden, head.weight, head.bias, head.target, bend, plan), target.shape)


def policy_gradient(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    coefficient: Coefficient,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    temperature: float = 1.0,
    moments: bool = False,
    top_k_mass: int = 0,
    chunk: int | None = None,
    backend: str = "auto",
) -> tuple[Tensor, HeadOutput]:
    """sum_t sg(c_t) log p_t, a scalar whose gradient is ready once it is computed, and the (detached) output.

    coefficient(logp, entropy, rows) -> c, all [n]: the weight of each token on its log-probability, e.g. from
    `objective.weights`; called without gradient for one piece of the flattened targets after another, `rows` is its
    slice. c may depend on the token's own columns and on anything known before, not on the logp of tokens in other
    pieces (for a sequence ratio or a gradient through entropy use `logprobs`). Everything else is as in `logprobs`.

    The gradient is kept from the forward pass and scaled in place by the backward pass, which can run once. A row that
    holds NaN poisons the weight's gradient even if its c is 0 (not so in `logprobs`): leave it out.
    """
    head = _head(hidden, weight, target, bias, softcap, temperature)
    _check_counts(top_k_mass, chunk)
    needs = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in (hidden, weight, bias)]
    want = Want(moments, top_k_mass, mean=needs[0], store=needs[1] or needs[2])
    plan = Plan(choose(backend, hidden, weight, chunk)[0], want)
    bend = Bend(head.softcap, head.scale)
    apply: Any = PolicyGradient.apply
    value, *results = apply(head.hidden, head.weight, head.bias, head.target, bend, plan, coefficient)
    return value, _output(results, target.shape)


def backend_in_use(hidden: Tensor, weight: Tensor, backend: str = "auto") -> Choice:
    """Which backend `logprobs` takes for such tensors and why: `str()` is e.g. "native: compiled for this CPU".

    "native": C++ compiled at first use (by g++, in seconds, kept in $ISENTROPE_CACHE, $XDG_CACHE_HOME/isentrope or
    ~/.cache/isentrope) for float32, bfloat16 and float16 on CPUs with AVX-512. "eager": PyTorch alone, everywhere.
    "triton": on GPUs, by name only. "auto" takes native where it can be had and agrees with eager on a small head,
    else eager. A backend asked for by name that cannot be used raises.
    """
    return choose(backend, hidden, weight)[1]


def _head(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, softcap: float | None, temperature: float
) -> Head:
    """The arguments checked, flattened and in one dtype; hidden, weight and bias stay in the graph."""
    _check_tensors(hidden, weight, target, bias)
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be positive or None, not {softcap}")
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature must be positive, not {temperature} (a greedy policy has no gradient)")
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    flat = hidden.reshape(-1, hidden.shape[-1]).to(dtype)
    bias = None if bias is None else bias.to(wide)
    return Head(flat, weight.to(dtype), target.reshape(-1), bias, softcap, 1.0 / temperature)


def _check_tensors(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> None:
    for name, x in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if x is not None and not x.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor, not {x.dtype}")
        if hasattr(x, "full_tensor"):
            raise TypeError(f"{name} is sharded: gather it first (full_tensor, or FSDP's unshard)")
    if weight.dim() != 2 or hidden.dim() < 1 or hidden.shape[-1] != weight.shape[-1]:
        raise ValueError(f"hidden {list(hidden.shape)} and weight {list(weight.shape)} must be [..., H] and [V, H]")
    if target.shape != hidden.shape[:-1]:
        raise ValueError(f"target {list(target.shape)} must have hidden's shape without H: {list(hidden.shape[:-1])}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias {list(bias.shape)} must be [V] = {list(weight.shape[:1])}")
    if target.dtype != torch.int64:
        raise TypeError(f"target must be int64, not {target.dtype}")
    if target.numel() and (int(target.min()) < 0 or int(target.max()) >= len(weight)):
        raise IndexError(
            f"target holds {int(target.min())} to {int(target.max())}, outside [0, {len(weight)}): leave out positions "
            "that do not count, or give them any token"
        )


def _check_counts(top_k_mass: int, chunk: int | None) -> None:
    if top_k_mass < 0:
        raise ValueError(f"top_k_mass must be 0 (off) or a count of tokens, not {top_k_mass}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be None or at least 1 row, not {chunk}")


def _output(results: Any, shape: torch.Size) -> HeadOutput:
    shaped: list[Any] = [None if x is None else x.reshape(shape) for x in results]
    return HeadOutput(*shaped)
