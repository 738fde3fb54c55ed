"""The head's log-probabilities, entropies and gradients against plain logits in float64, and what goes wrong elsewhere.

Every backend that can run here is held to the same values. The plain computation below is the second implementation:
it holds the whole matrix and lets autograd differentiate it.
"""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from isentrope import theory
from isentrope._kernels import build, choose, native
from isentrope.logprobs import HeadOutput, backend_in_use, logprobs, policy_gradient

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


SHAPES = [(1, 17, 6), (37, 1003, 64), (300, 260, 32)]
BENDS = [{}, {"softcap": 3.0, "temperature": 0.7}, {"bias": True}, {"bias": True, "softcap": 5.0, "temperature": 1.3}]


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bend", BENDS)
def test_values_and_gradients_equal_those_of_plain_logits_in_float64(
    backend: str, dtype: torch.dtype, shape: tuple[int, int, int], bend: dict[str, Any]
) -> None:
    case = draw(*shape, dtype, **bend)
    weights, entropy_weights = torch.randn(shape[0]), torch.randn(shape[0])
    expected = plain(case, weights, entropy_weights)
    found = ours(case, weights, entropy_weights, backend=backend)
    assert found[0].dtype == found[1].dtype == torch.float32
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-6, atol=3e-6)
    torch.testing.assert_close(found[1].double(), expected[1], rtol=2e-6, atol=1e-5)
    assert [x.dtype for x in found[2:4]] == [dtype, dtype]
    assert [distance(f, e) < GRADIENT_LOSS[dtype] for f, e in zip(found[2:], expected[2:], strict=True)] == [True] * (
        len(expected) - 2
    )


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bend", BENDS)
def test_without_an_entropy_gradient_the_prepared_gradient_is_that_of_plain_logits(
    backend: str, dtype: torch.dtype, bend: dict[str, Any]
) -> None:
    case = draw(75, 410, 48, dtype, **bend)
    weights = torch.randn(75)
    expected = plain(case, weights, torch.zeros(75))
    found = ours(case, weights, backend=backend, chunk=32)
    assert all(distance(f, e) < GRADIENT_LOSS[dtype] for f, e in zip(found[2:], expected[2:], strict=True))


def test_a_head_of_two_rows_by_hand_in_plain_loops() -> None:
    case = Case(
        torch.tensor([[1.0, 2.0], [0.5, -1.0]]),
        torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]),
        torch.tensor([2, 0]),
    )
    out = run(case)
    for row in range(2):
        z = [sum(float(h) * float(w) for h, w in zip(case.hidden[row], v, strict=True)) for v in case.weight]
        total = sum(math.exp(x) for x in z)
        p = [math.exp(x) / total for x in z]
        assert math.isclose(float(out.logp[row]), math.log(p[int(case.target[row])]), rel_tol=1e-6)
        assert math.isclose(float(out.entropy[row]), -sum(x * math.log(x) for x in p), rel_tol=1e-6)


@pytest.mark.parametrize("bend", BENDS)
def test_autograd_agrees_with_finite_differences_in_float64(bend: dict[str, Any]) -> None:
    case = draw(4, 9, 3, torch.float64, **bend)

    def both(hidden: Tensor, weight: Tensor, *bias: Tensor) -> tuple[Tensor, Tensor]:
        given = bias[0] if bias else None
        out = logprobs(hidden, weight, case.target, bias=given, entropy_gradient=True, chunk=3, **case.options)
        return out.logp, out.entropy

    def alone(hidden: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        return logprobs(hidden, weight, case.target, bias=bias[0] if bias else None, chunk=3, **case.options).logp

    inputs = tuple(x for x in case.leaves() if x is not None)
    assert torch.autograd.gradcheck(both, inputs)
    assert torch.autograd.gradcheck(alone, inputs)


def test_float64_agrees_with_plain_logits_to_rounding() -> None:
    case = draw(20, 101, 8, torch.float64, bias=True)
    weights, entropy_weights = torch.randn(20, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    found, expected = ours(case, weights, entropy_weights), plain(case, weights, entropy_weights)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-12, atol=1e-13)


@every_backend
@pytest.mark.parametrize(("logits", "entropy"), [([0.0, -math.inf], 0.0), ([0.0, 0.0, -math.inf], math.log(2))])
def test_impossible_tokens_count_for_nothing(backend: str, logits: list[float], entropy: float) -> None:
    # TRL 7221: 0 * -inf gave NaN entropies and gradients. VeOmni 720: p (log p + H) is NaN at p = 0.
    found = ours(logits_case(logits, 0), torch.ones(1), torch.ones(1), backend=backend)
    assert math.isclose(float(found[1]), entropy, abs_tol=1e-7)
    assert all(bool(torch.isfinite(x).all()) for x in found)


@every_backend
def test_an_impossible_target_has_logp_minus_infinity_and_finite_gradients(backend: str) -> None:
    case = logits_case([1.0, 0.5, -math.inf], 2)
    found = ours(case, torch.ones(1), torch.ones(1), backend=backend)
    assert float(found[0]) == -math.inf
    assert math.isclose(float(found[1]), float(theory.entropy(torch.tensor([1.0, 0.5]))), rel_tol=1e-6)
    assert all(bool(torch.isfinite(x).all()) for x in found[2:])
    # d log p_y / d z_v = -p_v for v != y, also where p_y is 0; alone, without the entropy's share
    alone = ours(case, torch.ones(1), backend=backend)
    p = torch.softmax(torch.tensor([1.0, 0.5]), 0)
    torch.testing.assert_close(alone[3][:2, 0], -p)


@every_backend
def test_a_row_of_impossible_tokens_is_no_distribution(backend: str) -> None:
    out = run(logits_case([-math.inf, -math.inf], 0), backend=backend)
    assert bool(out.logp.isnan().all())
    assert bool(out.entropy.isnan().all())


@every_backend
def test_logits_that_are_all_very_low_are_a_distribution_like_any_other(backend: str) -> None:
    case = logits_case([-1e4, -1e4, -1e4 - 1], 2)
    out = run(case, backend=backend)
    total = 2 + math.exp(-1)
    assert math.isclose(float(out.logp), -1 - math.log(total), rel_tol=1e-5)
    assert math.isclose(float(out.entropy), math.log(total) + math.exp(-1) / total, rel_tol=1e-5)


@every_backend
@pytest.mark.parametrize("target", [0, 1, 2])
def test_the_largest_float16_number_is_a_logit(backend: str, target: int) -> None:
    case = logits_case([65504.0, 65504.0, -65504.0], target, torch.float16)
    weight = torch.full((1,), 1e-3)  # the gradient of hidden is up to 131008 times that, beyond float16 otherwise
    found = ours(case, weight, weight, backend=backend)
    assert float(found[0]) == pytest.approx(-math.log(2) if target < 2 else -131008 - math.log(2), rel=1e-6)
    assert float(found[1]) == pytest.approx(math.log(2), rel=1e-6)
    assert all(bool(torch.isfinite(x).all()) for x in found)


@every_backend
@pytest.mark.parametrize("gap", [39.0, 41.0, 87.0, 89.0, 500.0, 1e4])
def test_targets_far_below_the_largest_logit_are_right(backend: str, gap: float) -> None:
    # around the shift's limit of 40 nats, and around float32's exp at 88
    case = logits_case([0.0, 1.0, -gap], 2)
    found = ours(case, torch.ones(1), torch.ones(1), backend=backend)
    expected = plain(case, torch.ones(1), torch.ones(1))
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    assert float(found[1]) == pytest.approx(float(expected[1]), rel=1e-5)
    torch.testing.assert_close(found[3].double(), expected[3], rtol=1e-4, atol=1e-6)


@every_backend
def test_log_probabilities_close_to_zero_keep_their_digits(backend: str) -> None:
    # p_y = 1 - 2e-9: a softmax in float32 rounds it to 1, and the gradient to 0
    found = ours(logits_case([20.0, 0.0], 0), torch.ones(1), backend=backend)
    assert float(found[0]) == pytest.approx(-math.log1p(math.exp(-20)), rel=1e-5)
    assert float(found[3][0, 0]) == pytest.approx(1 / (1 + math.exp(20)), rel=1e-5)


@every_backend
def test_temperature_divides_the_logits_of_the_entropy_too(backend: str) -> None:
    # OpenRLHF 1319: the entropy of the undivided logits was shown
    case = logits_case([1.0, 0.0, -1.0], 0)
    out = logprobs(case.hidden, case.weight, case.target, temperature=0.5, backend=backend)
    assert float(out.entropy) == pytest.approx(float(theory.entropy(torch.tensor([2.0, 0.0, -2.0]))), rel=1e-6)
    assert float(out.entropy) < float(run(case, backend=backend).entropy) - 0.3


@every_backend
def test_bfloat16_inputs_do_not_round_the_log_sum_exp(backend: str) -> None:
    # verl's eager path: .6439 nats for these logits
    out = run(logits_case([25.0, 24.0], 0, torch.bfloat16), backend=backend)
    assert float(out.entropy) == pytest.approx(0.5822, abs=5e-5)


@every_backend
def test_bfloat16_sums_over_a_large_vocabulary_stay_exact(backend: str) -> None:
    # EasyDeL 267: sums in bfloat16 made a cross-entropy negative and the KL of equal logits .0248
    vocab = 8192
    case = Case(torch.zeros(2, 2).bfloat16(), torch.randn(vocab, 2).bfloat16(), torch.tensor([0, vocab - 1]))
    out = run(case, backend=backend)
    torch.testing.assert_close(out.logp, torch.full((2,), -math.log(vocab)), rtol=1e-6, atol=0)
    torch.testing.assert_close(out.entropy, torch.full((2,), math.log(vocab)), rtol=1e-6, atol=0)
    assert float((out.logp - run(case, backend=backend).logp).abs().max()) == 0


@every_backend
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0, 1000.0])
def test_entropies_and_surprisals_are_never_negative(backend: str, spread: float) -> None:
    case = draw(40, 130, 16, torch.bfloat16, spread=spread)
    out = run(case, backend=backend)
    assert float(out.entropy.min()) >= 0
    assert float(out.logp.max()) <= 0
    assert float(out.entropy.max()) <= math.log(130) + 1e-5


@every_backend
def test_rounding_does_not_make_the_entropy_of_a_certain_token_negative(backend: str) -> None:
    # one token holds all but e^-gap of the mass and the target is the other: H is a difference of two equal numbers
    gaps = torch.linspace(15, 39, 500)
    hidden, weight = torch.stack([gaps, torch.zeros(500)], 1), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    out = logprobs(hidden, weight, torch.zeros(500, dtype=torch.int64), backend=backend)
    assert float(out.entropy.min()) >= 0
    assert float(out.entropy.max()) < 2e-5


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_fill_up_a_tile_do_not_matter_whatever_the_bias(backend: str, dtype: torch.dtype) -> None:
    # exp(89) is inf in float32: a row of zeros that a backend appends has such logits here
    case = draw(17, 40, 8, dtype)
    biased = Case(case.hidden, case.weight, case.target, torch.full((40,), 89.0))
    weights = torch.randn(17)
    expected, found = plain(case, weights, torch.zeros(17)), ours(biased, weights, backend=backend)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-4, atol=1e-4)
    assert max(distance(f, e) for f, e in zip(found[2:4], expected[2:], strict=True)) < GRADIENT_LOSS[dtype] + 1e-4
    leaves = biased.leaves()
    policy_gradient(*leaves[:2], case.target, lambda *_: weights, bias=leaves[2], backend=backend)[0].backward()
    assert distance(leaves[1].grad, expected[3]) < GRADIENT_LOSS[dtype] + 1e-4


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_not_rounded_to_bfloat16(backend: str, dtype: torch.dtype) -> None:
    # 256 + 1 is no bfloat16 number: a head that returns bfloat16 logits has entropy ln 2 here
    hidden, weight = torch.tensor([[16.0, 1.0]]), torch.tensor([[16.0, 1.0], [16.0, 0.0]])
    out = logprobs(hidden.to(dtype), weight.to(dtype), torch.tensor([0]), backend=backend)
    assert float(out.logp) == pytest.approx(-math.log1p(math.exp(-1)), rel=1e-5)


@every_backend
@pytest.mark.parametrize("vocab", [1, 2, 127, 128, 129, 255, 257])
@pytest.mark.parametrize("rows", [1, 15, 17])
def test_sizes_that_no_tile_divides(backend: str, vocab: int, rows: int) -> None:
    case = draw(rows, vocab, 10, torch.float32)
    weights = torch.randn(rows)
    expected, found = plain(case, weights, torch.zeros(rows)), ours(case, weights, backend=backend)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f.double(), e, rtol=1e-4, atol=3e-6)


@every_backend
def test_no_rows_give_empty_results_and_zero_gradients(backend: str) -> None:
    case = draw(0, 30, 4, torch.float32, bias=True)
    leaves = case.leaves()
    out = run(case, leaves, entropy_gradient=True, moments=True, top_k_mass=3, backend=backend)
    assert [x.shape for x in (out.logp, out.entropy, out.squared, out.top_mass)] == [torch.Size([0])] * 4
    (out.logp.sum() + out.entropy.sum()).backward()
    assert all(float(x.grad.abs().sum()) == 0 for x in leaves if x is not None)
    leaves = case.leaves()
    value, _ = policy_gradient(
        leaves[0], leaves[1], case.target, lambda logp, *_: logp, bias=leaves[2], backend=backend
    )
    value.backward()
    assert float(value.detach()) == 0
    assert all(float(x.grad.abs().sum()) == 0 for x in leaves if x is not None)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_are_those_of_the_whole_distribution(backend: str, dtype: torch.dtype) -> None:
    case = draw(50, 200, 12, dtype, temperature=0.8)
    out = run(case, moments=True, backend=backend)
    z = plain_logits(case, case.hidden.double(), case.weight.double(), None)
    log_p = z.log_softmax(-1)
    torch.testing.assert_close(out.squared.double(), log_p.exp().square().sum(-1), rtol=1e-5, atol=1e-8)
    expected = (log_p.exp().square() * log_p).sum(-1)
    torch.testing.assert_close(out.squared_logp.double(), expected, rtol=1e-5, atol=4e-6)  # a difference of sums
    torch.testing.assert_close(out.squared_mass.double(), theory.squared_mass(z), rtol=1e-5, atol=4e-6)


def test_squared_mass_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="moments=True"):
        _ = run(draw(2, 5, 4, torch.float32)).squared_mass


@every_backend
@pytest.mark.parametrize("k", [1, 2, 7, 40, 50])
def test_top_mass_is_the_sum_of_the_k_largest_probabilities(backend: str, k: int) -> None:
    case = draw(60, 40, 8, torch.float32)  # k beyond the vocabulary: all of it
    out = run(case, top_k_mass=k, backend=backend)
    p = plain_logits(case, case.hidden.double(), case.weight.double(), None).softmax(-1)
    torch.testing.assert_close(out.top_mass.double(), p.topk(min(k, 40), -1).values.sum(-1), rtol=1e-5, atol=0)


@every_backend
def test_rows_in_any_pieces_give_the_same(backend: str) -> None:
    case = draw(70, 150, 16, torch.float32)
    weights = torch.randn(70)
    whole = ours(case, weights, backend=backend)
    for chunk in (1, 13, 70, 500):
        for f, e in zip(ours(case, weights, backend=backend, chunk=chunk), whole, strict=True):
            torch.testing.assert_close(f, e, rtol=1e-5, atol=1e-5)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_call_gives_the_same_bits(backend: str, dtype: torch.dtype) -> None:
    case = draw(90, 300, 16, dtype)
    first, second = (ours(case, torch.ones(90), torch.ones(90), backend=backend) for _ in range(2))
    assert all(torch.equal(f, s) for f, s in zip(first, second, strict=True))


@every_backend
def test_leading_dimensions_are_kept(backend: str) -> None:
    case = draw(12, 30, 4, torch.float32)
    folded = logprobs(case.hidden.view(3, 4, 4), case.weight, case.target.view(3, 4), moments=True, backend=backend)
    flat = run(case, moments=True, backend=backend)
    assert folded.logp.shape == folded.entropy.shape == folded.squared.shape == (3, 4)
    torch.testing.assert_close(folded.logp.flatten(), flat.logp, rtol=0, atol=0)


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


@every_backend
def test_nan_in_a_row_is_seen_in_that_row_alone(backend: str) -> None:
    case = draw(5, 50, 8, torch.float32)
    case.hidden[2] = torch.nan
    out = run(case, backend=backend)
    assert out.logp.isnan().tolist() == out.entropy.isnan().tolist() == [False, False, True, False, False]


@every_backend
def test_autocast_does_not_reach_inside(backend: str) -> None:
    case = draw(20, 50, 8, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        inside = ours(case, torch.ones(20), backend=backend)
    for f, e in zip(inside, ours(case, torch.ones(20), backend=backend), strict=True):
        torch.testing.assert_close(f, e, rtol=0, atol=0)


@every_backend
def test_mixed_dtypes_are_computed_in_the_wider(backend: str) -> None:
    case = draw(10, 30, 8, torch.float32)
    hidden, weight = case.hidden.bfloat16().requires_grad_(), case.weight.clone().requires_grad_()
    out = logprobs(hidden, weight, case.target, backend=backend)
    out.logp.sum().backward()
    same = logprobs(hidden.detach().float(), case.weight, case.target, backend=backend)
    torch.testing.assert_close(out.logp, same.logp)
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_that_is_not_contiguous_is_read_and_written_right(backend: str, dtype: torch.dtype) -> None:
    case = draw(10, 30, 8, dtype)
    turned = [x.t().contiguous().t().requires_grad_() for x in (case.hidden, case.weight)]
    logprobs(*turned, case.target, backend=backend).logp.sum().backward()
    again = [x.detach().clone().requires_grad_() for x in turned]
    assert not again[1].is_contiguous()
    policy_gradient(*again, case.target, lambda logp, *_: torch.ones_like(logp), backend=backend)[0].backward()
    expected = plain(case, torch.ones(10), torch.zeros(10))
    for x, y, e in zip(turned, again, expected[2:], strict=True):
        assert max(distance(x.grad, e), distance(y.grad, e)) < GRADIENT_LOSS[dtype]


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


# the compiled backend


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache and nothing remembered of earlier choices; afterwards as before."""
    caches = (native.load, choose.native_fault)
    for cache in caches:
        cache.cache_clear()
    monkeypatch.setenv("ISENTROPE_CACHE", str(tmp_path))
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


avx512 = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX512"), reason="the compiled head needs AVX-512"
)


@avx512
def test_without_a_compiler_pytorch_computes_and_the_reason_is_told(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    case = draw(3, 9, 4, torch.float32)
    choice = backend_in_use(case.hidden, case.weight)
    assert str(choice).startswith("eager: no C++ compiler")
    torch.testing.assert_close(run(case).logp, run(case, backend="eager").logp, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"backend='native' cannot be used: no C\+\+ compiler"):
        run(case, backend="native")


@pytest.mark.skipif(NATIVE.backend != "native", reason=NATIVE.reason)
def test_a_library_in_the_cache_needs_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(LIBRARY, fresh)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert backend_in_use(torch.zeros(1, 2), torch.zeros(1, 2)).backend == "native"


@avx512
def test_a_compiler_that_fails_is_the_reason(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fresh / "broken"
    broken.write_text("#!/bin/sh\necho 'x.cpp:1: error: no such thing' >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert "no such thing" in backend_in_use(torch.zeros(1, 2), torch.zeros(1, 2)).reason
    assert [path.name for path in fresh.iterdir()] == ["broken"]


@avx512
def test_a_cache_that_cannot_be_written_is_the_reason(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("ISENTROPE_CACHE", str(fresh / "file"))
    if NATIVE.backend == "native":
        assert str(fresh / "file") in backend_in_use(torch.zeros(1, 2), torch.zeros(1, 2)).reason


@avx512
def test_a_damaged_library_is_the_reason(fresh: Path) -> None:
    if NATIVE.backend == "native":
        build.target().write_bytes(b"not a library")
        choice = backend_in_use(torch.zeros(1, 2), torch.zeros(1, 2))
        assert choice.backend == "eager"
        assert str(fresh) in choice.reason


def test_the_cache_tells_machines_versions_and_sources_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [build.target(), build.target()]
    assert found[0] == found[1]
    monkeypatch.setattr(torch, "__version__", "9.9")
    found.append(build.target())
    monkeypatch.setattr(build, "cpu_features", lambda: "flags: none")
    found.append(build.target())
    monkeypatch.setattr(build, "FLAGS", ("-O1",))
    found.append(build.target())
    monkeypatch.setattr(build, "SOURCE", Path(__file__))
    assert len({*found, build.target()}) == 5


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ISENTROPE_CACHE", str(tmp_path / "mine"))
    assert build.cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("ISENTROPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / "isentrope"


@pytest.mark.slow
@pytest.mark.skipif(NATIVE.backend != "native", reason=NATIVE.reason)
def test_processes_that_start_together_all_get_the_library(tmp_path: Path) -> None:
    code = """
import torch
from isentrope.logprobs import backend_in_use
print(backend_in_use(torch.zeros(1, 2), torch.zeros(1, 2)).backend)
"""
    environment = os.environ | {"ISENTROPE_CACHE": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate(timeout=300)[0].strip() for process in started] == ["native"] * 3
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("dtype", "width", "words"), [(torch.float64, 4, "float64"), (torch.bfloat16, 5, "even hidden size")]
)
def test_what_the_compiled_head_leaves_to_pytorch_is_told(dtype: torch.dtype, width: int, words: str) -> None:
    case = draw(6, 9, width, dtype)
    choice = backend_in_use(case.hidden, case.weight)
    assert choice.backend == "eager"
    assert words in choice.reason
    assert distance(run(case).logp, plain(case, torch.ones(6), torch.ones(6))[0]) < 1e-6


@pytest.mark.skipif(NATIVE.backend != "native", reason=NATIVE.reason)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [20, 700])
def test_threads_share_the_work_and_change_nothing(dtype: torch.dtype, rows: int) -> None:
    case = draw(rows, 1000, 16, dtype)
    weights, threads = torch.randn(rows), torch.get_num_threads()
    alone = ours(case, weights, torch.ones(rows), backend="native")
    try:
        torch.set_num_threads(3)
        together = ours(case, weights, torch.ones(rows), backend="native")
    finally:
        torch.set_num_threads(threads)
    for f, e in zip(together, alone, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-4)
