"""The head's log-probabilities, entropies and gradients against plain logits in float64, and what goes wrong elsewhere.

Every backend that can run here is held to the same values. The plain computation below is the second implementation:
it holds the whole matrix and lets autograd differentiate it.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope import theory
from isentrope.logprobs import logprobs, policy_gradient

from .heads import (
    BENDS,
    GRADIENT_LOSS,
    Case,
    distance,
    draw,
    every_backend,
    logits_case,
    ours,
    plain,
    plain_logits,
    run,
)

SHAPES = [(1, 17, 6), (37, 1003, 64), (300, 260, 32)]


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
