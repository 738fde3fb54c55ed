"""Selection: which rows and tokens stay, what leaves the count, and the advantages of what is dropped."""

from dataclasses import replace

import pytest
import torch

from isentrope import check, presets
from isentrope.select import HighEntropyTokens, NegativeGate, TemperedSuccesses, Untruncated, VaryingReward

ENTROPY = torch.tensor([[0.9, 0.1, 0.5], [0.7, 0.3, 9.0]])
MASK = torch.tensor([[True, True, True], [True, True, False]])


@pytest.mark.parametrize(
    ("rho", "kept"),
    [
        (0.0, []),
        (0.2, [0.9]),  # ceil(.2 * 5) = 1
        (0.21, [0.9, 0.7]),  # ceil(1.05) = 2
        (0.6, [0.9, 0.7, 0.5]),  # .6 * 5 is 3, though 3.0000000000000004 may come out
        (1.0, [0.9, 0.7, 0.5, 0.3, 0.1]),
    ],
)
def test_the_top_share_is_of_valid_tokens_rounded_up(rho, kept):
    """trl 3709: the quantile was taken over padding; the 9.0 here stands behind the mask."""
    found = HighEntropyTokens(rho=rho)(old_entropy=ENTROPY, mask=MASK)
    assert sorted(ENTROPY[found].tolist(), reverse=True) == pytest.approx(kept)


def test_of_equal_entropies_the_earlier_position_is_kept():
    entropy = torch.zeros(2, 3)
    found = HighEntropyTokens(rho=0.5)(old_entropy=entropy, mask=MASK)
    assert found.tolist() == [[True, True, True], [False, False, False]]


def test_the_share_is_of_the_whole_batch_not_of_a_slice():
    """ms-swift 5270: the quantile was taken rank by rank."""
    batch = check.draw(seed=2)
    prepared, _ = presets.high_entropy.prepare(batch)
    whole = prepared["selected"]
    halves = [
        presets.high_entropy.prepare({n: x[r] for n, x in batch.items()})[0]["selected"]
        for r in (slice(4), slice(4, 8))
    ]
    assert not torch.equal(whole, torch.cat(halves))
    threshold = batch["old_entropy"][whole].min()
    assert torch.equal(whole, batch["mask"] & (batch["old_entropy"] >= threshold))


def test_kept_tokens_alone_are_counted_unless_all_are_asked_for():
    batch = check.draw(seed=2)
    for count, tokens in (("kept", None), ("all", int(batch["mask"].sum()))):
        objective = replace(presets.high_entropy, select=(HighEntropyTokens(rho=0.2, count=count),))
        prepared, _ = objective.prepare(batch)
        expected = tokens or int(prepared["selected"].sum())
        assert objective.count(prepared).tokens == expected
        assert 0 < prepared["selected"].sum() < batch["mask"].sum()


def test_groups_without_variance_are_dropped_and_lone_rows_with_them():
    reward = torch.tensor([1.0, 0, 0.1, 0.1, 5, 1])
    group = torch.tensor([0, 0, 1, 1, 2, 0])
    assert VaryingReward()(reward=reward, group=group).tolist() == [True, True, False, False, False, True]


def test_truncated_rows_are_dropped():
    assert Untruncated()(length_limit_hit=torch.tensor([True, False])).tolist() == [False, True]


@pytest.mark.parametrize(("on", "kept"), [(0.0, [True, True, True]), (1.0, [True, False, True])])
def test_the_negative_gate_drops_rows_of_negative_advantage(on, kept):
    advantage = torch.tensor([[0.5, 0.5], [-0.5, -0.5], [0.0, 0.0]])
    found = NegativeGate(on=on)(advantage=advantage, mask=torch.ones(3, 2, dtype=torch.bool))
    assert found.tolist() == kept


def test_the_negative_gate_judges_a_row_by_its_own_tokens():
    advantage = torch.tensor([[0.5, -9.0]])
    assert NegativeGate(on=1.0)(advantage=advantage, mask=torch.tensor([[True, False]])).tolist() == [True]


def test_of_tempered_rows_the_better_ones_stay():
    advantage = torch.tensor([[1.0], [-1.0], [0.0], [-1.0]])
    tempered = torch.tensor([True, True, True, False])
    found = TemperedSuccesses()(tempered=tempered, advantage=advantage, mask=torch.ones(4, 1, dtype=torch.bool))
    assert found.tolist() == [True, False, False, True]


def test_dropped_rows_have_advantage_zero_and_dropped_tokens_keep_theirs():
    batch = check.draw(seed=5)
    rows, _ = replace(presets.dapo, select=(Untruncated(),)).prepare(batch)
    assert batch["length_limit_hit"].any()
    assert not rows["advantage"][batch["length_limit_hit"]].any()
    tokens, _ = presets.high_entropy.prepare(batch)
    base, _ = replace(presets.high_entropy, select=()).prepare(batch)
    assert torch.equal(tokens["advantage"], base["advantage"])


def test_selections_intersect_and_later_ones_see_the_batch_as_it_was():
    batch = check.draw(seed=5)
    both, _ = replace(presets.dapo, select=(VaryingReward(), Untruncated())).prepare(batch)
    one, _ = replace(presets.dapo, select=(VaryingReward(),)).prepare(batch)
    other, _ = replace(presets.dapo, select=(Untruncated(),)).prepare(batch)
    assert torch.equal(both["selected"], one["selected"] & other["selected"])


def test_a_batch_without_a_kept_row_has_loss_zero_with_a_graph():
    """open-instruct 1685, verl 782: 0 / 0 for a fully masked batch."""
    batch = check.draw(seed=5, rewards="equal")
    prepared, _ = presets.dapo.prepare(batch)
    assert not prepared["selected"].any()
    logp = batch["logp"].clone().requires_grad_()
    loss = presets.dapo.loss(prepared | {"logp": logp}, presets.dapo.count(prepared))
    loss.backward()
    assert loss.item() == 0
    assert not logp.grad.any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HighEntropyTokens(rho=1.5), "HighEntropyTokens.rho"),
        (lambda: HighEntropyTokens(count="some"), 'HighEntropyTokens.count must be "kept" or "all"'),
        (lambda: VaryingReward(count=""), "VaryingReward.count"),
        (lambda: Untruncated(count="none"), "Untruncated.count"),
        (lambda: NegativeGate(on=2.0), "NegativeGate.on"),
        (lambda: NegativeGate(count="x"), "NegativeGate.count"),
        (lambda: TemperedSuccesses(count="x"), "TemperedSuccesses.count"),
    ],
)
def test_fields_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
