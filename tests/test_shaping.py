"""Shaping: the printed vectors, the formulas in plain loops, and how thresholds move."""

import math
from dataclasses import replace

import pytest
import torch

from isentrope import check, presets
from isentrope.control import GroupEntropyThreshold
from isentrope.shaping import Decorrelate, GroupEntropyGate, RescaleBySurprisal, centred_logp


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


# -- REPO-R -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "logp", "zeta", "expected"),
    [
        (2, -3, 0.1, 2.6),
        (-2, -3, 0.1, -1.4),
        (-2, -12, 0.1, 0),
        (2, -3, -0.1, 1.4),
        (2, -12, -0.1, 0),
        (-2, -3, -0.1, -2.6),
        (1, -30, 0.05, 2.0),  # the floor at -20
        (0, -3, 0.1, 0),
    ],
)
def test_rescaling_gives_the_printed_vectors(advantage, logp, zeta, expected):
    found = RescaleBySurprisal(zeta=zeta)(column(advantage), logp=column(logp))
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_rescaling_never_turns_a_sign():
    g = torch.Generator().manual_seed(0)
    advantage, logp = torch.randn(50, 20, generator=g), -torch.rand(50, 20, generator=g) * 40
    turned = 0
    for zeta in (-0.05, 0.05, 0.5, -0.5):
        found = RescaleBySurprisal(zeta=zeta)(advantage, logp=logp)
        assert (found * advantage >= 0).all()
        turned += int((found == 0).sum())
    assert turned > 100


def test_rescaling_follows_the_current_policy_at_every_update():
    prepared, state = presets.repo_r.prepare(check.draw(seed=1))
    now = replace(presets.repo_r.at(state), shaping=(RescaleBySurprisal(zeta=0.05),))
    one, other = now.shaped(prepared), now.shaped(prepared | {"logp": prepared["logp"] - 1})
    acts = prepared["mask"] & (prepared["advantage"] != 0) & (prepared["logp"] > -19)
    assert acts.any()
    torch.testing.assert_close((other - one)[acts], 0.05 * prepared["advantage"][acts].abs())


def test_rescaling_is_detached():
    logp = column(-3.0).requires_grad_()
    assert not RescaleBySurprisal(zeta=0.1)(column(2.0), logp=logp).requires_grad


@pytest.mark.parametrize(("centre", "lp"), [("none", -3.0), ("batch", -3 + 1.5), ("vocab", -3 + 0.7)])
def test_the_centre_is_subtracted_after_the_floor(centre, lp):
    rule = RescaleBySurprisal(zeta=0.1, centre=centre)
    old = column(-1.0, -2.0, -99.0)
    own = rule.prepare(old_logp=old, mask=torch.tensor([[True], [True], [False]]))
    found = rule(column(2.0, 2.0, 2.0), logp=column(-3.0, -3.0, -3.0), entropy=column(0.7, 0.7, 0.7), **own)
    assert found[0].item() == pytest.approx(2 * (1 - 0.1 * lp))
    deep = rule(column(2.0, 2.0, 2.0), logp=column(-30.0, -30.0, -30.0), entropy=column(0.7, 0.7, 0.7), **own)
    assert deep[0].item() == pytest.approx(2 * (1 - 0.1 * (lp - 17)))


@pytest.mark.parametrize(("centre", "missing"), [("batch", "mean_old_logp"), ("vocab", "entropy")])
def test_a_centre_without_its_column_says_which(centre, missing):
    with pytest.raises(ValueError, match=f"`{missing}`"):
        RescaleBySurprisal(zeta=0.1, centre=centre)(column(1.0), logp=column(-1.0))


# -- REPO-D -------------------------------------------------------------------------------------------


def decorrelated(batch, zeta, normalise, with_entropy):
    """The formula, token by token."""
    tokens = [tuple(i) for i in batch["mask"].nonzero().tolist()]
    old, a = batch["old_logp"], batch["advantage"]
    mean = sum(float(old[i]) for i in tokens) / len(tokens)
    centred = {i: float(old[i]) + (float(batch["old_entropy"][i]) if with_entropy else -mean) for i in tokens}
    c = sum(math.exp(float(old[i])) * float(a[i]) * centred[i] for i in tokens) / len(tokens)
    q = sum(math.exp(float(old[i])) * centred[i] ** 2 for i in tokens) / len(tokens)
    beta = zeta * c / q if normalise else zeta * c
    return {i: float(a[i]) - beta * centred[i] for i in tokens}


@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("zeta", [1.0, -0.3, 10.0])
def test_decorrelation_is_the_formula_over_the_batchs_tokens(zeta, normalise, with_entropy):
    base, _ = presets.grpo.prepare(check.draw(seed=6))
    assert base["mask"].any()
    columns = {"old_logp": base["old_logp"], "mask": base["mask"]}
    columns |= {"old_entropy": base["old_entropy"]} if with_entropy else {}
    found = Decorrelate(zeta, normalise)(base["advantage"], **columns)
    for i, expected in decorrelated(base, zeta, normalise, with_entropy).items():
        assert found[i].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_rows_of_advantage_zero_are_moved_too():
    prepared, _ = replace(presets.repo_d, shaping=(Decorrelate(zeta=1.0),)).prepare(check.draw(seed=6))
    base, _ = replace(presets.repo_d, shaping=()).prepare(check.draw(seed=6))
    still = base["mask"] & (base["advantage"] == 0)
    assert still.any()
    assert (prepared["advantage"][still] != 0).all()


def test_a_policy_without_spread_is_left_alone():
    """Q = 0: one token whose log-probability is the mean."""
    found = Decorrelate(1.0, normalise=True)(column(2.0), old_logp=column(-1.0), mask=column(1.0).bool())
    assert found.item() == 2


@pytest.mark.parametrize("value", [-0.1, -1 / 3, -2.345])
def test_a_residue_of_equal_log_probabilities_moves_nothing(value):
    old = torch.full((7, 1), value)
    found = Decorrelate(1.0, normalise=True)(torch.ones(7, 1), old_logp=old, mask=old < 0)
    assert found.flatten().tolist() == [1.0] * 7


def test_the_centred_log_probability_needs_the_mask_or_the_entropy():
    old, mask = column(-1.0, -3.0, -50.0), torch.tensor([[True], [True], [False]])
    assert centred_logp(old, mask, None)[:2].flatten().tolist() == [1, -1]
    assert centred_logp(old, mask, column(2.0, 2.0, 2.0))[:2].flatten().tolist() == [1, -1]


# -- GEPO ---------------------------------------------------------------------------------------------

# Four groups of entropies .2, .4, .5 and .9: mu .5, population sigma .254951.
OLD = column(-0.2, -0.4, -0.5, -0.9)
GEPO = {"old_logp": OLD, "mask": OLD < 0, "group": torch.arange(4)}


def test_thresholds_of_the_printed_groups():
    low, high = GroupEntropyThreshold(offset=-0.2), GroupEntropyThreshold(offset=0.3)
    assert low.value(low.observe(low.init(), **GEPO)) == pytest.approx(0.449010, abs=1e-6)
    assert high.value(high.observe(high.init(), **GEPO)) == pytest.approx(0.576485, abs=1e-6)


@pytest.mark.parametrize(
    ("advantage", "factors"), [(1.0, [0.5, 0.5, 1, 1]), (-1.0, [1, 1, 1, 0.2]), (0.0, [1, 1, 1, 1])]
)
def test_the_gate_damps_sharp_winners_and_loose_losers(advantage, factors):
    gate = GroupEntropyGate(low=0.449010, high=0.576485)
    found = gate(torch.full((4, 1), advantage), **GEPO)
    assert found.flatten().tolist() == pytest.approx([advantage * f for f in factors])


def test_a_groups_entropy_is_the_mean_over_all_its_tokens():
    """Row means would give (1 + 3) / 2 = 2; the token mean is (1 * 3 + 3) / 4 = 1.5. Both rows belong to one group."""
    old = -torch.tensor([[1.0, 1, 1], [3, 7, 7]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    columns = {"old_logp": old, "mask": mask, "group": torch.tensor([4, 4])}
    for threshold, factor in ((1.4, 1.0), (1.6, 0.5)):
        gate = GroupEntropyGate(low=threshold, high=math.inf)
        assert gate(torch.ones(2, 3), **columns)[mask].tolist() == [factor] * 4


def test_bounds_are_strict():
    gate = GroupEntropyGate(low=0.5, high=0.5)
    old = column(-0.5, -0.5)
    columns = {"old_logp": old, "mask": old < 0, "group": torch.tensor([0, 1])}
    assert gate(column(1.0, -1.0), **columns).flatten().tolist() == [1, -1]


def test_groups_are_counted_before_a_filter_drops_them():
    batch = check.draw(seed=7, rewards="equal")
    _, filtered = replace(presets.gepo, select=presets.dapo.select).prepare(batch)
    _, whole = presets.gepo.prepare(batch)
    assert filtered == whole
    assert len(whole) == 2


def test_the_first_batch_seeds_the_average_and_acts_on_itself():
    _, state = presets.gepo.prepare(check.draw(seed=7))
    _, again = presets.gepo.prepare(check.draw(seed=8), state)
    _, alone = presets.gepo.prepare(check.draw(seed=8))
    for key in ("shaping.0.low.value", "shaping.0.high.value"):
        assert again[key] == pytest.approx(0.99 * state[key] + 0.01 * alone[key], rel=1e-12)


def test_thresholds_act_on_the_batch_that_moved_them():
    batch = check.draw(seed=7, rows=20, prompts=6)
    prepared, state = presets.gepo.prepare(batch)
    base, _ = replace(presets.gepo, shaping=()).prepare(batch)
    gate = GroupEntropyGate(low=state["shaping.0.low.value"], high=state["shaping.0.high.value"])
    expected = gate(base["advantage"], **{n: base[n] for n in ("old_logp", "mask", "group")})
    assert not torch.equal(expected, base["advantage"])
    assert torch.equal(prepared["advantage"], expected)


def test_thresholds_by_task_look_at_their_own_task():
    low = GroupEntropyThreshold(offset=0.0, by_task=True)
    task = torch.tensor([3, 3, 8, 8])
    state = low.observe(low.init(), **GEPO, task=task)
    assert low.value(state) == ((3, pytest.approx(0.3)), (8, pytest.approx(0.7)))
    gate = GroupEntropyGate(low=low.value(state), high=math.inf)
    assert gate(torch.ones(4, 1), **GEPO, task=task).flatten().tolist() == [0.5, 1, 0.5, 1]


def test_a_task_without_a_threshold_is_left_alone():
    gate = GroupEntropyGate(low=((3, 9.0),), high=((3, 0.0),))
    task = torch.tensor([3, 5, 3, 5])
    assert gate(torch.ones(4, 1), **GEPO, task=task).flatten().tolist() == [0.5, 1, 0.5, 1]
    assert gate(-torch.ones(4, 1), **GEPO, task=task).flatten().tolist() == pytest.approx([-0.2, -1, -0.2, -1])


def test_thresholds_by_task_without_tasks_say_what_they_need():
    with pytest.raises(ValueError, match="`task`"):
        GroupEntropyThreshold(offset=0.0, by_task=True).observe({}, **GEPO)
    with pytest.raises(ValueError, match="`task`"):
        GroupEntropyGate(low=((0, 1.0),))(torch.ones(4, 1), **GEPO)


def test_before_any_batch_the_gate_switches_nothing():
    now = presets.gepo.at(presets.gepo.init())
    assert now.shaping[0](torch.ones(4, 1), **GEPO).flatten().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: GroupEntropyGate(alpha_low=0.2, alpha_high=0.5),
            "alpha_high must be within 0 < alpha_high < alpha_low",
        ),
        (lambda: GroupEntropyGate(alpha_high=0.0), "GroupEntropyGate.alpha_high"),
        (lambda: GroupEntropyGate(alpha_low=1.0), "GroupEntropyGate.alpha_high"),
        (lambda: GroupEntropyGate(alpha_low=1.5), "GroupEntropyGate.alpha_low"),
        (lambda: GroupEntropyGate(alpha_low=0.5, alpha_high=0.5), "GroupEntropyGate.alpha_high"),
        (lambda: RescaleBySurprisal(zeta=math.nan), "RescaleBySurprisal.zeta"),
        (lambda: RescaleBySurprisal(centre="token"), "RescaleBySurprisal.centre"),
        (lambda: Decorrelate(zeta="1"), "Decorrelate.zeta"),
        (lambda: GroupEntropyThreshold(offset=0.1, gamma=0.0), "GroupEntropyThreshold.gamma"),
    ],
)
def test_fields_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
