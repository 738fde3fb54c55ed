"""The objective as a whole: what reaches the rules, errors, warnings, state."""

from dataclasses import replace

import pytest
import torch

from isentrope import ColumnError, IsentropeWarning, Objective, check, presets
from isentrope.advantage import GroupRelative
from isentrope.control import EntropyServo, EntropyStep, Hysteresis
from isentrope.penalty import EntropyBonus, ReferenceKL
from isentrope.rollout import Rollout
from isentrope.schedule import Linear
from isentrope.select import HighEntropyTokens, NegativeGate, VaryingReward
from isentrope.shaping import Decorrelate, RescaleBySurprisal
from isentrope.surrogate import EntropyRatioClip, PolicyGradient, PPOClip

ROWS = {
    "reward": torch.tensor([1.0, 0, 1, 0]),
    "group": torch.tensor([0, 0, 1, 1]),
    "mask": torch.tensor([[True, True, True], [True, True, False], [True, True, True], [True, False, False]]),
    "old_logp": torch.tensor([[-1.0, -2, -0.5], [-0.25, -3, -1], [-1.5, -0.75, -2], [-1, -1, -1]]),
    "old_entropy": torch.tensor([[1.0, 2, 0.5], [0.25, 3, 1], [1.5, 0.75, 2.5], [0.1, 1, 1]]),
}
ROWS |= {"logp": ROWS["old_logp"] + 0.05, "entropy": ROWS["old_entropy"]}


@pytest.mark.parametrize("name", ["gspo", "gmpo"])
def test_a_token_whose_logp_is_not_finite_leaves_the_mean_of_its_row(name):
    """NeMo-RL 4154: top-k sampling gives -inf at a valid token."""
    objective = getattr(presets, name)
    prepared, _ = objective.prepare(ROWS | {"logp": ROWS["old_logp"] + 1e-4})
    totals = objective.count(prepared)
    logp = prepared["logp"].clone()
    logp[0, 1] = -torch.inf
    clean, found = objective.weights(prepared, totals), objective.weights(prepared | {"logp": logp}, totals)
    assert (clean[0] != 0).all()
    assert found[0, 1] == 0
    expected = clean.clone()
    expected[0, 1] = 0  # the mean of what is left of the row is what it was
    torch.testing.assert_close(found, expected)


def test_an_entropy_that_is_not_finite_counts_where_it_is_read_and_nowhere_else():
    bonus = replace(presets.grpo, penalties=(EntropyBonus(coef=0.1),))
    for objective, is_read in ((bonus, True), (presets.grpo, False)):
        prepared, _ = objective.prepare(ROWS)
        totals = objective.count(prepared)
        entropy = prepared["entropy"].clone()
        entropy[0, 1] = torch.nan
        rows = prepared | {"entropy": entropy}
        assert torch.isfinite(objective.loss(rows, totals))
        assert (objective.weights(rows, totals)[0, 1] == 0) == is_read
        assert torch.isfinite(objective.entropy_weights(rows, totals)).all()


def test_a_dropped_token_gets_no_gradient_through_the_mean_of_its_row():
    objective = replace(presets.gmpo, select=(HighEntropyTokens(rho=0.5),))
    prepared, _ = objective.prepare(ROWS)
    weights = objective.weights(prepared, objective.count(prepared))
    dropped = ROWS["mask"] & ~prepared["selected"]
    assert dropped.any()
    assert (weights[dropped] == 0).all()
    assert (weights[prepared["selected"]] != 0).all()


# -- what prepare returns ----------------------------------------------------------------------------


def test_prepare_adds_columns_of_one_row_each():
    prepared, state = presets.clip_cov.prepare(check.draw(seed=1))
    assert {"advantage", "selected", "counted", "excluded", "surrogate/drawn"} <= prepared.keys()
    assert all(len(x) == 8 for x in prepared.values())
    assert not any(x.requires_grad for x in prepared.values())
    assert state == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", ["old_logp", "old_entropy", "ref_logp", "value"])
def test_a_bad_token_of_a_column_that_is_read_is_excluded_and_named(column, bad):
    """NeMo-RL 4154, SkyRL 1694."""
    objective = replace(presets.erc, penalties=(ReferenceKL(0.1),), advantage=presets.ppo.advantage)
    batch = check.draw(seed=1)
    row, position = batch["mask"].nonzero()[4].tolist()
    spoilt = dict(batch) | {column: batch[column].clone()}
    spoilt[column][row, position] = bad
    with pytest.warns(IsentropeWarning, match=f"`{column}` is {bad} at 1 token.*first: row {row}, position {position}"):
        prepared, _ = objective.prepare(spoilt)
    assert prepared["excluded"].nonzero().tolist() == [[row, position]]
    assert objective.count(prepared).tokens == int(batch["mask"].sum()) - 1
    assert all(prepared[name][row, position] == 0 for name in ("old_logp", "old_entropy", "ref_logp", "value"))


def test_a_bad_token_of_a_column_that_nothing_reads_is_nobodys_business():
    batch = check.draw(seed=1)
    spoilt = batch | {"ref_logp": torch.full_like(batch["ref_logp"], torch.nan), "value": batch["value"] / 0}
    a, b = (presets.grpo.prepare(x)[0] for x in (batch, spoilt))
    assert torch.equal(a["advantage"], b["advantage"])
    assert not b["excluded"].any()


def test_a_masked_token_poisons_nothing():
    """NeMo-RL 4120: a masked token with log-ratio 200, -inf or NaN."""
    batch = check.draw(seed=1)
    clean, _ = presets.grpo.prepare(batch)
    totals = presets.grpo.count(clean)
    for bad in (200.0, -torch.inf, torch.nan):
        spoilt = dict(batch) | {n: torch.where(batch["mask"], batch[n], bad) for n in ("logp", "old_logp", "entropy")}
        prepared, _ = presets.grpo.prepare(spoilt)
        assert torch.equal(presets.grpo.loss(prepared, totals), presets.grpo.loss(clean, totals))
        assert torch.equal(presets.grpo.weights(prepared, totals), presets.grpo.weights(clean, totals))


def test_rows_of_a_prepared_batch_may_be_taken_in_any_way():
    prepared, _ = presets.grpo.prepare(check.draw(seed=1))
    totals = presets.grpo.count(prepared)
    for rows in (slice(2, 5), [3, 1], torch.tensor([True] * 3 + [False] * 5), slice(0, 0)):
        assert torch.isfinite(presets.grpo.loss({n: x[rows] for n, x in prepared.items()}, totals))


# -- errors -------------------------------------------------------------------------------------------


def test_loss_on_rows_that_were_not_prepared_says_so():
    totals = presets.grpo.count(presets.grpo.prepare(check.draw(seed=1))[0])
    with pytest.raises(ColumnError, match=r"loss needs column `advantage`.*use what prepare returned"):
        presets.grpo.loss(check.draw(seed=1), totals)


def test_loss_without_the_current_logp_says_so():
    prepared, _ = presets.grpo.prepare({n: x for n, x in check.draw(seed=1).items() if n != "logp"})
    with pytest.raises(ColumnError, match="loss needs column `logp`"):
        presets.grpo.loss(prepared, presets.grpo.count(prepared))


def test_loss_with_controllers_says_what_to_do():
    prepared, _ = presets.adapo.prepare(check.draw(seed=1))
    with pytest.raises(ValueError, match=r"still holds controllers: call objective.at\(state\) first"):
        presets.adapo.loss(prepared, presets.adapo.count(prepared))


def test_a_group_statistic_over_a_slice_is_not_silently_wrong():
    """Prepared columns travel with their rows: the first half has the whole batch's advantages."""
    batch = check.draw(seed=1)
    prepared, _ = presets.grpo.prepare(batch)
    half, _ = presets.grpo.prepare({n: x[:4] for n, x in batch.items()})
    assert not torch.equal(prepared["advantage"][:4], half["advantage"])


def test_a_state_of_another_objective_is_refused():
    with pytest.raises(ValueError, match=r"state has 'surrogate\.high\.value', which belongs to no controller"):
        presets.grpo.at(presets.adapo.init())
    with pytest.raises(ValueError, match=r"state has 'shaping.0.zeta.value'.*\(surrogate.high.\)"):
        presets.adapo.prepare(check.draw(seed=1), presets.repo_r.init())


def test_slots_refuse_what_is_not_a_rule():
    with pytest.raises(ColumnError, match="is not a rule"):
        replace(presets.grpo, surrogate=PPOClip)
    with pytest.raises((ColumnError, ValueError)):
        replace(presets.grpo, shaping=(EntropyServo(),))


def test_a_late_rule_may_not_stand_before_an_early_one():
    with pytest.raises(ValueError, match="Decorrelate runs once in prepare, but stands after RescaleBySurprisal"):
        replace(presets.grpo, shaping=(RescaleBySurprisal(), Decorrelate()))
    replace(presets.grpo, shaping=(Decorrelate(), RescaleBySurprisal()))


def test_unknown_slots_are_refused():
    """RLinf 316: an option swallowed by **kwargs."""
    with pytest.raises(TypeError, match="epsilon"):
        Objective(advantage=GroupRelative(), surrogate=PPOClip(), epsilon=0.2)


# -- what it says of itself ---------------------------------------------------------------------------


def test_columns_are_listed_by_phase():
    needs = replace(presets.repo_r, penalties=(ReferenceKL(0.1), EntropyBonus(0.1))).columns()
    assert needs.prepare == {"reward", "group", "mask", "old_logp"}
    assert needs.loss == {"logp", "old_logp", "ref_logp", "entropy"}
    assert needs.optional == {"old_entropy"}
    assert needs.gradient == {"logp", "entropy"}
    assert presets.erc.columns().gradient == {"logp"}  # reads the entropy, detached
    assert "length_limit" in presets.dr_grpo.columns().optional


def test_controllers_are_found_at_any_depth():
    objective = replace(
        presets.grpo,
        select=(HighEntropyTokens(), NegativeGate(on=Hysteresis())),
        surrogate=EntropyRatioClip(PPOClip(high=EntropyServo()), low=Linear(0.9, 0.95, 10)),
        penalties=(EntropyBonus(coef=EntropyStep()),),
        rollout=Rollout(temperature=EntropyServo(start=1.0, high=2.0)),
    )
    paths = ["select.1.on", "surrogate.surrogate.high", "surrogate.low", "penalties.0.coef", "rollout.temperature"]
    assert sorted(objective.controllers()) == sorted(paths)
    assert {key.rpartition(".")[0] for key in objective.init()} == set(paths)
    now = objective.at(objective.init())
    assert now.controllers() == {}
    assert (now.surrogate.surrogate.high, now.rollout.temperature) == (0.28, 1.0)


def test_controllers_observe_once_a_rollout_batch():
    batch = check.draw(seed=1)
    state = presets.adapo.init()
    for factor, sign in ((1.0, 0), (0.5, 1), (0.5, 1), (2.0, -1)):
        before = state["surrogate.high.value"]
        entropy = {"old_entropy": batch["old_entropy"] * factor}
        _, state = presets.adapo.prepare(batch | entropy, state)
        assert (state["surrogate.high.value"] > before) - (state["surrogate.high.value"] < before) == sign


def test_the_measured_entropy_is_the_token_mean_exact_where_it_can_be():
    """trl 6380, 7047: pooled over tokens, not a mean of means."""
    batch = check.draw(seed=1)
    _, state = presets.adapo.prepare(batch)
    assert state["surrogate.high.target"] == pytest.approx(float(batch["old_entropy"][batch["mask"]].mean()))
    _, state = presets.adapo.prepare({n: x for n, x in batch.items() if n != "old_entropy"})
    assert state["surrogate.high.target"] == pytest.approx(float(-batch["old_logp"][batch["mask"]].mean()))


@pytest.mark.parametrize("name", ["ce_gppo", "gppo", "dapo", "adapo", "kl_cov", "cispo", "gmpo", "sapo", "erc", "gspo"])
def test_a_rule_that_cannot_act_on_policy_says_so_before_training(name):
    """Entropy-Mechanism 1; verl 791, 2501: no effect on-policy."""
    objective = getattr(presets, name)
    (sentence,) = objective.inert(updates_per_rollout=1, group_size=8)
    assert "the ratio is always 1" in sentence
    assert objective.inert(updates_per_rollout=4, group_size=8) == []


def test_a_rule_that_acts_on_policy_says_nothing():
    assert presets.rloo.inert(updates_per_rollout=1, group_size=8) == []


def test_groups_of_one_are_said_before_training():
    (sentence,) = presets.rloo.inert(updates_per_rollout=1, group_size=1)
    assert "every advantage is 0" in sentence
    assert replace(presets.nsr, surrogate=PolicyGradient()).inert(updates_per_rollout=1, group_size=1) == []


def test_bounds_of_tokens_for_sequences_and_the_reverse_are_said():
    """verl 2775: token-level epsilon with sequence ratios clips everything or nothing."""
    wide = replace(presets.gspo, surrogate=PPOClip(0.2, 0.28))
    (sentence,) = wide.inert(updates_per_rollout=4, group_size=8)
    assert sentence.startswith("surrogate: the bounds 0.2, 0.28 of PPOClip are meant for tokens")
    narrow = replace(presets.grpo, surrogate=EntropyRatioClip(PPOClip(3e-4, 4e-4)))
    (sentence,) = narrow.inert(updates_per_rollout=4, group_size=8)
    assert sentence.startswith("surrogate: the bounds 0.0003, 0.0004 of PPOClip are meant for sequences")
    for name in presets.names():
        assert getattr(presets, name).inert(updates_per_rollout=4, group_size=8) == []


def test_an_objective_is_a_value():
    assert replace(presets.grpo) == presets.grpo
    assert presets.grpo != presets.dapo
    assert replace(presets.grpo, select=[VaryingReward()]).select == (VaryingReward(),)


@pytest.mark.parametrize("name", ["gspo", "rloo", "sapo", "ce_gppo"])
def test_an_advantage_that_is_carried_as_one_number_a_row_may_have_either_shape(name):
    objective, batch = getattr(presets, name), check.draw(seed=3)
    prepared, _ = objective.prepare({k: x for k, x in batch.items() if k not in ("logp", "entropy")})
    totals, logp = objective.count(prepared), {"logp": batch["logp"]}
    flat = prepared | {"advantage/row": prepared["advantage/row"].flatten()}
    spread = {k: x for k, x in prepared.items() if k != "advantage/row"}
    weights = [objective.weights(rows | logp, totals) for rows in (prepared, flat, spread)]
    assert torch.equal(weights[0], weights[1])
    torch.testing.assert_close(weights[0], weights[2], rtol=1e-12, atol=1e-15)
