"""Advantages: hand-derived values, a second implementation in plain loops, and what went wrong elsewhere."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from isentrope import IsentropeWarning, check, presets
from isentrope.advantage import (
    BatchWhitened,
    GeneralizedAdvantage,
    GroupCentred,
    GroupRelative,
    LeaveOneOut,
    QuantileBaseline,
    Signed,
    SoftOverlong,
)

REWARD = torch.tensor([1.0, 0, 0, 1, 0], dtype=torch.float64)
GROUP = torch.full((5,), 7)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # mean .4, sample deviation sqrt(1.2 / 4) = .547723
        (GroupRelative(), [1.0954, -0.7303, -0.7303, 1.0954, -0.7303]),
        # population deviation sqrt(1.2 / 5) = .489898
        (GroupRelative(ddof=0), [1.2247, -0.8165, -0.8165, 1.2247, -0.8165]),
        (GroupRelative(eps=1.0), [0.3877, -0.2584, -0.2584, 0.3877, -0.2584]),
        (GroupCentred(), [0.6, -0.4, -0.4, 0.6, -0.4]),
        (LeaveOneOut(), [0.75, -0.5, -0.5, 0.75, -0.5]),
    ],
    ids=str,
)
def test_the_check_rewards_give_the_printed_advantages(rule, expected):
    found = rule(reward=REWARD, group=GROUP)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=5e-5, rtol=0)


def test_the_batch_scale_divides_by_the_deviation_of_all_rewards():
    reward, group = torch.tensor([1.0, 0, 3, 3], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    deviation = float(reward.std())
    found = GroupRelative(scale="batch", eps=0.0)(reward=reward, group=group)
    assert found.tolist() == pytest.approx([0.5 / deviation, -0.5 / deviation, 0, 0])


@pytest.mark.parametrize(
    "rule", [GroupRelative(), GroupRelative(scale="batch"), GroupCentred(), LeaveOneOut()], ids=str
)
@pytest.mark.parametrize("value", [0.1, 1e8 + 0.1, -1e-8, 1 / 3, 12345.678])
def test_equal_rewards_and_lone_rows_give_exactly_zero_in_float32(rule, value):
    """atropos 481: a variance by cancellation turns negative. A residue of the mean would be divided by an eps."""
    reward = torch.cat([torch.full((7,), value), torch.tensor([3.0])])
    group = torch.tensor([0] * 7 + [1])
    assert not reward.isnan().any()
    found = rule(reward=reward, group=group)
    assert found.tolist() == [0.0] * 8


def test_large_rewards_keep_their_digits():
    """atropos 481: mean(x^2) - mean(x)^2 of rewards near 1e4 is negative in float32."""
    reward = torch.tensor([1e4, 1e4 + 1, 1e4, 1e4 + 1])
    found = GroupRelative()(reward=reward, group=torch.zeros(4, dtype=torch.int64))
    assert found.tolist() == pytest.approx([-0.866, 0.866, -0.866, 0.866], abs=1e-3)


@pytest.mark.parametrize("rule", [GroupRelative(), GroupCentred(), LeaveOneOut()], ids=str)
def test_a_group_is_its_number_wherever_its_rows_stand(rule):
    group = torch.tensor([5, -3, 5, -3, 5])
    found = rule(reward=REWARD, group=group)
    for rows in ([0, 2, 4], [1, 3]):
        alone = rule(reward=REWARD[rows], group=torch.zeros(len(rows), dtype=torch.int64))
        torch.testing.assert_close(found[rows], alone)


def test_groups_of_one_everywhere_are_warned_of():
    """Search-R1 88: one prompt split over several group ids."""
    batch = check.draw(seed=1) | {"group": torch.arange(8)}
    with pytest.warns(IsentropeWarning, match="every group holds one row"):
        prepared, _ = presets.grpo.prepare(batch)
    assert not prepared["advantage"].any()


def test_whitening_counts_a_row_once_a_token():
    """Centred advantages .5 (3 tokens) and -.5 (1 token): mean .25, variance .1875."""
    mask = torch.tensor([[True, True, True], [True, False, False]])
    found = BatchWhitened()(reward=torch.tensor([1.0, 0.0]).double(), group=torch.tensor([0, 0]), mask=mask)
    high, low = 0.25 / math.sqrt(0.1875 + 1e-8), -0.75 / math.sqrt(0.1875 + 1e-8)
    assert found[mask].tolist() == pytest.approx([high, high, high, low], rel=1e-12)
    assert found[mask].mean().item() == pytest.approx(0, abs=1e-12)


def test_whitening_equal_rewards_gives_zero():
    mask = torch.ones(4, 2, dtype=torch.bool)
    found = BatchWhitened()(reward=torch.full((4,), 0.1), group=torch.tensor([0, 0, 1, 1]), mask=mask)
    assert not found.any()


def test_whitening_one_advantage_gives_zero():
    """All tokens are in rows of one advantage: the residue of its mean, over sqrt(1e-8), would be ten thousand times
    as large.
    """
    mask = torch.tensor([[True] * 7, [False] * 7, [False] * 7])
    found = BatchWhitened()(reward=torch.tensor([1.0, 0, 0]), group=torch.tensor([0, 0, 0]), mask=mask)
    assert not found.any()


def test_signed_rewards_are_right_above_the_threshold():
    reward = torch.tensor([0.0, 0.5, 0.500001, 1.0])
    assert Signed()(reward=reward).tolist() == [-1, -1, 1, 1]
    assert Signed(lambda_pos=0.0)(reward=reward).tolist() == [-1, -1, 0, 0]
    assert Signed(lambda_neg=0.0)(reward=reward).tolist() == [0, 0, 1, 1]
    assert Signed(0.1, 2.0, threshold=0.7)(reward=reward).tolist() == pytest.approx([-2, -2, -2, 0.1])


# -- GAE ----------------------------------------------------------------------------------------------


def by_recursion(reward: float, values: list[float], gamma: float, lam: float) -> list[float]:
    """The textbook recursion over the tokens of one row, the reward at the last one."""
    advantage, following = 0.0, 0.0
    found = []
    for i in reversed(range(len(values))):
        pay = reward if i == len(values) - 1 else 0.0
        delta = pay + gamma * following - values[i]
        advantage = delta + gamma * lam * advantage
        following = values[i]
        found.append(advantage)
    return found[::-1]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (0.99, 0.0), (0.0, 1.0)])
def test_gae_follows_the_recursion_over_each_rows_tokens(gamma, lam):
    """Tokens of tools are skipped, left padding too."""
    for seed in range(10):
        batch = check.draw(seed)
        found = GeneralizedAdvantage(gamma, lam, whiten=False)(
            reward=batch["reward"], value=batch["value"], mask=batch["mask"]
        )
        assert not found[~batch["mask"]].any()
        for row, reward, value, mask in zip(found, batch["reward"], batch["value"], batch["mask"], strict=True):
            expected = by_recursion(float(reward), value[mask].tolist(), gamma, lam)
            assert row[mask].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_gae_whitens_with_the_masked_mean_and_population_variance():
    batch = check.draw(seed=3)
    arguments = {name: batch[name] for name in ("reward", "value", "mask")}
    plain = GeneralizedAdvantage(whiten=False)(**arguments)[batch["mask"]]
    found = GeneralizedAdvantage()(**arguments)
    expected = (plain - plain.mean()) / (plain.var(correction=0) + 1e-8).sqrt()
    torch.testing.assert_close(found[batch["mask"]], expected, rtol=1e-12, atol=1e-12)
    assert not found[~batch["mask"]].any()


def test_a_perfect_critic_leaves_no_advantage():
    batch = check.draw(seed=4)
    value = batch["reward"][:, None].expand(batch["mask"].shape)
    found = GeneralizedAdvantage(whiten=False)(reward=batch["reward"], value=value, mask=batch["mask"])
    assert not found.any()


# -- soft overlong penalty ----------------------------------------------------------------------------


def penalised(lengths: list[int], rule: SoftOverlong, **columns: Tensor) -> list[float]:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return rule(reward=torch.zeros(len(lengths), dtype=torch.float64), mask=mask, **columns).tolist()


def as_it_is(*, reward: Tensor) -> Tensor:
    return reward


def test_the_overlong_penalty_is_the_papers_three_pieces():
    """DAPO eq. 13, L = 10, L_c = 4: 0 up to 6 tokens, then (6 - n) / 4, -1 from 10 on."""
    rule = SoftOverlong(as_it_is, buffer=4, limit=10)
    assert penalised([1, 6, 7, 9, 10, 13], rule) == pytest.approx([0, 0, -0.25, -0.75, -1, -1])
    assert penalised([8], SoftOverlong(as_it_is, buffer=4, limit=10, coef=0.5)) == pytest.approx([-0.25])


def test_the_limit_may_differ_by_row():
    limit = torch.tensor([10.0, 20.0])
    assert penalised([8, 8], SoftOverlong(as_it_is, buffer=4), length_limit=limit) == pytest.approx([-0.5, 0])


def test_the_overlong_penalty_without_a_limit_says_what_it_needs():
    with pytest.raises(ValueError, match=r"limit=.*`length_limit`"):
        penalised([8], SoftOverlong(as_it_is, buffer=4))


def test_the_penalty_makes_equal_rewards_differ():
    mask = torch.arange(10) < torch.tensor([[5], [10]])
    rule = SoftOverlong(GroupCentred(), buffer=4, limit=10)
    found = rule(reward=torch.ones(2), mask=mask, group=torch.tensor([0, 0]))
    assert found.tolist() == pytest.approx([0.5, -0.5])


# -- fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GroupRelative(eps=-1.0), r"GroupRelative.eps must be .* in \[0, inf\]; found -1.0"),
        (lambda: GroupRelative(eps=math.nan), "GroupRelative.eps"),
        (lambda: GroupRelative(ddof=2), "GroupRelative.ddof must be 0 or 1; found 2"),
        (lambda: GroupRelative(scale="row"), "GroupRelative.scale"),
        (lambda: Signed(lambda_pos=-1.0), "Signed.lambda_pos"),
        (lambda: Signed(lambda_neg="much"), "Signed.lambda_neg"),
        (lambda: Signed(threshold=math.nan), "Signed.threshold"),
        (lambda: GeneralizedAdvantage(gamma=1.1), r"GeneralizedAdvantage.gamma must be .* in \[0, 1\]"),
        (lambda: GeneralizedAdvantage(lam=-0.1), "GeneralizedAdvantage.lam"),
        (lambda: SoftOverlong(GroupCentred(), buffer=0), "SoftOverlong.buffer"),
        (lambda: SoftOverlong(GroupCentred(), buffer=4, coef=-1), "SoftOverlong.coef"),
    ],
)
def test_fields_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_larger_eps_shrinks_the_advantage():
    sizes = [GroupRelative(eps=eps)(reward=REWARD, group=GROUP).abs().max().item() for eps in (0.0, 1e-4, 1e-2, 1.0)]
    assert all(a > b for a, b in pairwise(sizes))


@pytest.mark.parametrize(
    ("rewards", "signs"),
    [
        # K = .4: two successes of five, p = .4 <= .6: the second smallest reward is 0, only successes have an advantage
        ([1.0, 0, 0, 1, 0], [1, 0, 0, 1, 0]),
        # four of five, p = .8 > .6: the second smallest reward is 1, only the failure has an advantage
        ([1.0, 1, 0, 1, 1], [0, 0, -1, 0, 0]),
        ([1.0, 1, 1, 1, 1], [0, 0, 0, 0, 0]),
    ],
)
def test_a_quantile_baseline_has_two_regimes(rewards, signs):
    found = QuantileBaseline(quantile=0.4)(reward=torch.tensor(rewards, dtype=torch.float64), group=GROUP)
    assert found.sign().tolist() == signs


def test_a_quantile_baseline_agrees_with_sorting_each_group():
    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(60, generator=generator, dtype=torch.float64)
    group = torch.randint(0, 9, (60,), generator=generator)
    for quantile in (0.05, 0.4, 0.5, 1.0):
        found = QuantileBaseline(quantile=quantile, eps=1e-6)(reward=reward, group=group)
        for k in group.unique().tolist():
            own = reward[group == k]
            baseline = sorted(own.tolist())[math.ceil(quantile * len(own) - 1e-9) - 1]
            std = float(own.std()) if len(own) > 1 else 0.0
            torch.testing.assert_close(found[group == k], (own - baseline) / (std + 1e-6))
