"""Penalties: the printed estimators and their gradients, and what a coefficient of 0 costs."""

import math
from dataclasses import replace

import pytest
import torch

from isentrope import IsentropeWarning, check, presets
from isentrope.correction import TruncatedImportance
from isentrope.penalty import EntropyBonus, ReferenceKL, reference_kl

D = torch.tensor([-2.0, -0.1, 0.0, 0.5, 3.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", lambda d: d, lambda d: 1.0),
        ("k2", lambda d: d * d / 2, lambda d: d),
        ("k3", lambda d: math.exp(-d) + d - 1, lambda d: 1 - math.exp(-d)),
    ],
)
def test_the_gradient_is_that_of_the_printed_value(estimator, value, gradient):
    logp = (D - 1).requires_grad_()
    penalty = ReferenceKL(0.5, estimator)(logp=logp, ref_logp=torch.full_like(D, -1.0))
    (found,) = torch.autograd.grad(penalty.sum(), logp)
    assert penalty.tolist() == pytest.approx([0.5 * value(d) for d in D.tolist()])
    assert found.tolist() == pytest.approx([0.5 * gradient(d) for d in D.tolist()])


def test_k3_is_bounded():
    """trl 5984: k3 overflows float32 where the reference is 88 nats above."""
    d = torch.tensor([-300.0, -89.0, 300.0], requires_grad=True)
    found = reference_kl(d, "k3")
    (gradient,) = torch.autograd.grad(found.sum(), d)
    assert torch.isfinite(found).all()
    assert torch.isfinite(gradient).all()
    assert found[0].item() == pytest.approx(math.exp(20) - 301)


def test_estimates_of_identical_policies_are_exactly_zero():
    """EasyDeL 267: a KL of identical logits of +.0248."""
    logp = torch.randn(100, generator=torch.Generator().manual_seed(0))
    for estimator in ("k1", "k2", "k3"):
        assert not reference_kl(logp - logp, estimator).any()


def test_k2_and_k3_are_never_negative():
    d = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 3
    assert (reference_kl(d, "k2") >= 0).all()
    assert (reference_kl(d, "k3") >= 0).all()


def test_a_bad_position_of_the_reference_is_named_and_contained():
    """SkyRL 1694: one bad position in the reference poisons the row."""
    objective = replace(presets.grpo, penalties=(ReferenceKL(0.1),))
    batch = check.draw(seed=1)
    row, position = batch["mask"].nonzero()[3].tolist()
    bad = batch | {"ref_logp": batch["ref_logp"].clone()}
    bad["ref_logp"][row, position] = -torch.inf
    with pytest.warns(IsentropeWarning, match=f"`ref_logp` is -inf at 1 token.*row {row}, position {position}"):
        prepared, _ = objective.prepare(bad)
    weights = objective.weights(prepared, objective.count(prepared))
    assert prepared["excluded"].nonzero().tolist() == [[row, position]]
    assert torch.isfinite(weights).all()
    assert weights[row, position] == 0
    others = batch["mask"][row].clone()
    others[position] = False
    assert (weights[row][others] != 0).any() == bool(others.any())


def test_penalties_have_the_policy_terms_weights_and_no_correction():
    batch = check.draw(seed=2) | {"reward": torch.full((8,), 0.25, dtype=torch.float64)}  # no policy term
    plain = replace(presets.grpo, penalties=(ReferenceKL(0.1, "k1"),))
    corrected = replace(plain, correction=TruncatedImportance())
    rows, _ = plain.prepare(batch)
    totals = plain.count(rows)
    lengths = rows["mask"].sum(-1, keepdim=True).clamp(min=1)
    expected = torch.where(rows["mask"], -0.1 / (totals.rows * lengths), 0.0).double()
    torch.testing.assert_close(plain.weights(rows, totals), expected)
    torch.testing.assert_close(corrected.weights(rows, totals), expected)


# -- entropy bonus ------------------------------------------------------------------------------------


def test_the_bonus_pays_for_entropy():
    objective = replace(presets.grpo, penalties=(EntropyBonus(0.01),))
    rows, _ = objective.prepare(check.draw(seed=2))
    totals = objective.count(rows)
    base = presets.grpo.loss(rows, totals)
    lengths = rows["mask"].sum(-1)
    means = torch.where(rows["mask"], rows["entropy"], 0).sum(-1)[lengths > 0] / lengths[lengths > 0]
    torch.testing.assert_close(objective.loss(rows, totals), base - 0.01 * means.mean())
    assert (objective.entropy_weights(rows, totals)[rows["mask"]] > 0).all()


def test_a_bonus_of_coefficient_zero_asks_for_no_graph():
    """slime 1523, verl 1007: the entropy's graph was kept although its coefficient is 0."""
    none, some = (replace(presets.grpo, penalties=(EntropyBonus(c),)) for c in (0.0, 1e-3))
    assert none.columns().gradient == {"logp"}
    assert some.columns().gradient == {"logp", "entropy"}
    batch = check.draw(seed=2)
    for objective, has_graph in ((none, False), (some, True)):
        rows, _ = objective.prepare(batch)
        entropy = rows["entropy"].clone().requires_grad_()
        objective.loss(
            rows | {"logp": rows["logp"].clone().requires_grad_(), "entropy": entropy}, objective.count(rows)
        ).backward()
        assert (entropy.grad is not None) == has_graph


@pytest.mark.parametrize(("target", "is_active"), [(1e9, True), (0.0, False), (None, True)])
def test_a_gated_bonus_acts_at_or_below_its_target(target, is_active):
    objective = replace(presets.grpo, penalties=(EntropyBonus(0.1, target=target),))
    rows, _ = objective.prepare(check.draw(seed=2))
    assert objective.entropy_weights(rows, objective.count(rows)).any() == is_active


def test_the_gate_is_closed_just_above_the_measured_entropy_and_open_at_it():
    batch = check.draw(seed=2)
    measured = float(batch["old_entropy"][batch["mask"]].mean())
    for target, is_active in ((measured, True), (measured * (1 - 1e-9), False)):
        objective = replace(presets.grpo, penalties=(EntropyBonus(0.1, target=target),))
        rows, _ = objective.prepare(batch)
        assert bool(rows["penalties.0/active"].all()) == is_active


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReferenceKL(-0.1), "ReferenceKL.coef"),
        (lambda: ReferenceKL(0.1, "k4"), 'ReferenceKL.estimator must be "k1", "k2" or "k3"; found \'k4\''),
        (lambda: EntropyBonus(math.nan), "EntropyBonus.coef"),
        (lambda: EntropyBonus(None), "EntropyBonus.coef"),
    ],
)
def test_fields_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
