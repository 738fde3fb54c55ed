"""Which gradients a head gives, the policy's in one pass, the memory that it takes, and what it refuses."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from isentrope.logprobs import logprobs, policy_gradient

from .heads import (
    BENDS,
    GRADIENT_LOSS,
    ON_CPU,
    distance,
    draw,
    every_backend,
    logits_case,
    ours,
    plain,
    run,
)


@every_backend
def test_a_frozen_weight_gets_no_gradient_and_hidden_the_same(backend: str) -> None:
    case = draw(20, 50, 8, torch.float32)
    both = ours(case, torch.ones(20), backend=backend)
    hidden = case.hidden.clone().requires_grad_()
    logprobs(hidden, case.weight, case.target, backend=backend).logp.sum().backward()
    assert case.weight.grad is None
    torch.testing.assert_close(hidden.grad, both[2], rtol=0, atol=0)


@every_backend
def test_frozen_hidden_states_leave_the_weight_its_gradient(backend: str) -> None:
    case = draw(20, 50, 8, torch.float32)
    weight = case.weight.clone().requires_grad_()
    logprobs(case.hidden, weight, case.target, backend=backend).logp.sum().backward()
    torch.testing.assert_close(weight.grad, ours(case, torch.ones(20), backend=backend)[3], rtol=0, atol=0)


@every_backend
def test_entropy_has_a_graph_only_when_asked(backend: str) -> None:
    case = draw(3, 9, 4, torch.float32)
    out = run(case, case.leaves(), backend=backend, moments=True)
    assert out.logp.requires_grad
    assert not out.entropy.requires_grad
    assert not out.squared.requires_grad
    assert run(case, case.leaves(), backend=backend, entropy_gradient=True).entropy.requires_grad
    with torch.no_grad():
        assert not run(case, case.leaves(), backend=backend).logp.requires_grad


@every_backend
def test_an_entropy_gradient_alone_is_right(backend: str) -> None:
    case = draw(30, 60, 8, torch.float32)
    hidden, weight, _ = case.leaves()
    run(case, [hidden, weight, None], entropy_gradient=True, backend=backend).entropy.sum().backward()
    expected = plain(case, torch.zeros(30), torch.ones(30))
    assert max(distance(hidden.grad, expected[2]), distance(weight.grad, expected[3])) < 1e-5


@every_backend
def test_rows_without_a_gradient_poison_nothing(backend: str) -> None:
    case = draw(20, 50, 8, torch.float32)
    weights = torch.ones(20)
    weights[::3] = 0
    clean = ours(case, weights, backend=backend)
    case.hidden[::3] = torch.nan
    poisoned = case.leaves()
    out = run(case, poisoned, backend=backend)
    (weights * torch.where(weights > 0, out.logp, 0)).sum().backward()
    for leaf, expected in zip(poisoned[:2], clean[2:], strict=True):
        torch.testing.assert_close(leaf.grad, expected, rtol=1e-5, atol=1e-6)
    assert bool(out.logp[::3].isnan().all())


# policy_gradient


def token_weight(advantage: Tensor) -> Callable[[Tensor, Tensor, slice], Tensor]:
    """A weight that depends on the token's logp, its entropy and its own columns."""
    return lambda logp, entropy, rows: advantage[rows] * (1 + 0.1 * logp.clamp(min=-5)) * (entropy > 1).float()


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bend", BENDS)
@pytest.mark.parametrize("chunk", [None, 16])
def test_the_policy_gradient_is_that_of_the_weighted_sum(
    backend: str, dtype: torch.dtype, bend: dict[str, Any], chunk: int | None
) -> None:
    case = draw(41, 130, 24, dtype, **bend)
    coefficient = token_weight(torch.randn(41))
    leaves = case.leaves()
    value, out = policy_gradient(
        leaves[0], leaves[1], case.target, coefficient, bias=leaves[2], chunk=chunk, backend=backend, **case.options
    )
    (value * 0.5).backward()
    weights = coefficient(out.logp, out.entropy, slice(0, 41))
    assert 5 < int((weights != 0).sum()) <= 41
    expected = plain(case, 0.5 * weights, torch.zeros(41))
    assert float(value.detach()) == pytest.approx(float((weights.double() * expected[0]).sum()), rel=1e-5)
    found = [x.grad for x in leaves if x is not None]
    assert all(distance(f, e) < GRADIENT_LOSS[dtype] for f, e in zip(found, expected[2:], strict=True))
    assert not out.logp.requires_grad


@every_backend
@pytest.mark.parametrize("frozen", [0, 1])
def test_the_policy_gradient_leaves_out_what_is_frozen(backend: str, frozen: int) -> None:
    case = draw(41, 130, 24, torch.float32)
    inputs = [x if i == frozen else x.clone().requires_grad_() for i, x in enumerate((case.hidden, case.weight))]
    policy_gradient(*inputs, case.target, token_weight(torch.ones(41)), chunk=16, backend=backend)[0].backward()
    whole = case.leaves()
    policy_gradient(*whole[:2], case.target, token_weight(torch.ones(41)), chunk=16, backend=backend)[0].backward()
    assert inputs[frozen].grad is None
    torch.testing.assert_close(inputs[1 - frozen].grad, whole[1 - frozen].grad)


def test_the_policy_gradient_runs_once_and_without_a_graph_computes_none() -> None:
    case = draw(4, 9, 4, torch.float32)
    value, _ = policy_gradient(*case.leaves()[:2], case.target, lambda logp, *_: logp)
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="ran before"):
        value.backward()
    with torch.no_grad():
        assert not policy_gradient(*case.leaves()[:2], case.target, lambda logp, *_: logp)[0].requires_grad


def test_a_coefficient_of_the_wrong_shape_is_refused() -> None:
    case = draw(4, 9, 4, torch.float32)
    with pytest.raises(ValueError, match=r"one weight a token: \[4\]"):
        policy_gradient(*case.leaves()[:2], case.target, lambda logp, *_: logp.sum())


@every_backend
def test_the_coefficient_sees_a_target_that_is_recomputed_with_another_shift(backend: str) -> None:
    case = logits_case([0.0, 1.0, -60.0], 2)
    leaves = case.leaves()
    value, out = policy_gradient(*leaves[:2], case.target, lambda logp, *_: torch.ones_like(logp), backend=backend)
    value.backward()
    expected = plain(case, torch.ones(1), torch.zeros(1))
    assert float(out.logp) == pytest.approx(float(expected[0]), rel=1e-6)
    torch.testing.assert_close(leaves[1].grad.double(), expected[3], rtol=1e-4, atol=1e-6)


# memory


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self.bytes = max(self.bytes, x.numel() * x.element_size())
        return out


def largest_of(body: Callable[[], Any]) -> int:
    with LargestTensor() as seen:
        body()
    return seen.bytes


@every_backend
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_no_tensor_of_tokens_by_vocabulary_is_made(backend: str, entropy_gradient: bool) -> None:
    case = draw(300, 5_000, 4, torch.float32)

    def body() -> None:
        hidden, weight, _ = case.leaves()
        out = run(case, [hidden, weight, None], backend=backend, entropy_gradient=entropy_gradient, chunk=64)
        (out.logp.sum() + (out.entropy.sum() if entropy_gradient else 0)).backward()

    assert largest_of(body) < 300 * 5_000 * 4 / 4
    assert largest_of(lambda: plain(case, torch.ones(300), torch.ones(300))) >= 300 * 5_000 * 4


@pytest.mark.slow
@pytest.mark.parametrize("backend", ON_CPU[:2])
def test_a_process_grows_by_less_than_a_quarter_of_the_logits(backend: str) -> None:
    rows, vocab, width = 8192, 40_000, 16  # 1,250 MiB of logits
    code = f"""
import resource, torch
from isentrope.logprobs import logprobs
torch.set_num_threads(1)
def step(n):
    logprobs(hidden[:n], weight, target[:n], backend={backend!r}).logp.sum().backward()
    hidden.grad = weight.grad = None
hidden, weight = torch.randn({rows}, {width}, requires_grad=True), torch.randn({vocab}, {width}, requires_grad=True)
target = torch.randint({vocab}, ({rows},))
step(8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step({rows})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) * 1024 < rows * vocab * 4 / 4


# what is refused


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"hidden": torch.zeros(2, 5)}, ValueError, r"\[2, 5\] and weight \[9, 4\]"),
        ({"target": torch.zeros(3, dtype=torch.int64)}, ValueError, r"target \[3\]"),
        ({"target": torch.zeros(2)}, TypeError, "int64"),
        ({"target": torch.tensor([0, -100])}, IndexError, "leave out positions"),
        ({"target": torch.tensor([0, 9])}, IndexError, r"outside \[0, 9\)"),
        ({"weight": torch.zeros(9, 4, dtype=torch.int8)}, TypeError, "floating-point"),
        ({"bias": torch.zeros(4)}, ValueError, r"bias \[4\]"),
        ({"softcap": 0.0}, ValueError, "softcap"),
        ({"temperature": 0.0}, ValueError, "greedy"),
        ({"temperature": math.nan}, ValueError, "temperature"),
        ({"top_k_mass": -1}, ValueError, "top_k_mass"),
        ({"chunk": 0}, ValueError, "chunk"),
        ({"backend": "cuda"}, ValueError, "auto, eager, native, triton"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, Any], error: type[Exception], words: str) -> None:
    given = {"hidden": torch.zeros(2, 4), "weight": torch.zeros(9, 4), "target": torch.zeros(2, dtype=torch.int64)}
    assert logprobs(**given).logp.shape == (2,)
    with pytest.raises(error, match=words):
        logprobs(**(given | change))


def test_a_sharded_weight_is_refused() -> None:
    class Sharded(torch.nn.Parameter):
        def full_tensor(self) -> Tensor:
            raise AssertionError

    with pytest.raises(TypeError, match="gather it first"):
        logprobs(torch.zeros(2, 4), Sharded(torch.zeros(9, 4)), torch.zeros(2, dtype=torch.int64))
