"""Entropy changes: the hand case, the reference cases, and the size of the first-order error."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope import theory

CASES = json.loads((Path(__file__).parent / "cases" / "theory.json").read_text(encoding="utf-8"))["cases"]
TABULAR = [pytest.param(c, id=c["id"]) for c in CASES if c["type"] == "tabular"]
SAMPLED = [pytest.param(c, id=c["id"]) for c in CASES if c["type"] == "sampled"]


def doubles(x: Any) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def agrees(found: Tensor, expected: Any, atol: float = 1e-12) -> None:
    torch.testing.assert_close(found, doubles(expected), rtol=1e-9, atol=atol)


def steps(z: Tensor, advantage: Tensor, eta: float, action: int) -> dict[str, Tensor]:
    beta = theory.decorrelating_beta(z, advantage)
    return {
        "policy_gradient": theory.policy_gradient_step(z, advantage, eta),
        "natural_gradient": theory.natural_gradient_step(advantage, eta),
        "one_sample": theory.one_sample_step(z, advantage[action], torch.tensor(action), eta),
        "decorrelated": theory.policy_gradient_step(z, advantage - beta * theory.centred_logp(z), eta),
        "entropy_gradient": eta * beta * theory.entropy_gradient(z),
    }


@pytest.mark.parametrize("case", TABULAR)
def test_tabular_case_agrees_with_the_reference(case: dict[str, Any]) -> None:
    p, expected = case["parameters"], case["expect"]
    z, advantage = doubles(p["logits"]), doubles(p["advantage"])
    pi = theory.log_probabilities(z).exp()
    agrees(pi, expected["pi"])
    agrees(theory.entropy(z), expected["entropy"])
    agrees(theory.centred_logp(z), expected["L"])
    agrees(theory.entropy_gradient(z), expected["dH_dz"])
    agrees(theory.squared_mass(z), expected["S"])
    agrees(theory.decorrelating_beta(z, advantage), expected["beta_star"])
    for name, step in steps(z, advantage, p["eta"], p["action"]).items():
        agrees(theory.first_order_change(z, step), expected["predicted"][name], atol=1e-15)
        agrees(theory.exact_change(z, step), expected["exact"][name], atol=4e-15)


@pytest.mark.parametrize("case", SAMPLED)
def test_prediction_from_sampled_tokens_agrees_with_the_reference(case: dict[str, Any]) -> None:
    p, expected = case["parameters"], case["expect"]
    mask = torch.tensor(p["mask"])
    columns = [
        doubles([[float(x) for x in row] for row in p[name]]) for name in ("weights", "old_logp", "old_entropy", "S")
    ]
    weights, logp, entropy, mass = columns
    agrees(theory.predicted_change(weights, mask, logp, entropy, mass).sum(), expected["with_S"])
    agrees(theory.predicted_change(weights, mask, logp, entropy).sum(), expected["without_S"])


def test_hand_case() -> None:
    z, advantage = doubles([0.6, 0.3, 0.1]).log(), doubles([1.0, 0.0, -1.0])
    pi, centred = z.exp(), theory.centred_logp(z)
    assert float(theory.entropy(z)) == pytest.approx(0.897946, abs=5e-7)
    assert centred.tolist() == pytest.approx([0.387120, -0.306027, -1.404639], abs=5e-7)
    spread = advantage - theory.expectation(advantage, pi)
    assert float(theory.expectation(pi * centred * spread, pi)) == pytest.approx(0.104522, abs=5e-7)
    assert float(theory.expectation(pi * centred.square(), pi)) == pytest.approx(0.082109, abs=5e-7)


@pytest.mark.parametrize("eta", [1e-1, 1e-2, 1e-3])
def test_first_order_error_is_proportional_to_the_step(eta: float) -> None:
    """About 2.4e-4 at eta = 1e-3 for a policy-gradient step with V = 50 and logits of std 1.5."""
    generator = torch.Generator().manual_seed(0)
    z = 1.5 * torch.randn(200, 50, generator=generator, dtype=torch.float64)
    advantage = torch.randn(200, 50, generator=generator, dtype=torch.float64)
    step = theory.policy_gradient_step(z, advantage, eta)
    exact, predicted = theory.exact_change(z, step), theory.first_order_change(z, step)
    error = ((exact - predicted) / exact).abs().median()
    assert 0.05 * eta < float(error) < 2 * eta


def test_gradient_of_entropy_is_the_closed_form() -> None:
    z = torch.randn(4, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(theory.entropy(z).sum(), z)
    torch.testing.assert_close(gradient, theory.entropy_gradient(z.detach()))


@pytest.mark.parametrize(
    ("logits", "expected"), [([0.0, -torch.inf], 0.0), ([0.0, 0.0, -torch.inf], 0.6931471805599453)]
)
def test_impossible_actions_have_no_entropy_and_finite_gradients(logits: list[float], expected: float) -> None:
    """trl 7221 and VeOmni 720."""
    z = doubles(logits).requires_grad_()
    found = theory.entropy(z)
    (gradient,) = torch.autograd.grad(found, z)
    assert found.item() == pytest.approx(expected, abs=1e-15)
    assert torch.isfinite(gradient).all()
    assert torch.isfinite(theory.entropy_gradient(z.detach())).all()
    assert float(theory.squared_mass(z.detach())) == pytest.approx(0.0, abs=1e-15)


def test_bfloat16_logits_are_summed_in_float32() -> None:
    """verl (eager): [25, 24] in bfloat16 gave .6439 nats."""
    found = theory.entropy(torch.tensor([25.0, 24.0], dtype=torch.bfloat16))
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(0.5822, abs=1e-4)


def test_identical_logits_of_a_large_vocabulary_lose_nothing_in_bfloat16() -> None:
    """EasyDeL 267: uniform over 50,000 in bfloat16 is log 50,000."""
    found = theory.entropy(torch.zeros(50_000, dtype=torch.bfloat16))
    assert float(found) == pytest.approx(10.819778, abs=1e-4)


@pytest.mark.parametrize("logits", [[0.0, 0.0, 0.0], [0.0, -torch.inf, -torch.inf]])
def test_no_beta_is_needed_where_nothing_can_move(logits: list[float]) -> None:
    assert abs(float(theory.decorrelating_beta(doubles(logits), doubles([1.0, -1.0, 3.0])))) < 1e-6


def test_masked_tokens_predict_nothing_whatever_they_hold() -> None:
    mask = torch.tensor([[True, False]])
    weights, logp = doubles([[1.0, float("nan")]]), doubles([[-1.0, float("inf")]])
    found = theory.predicted_change(weights, mask, logp, doubles([[0.5, float("nan")]]), doubles([[0.1, float("nan")]]))
    expected = -(torch.e**-1 * (-0.5) - 0.1)
    assert found.tolist() == [[pytest.approx(expected), 0.0]]
