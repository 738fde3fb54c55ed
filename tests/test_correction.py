"""Rollout correction: closed bounds, tokens without the sampler's log-probability, products against means."""

import math
from dataclasses import replace

import pytest
import torch

from isentrope import check, presets
from isentrope.correction import IcePop, SequenceMask, TruncatedImportance, mismatch

OLD = torch.tensor([[-1.0, -1.0, -1.0]], dtype=torch.float64)
MASK = torch.ones(1, 3, dtype=torch.bool)


def sampler(*rho):
    """rollout_logp such that exp(old_logp - rollout_logp) is rho; None is NaN."""
    return OLD - torch.tensor([[math.nan if r is None else math.log(r) for r in rho]], dtype=torch.float64)


def test_truncation_caps_and_keeps_small_factors():
    found = TruncatedImportance()(old_logp=OLD, rollout_logp=sampler(0.1, 1.5, 7.0))
    assert found.flatten().tolist() == pytest.approx([0.1, 1.5, 2.0])


def test_icepop_rejects_both_sides():
    found = IcePop()(old_logp=OLD, rollout_logp=sampler(0.4, 1.5, 5.1))
    assert found.flatten().tolist() == pytest.approx([0, 1.5, 0])


@pytest.mark.parametrize("rule", [IcePop(1.0, 1.0), SequenceMask(1.0, 1.0)], ids=str)
def test_bounds_are_closed(rule):
    columns = {"mask": MASK} if isinstance(rule, SequenceMask) else {}
    assert rule(old_logp=OLD, rollout_logp=OLD.clone(), **columns).flatten().tolist() == [1, 1, 1]
    off = rule(old_logp=OLD, rollout_logp=OLD + 1e-9, **columns)
    assert not off.any()


@pytest.mark.parametrize(
    ("rho", "kept", "product"),
    [
        ((1.2, 1.2, 1.2), 1.0, 1.728),
        ((1.3, 1.3, 1.3), 0.0, 0.0),  # trl 5814: the mean of logs would keep this row, the product 2.197 does not
        ((0.7, 0.8, 0.8), 0.0, 0.0),
        ((3.0, 0.5, 1.0), 1.0, 1.5),  # single tokens may leave the band
        ((1.5, None, 1.0), 1.0, 1.5),
    ],
)
def test_a_row_is_judged_by_the_product_over_its_tokens(rho, kept, product):
    columns = {"old_logp": OLD, "mask": MASK, "rollout_logp": sampler(*rho)}
    assert SequenceMask()(**columns).flatten().tolist() == pytest.approx([kept] * 3)
    assert SequenceMask(weight=True)(**columns).flatten().tolist() == pytest.approx([product] * 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_positions_never_enter_the_product(bad):
    """verl 6349: NaN at masked positions poisons sequence means."""
    rollout = sampler(1.2, 1.2, 1.0)
    rollout[0, 2] = bad
    mask = torch.tensor([[True, True, False]])
    found = SequenceMask(weight=True)(old_logp=OLD, mask=mask, rollout_logp=rollout)
    assert found[mask].tolist() == pytest.approx([1.44, 1.44])


@pytest.mark.parametrize("rule", [TruncatedImportance(), IcePop()], ids=str)
def test_a_token_without_the_samplers_log_probability_counts_as_one(rule):
    """trl 6166: the sampler returns NaN for near-certain tokens."""
    found = rule(old_logp=OLD, rollout_logp=sampler(None, 1.5, None))
    assert found.flatten().tolist() == pytest.approx([1, 1.5, 1])
    infinite = rule(old_logp=OLD, rollout_logp=torch.full_like(OLD, -torch.inf))
    assert infinite.flatten().tolist() == [1, 1, 1]


def test_a_token_without_the_samplers_log_probability_stays_in_the_loss():
    """trl 6166: it is neither excluded nor dropped."""
    objective = replace(presets.grpo, correction=TruncatedImportance())
    batch = check.draw(seed=1) | {"rollout_logp": torch.full((8, 6), torch.nan, dtype=torch.float64)}
    prepared, _ = objective.prepare(batch)
    totals = objective.count(prepared)
    assert not prepared["excluded"].any()
    torch.testing.assert_close(objective.weights(prepared, totals), presets.grpo.weights(prepared, totals))


def test_hundreds_of_nats_stay_finite():
    rollout = torch.tensor([[-300.0, 299.0, -1.0]])
    for rule in (TruncatedImportance(cap=math.inf), IcePop(0, math.inf)):
        found = rule(old_logp=OLD.float(), rollout_logp=rollout)
        assert torch.isfinite(found).all()
        assert found.max().item() == pytest.approx(math.exp(20), rel=1e-6)


def test_the_mismatch_is_detached():
    old = OLD.clone().requires_grad_()
    assert not mismatch(old, sampler(1.0, 1.0, 1.0)).requires_grad
    assert not mismatch(old, None).any()


@pytest.mark.parametrize("rule", [TruncatedImportance(), IcePop()], ids=str)
def test_the_factor_multiplies_the_weight_of_each_token(rule):
    batch = check.draw(seed=1)
    objective = replace(presets.grpo, correction=rule)
    rows, _ = objective.prepare(batch)
    totals = objective.count(rows)
    factor = rule(old_logp=rows["old_logp"], rollout_logp=rows["rollout_logp"])
    assert (factor[rows["mask"]] != 1).any()
    torch.testing.assert_close(objective.weights(rows, totals), factor * presets.grpo.weights(rows, totals))


def test_rejected_tokens_stay_in_the_count():
    objective = replace(presets.dapo, select=(), correction=IcePop())
    batch = check.draw(seed=1)
    prepared, _ = objective.prepare(batch)
    factor = IcePop()(old_logp=prepared["old_logp"], rollout_logp=prepared["rollout_logp"])
    assert ((factor == 0) & prepared["mask"]).any()
    assert objective.count(prepared).tokens == int(batch["mask"].sum())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TruncatedImportance(cap=-1), "TruncatedImportance.cap"),
        (lambda: IcePop(low=-1), "IcePop.low"),
        (lambda: IcePop(low=2.0, high=1.0), "IcePop.high must be at least low = 2.0"),
        (lambda: IcePop(low=2, high=1), "IcePop.high must be at least low = 2"),
        (lambda: SequenceMask(low=3.0), "SequenceMask.high must be at least low = 3.0"),
        (lambda: SequenceMask(high="2"), "SequenceMask.high"),
    ],
)
def test_fields_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
