"""Aggregation: the weight of each token by hand, and a loss scale that no split changes."""

from dataclasses import replace

import pytest
import torch

from isentrope import Totals, check, presets
from isentrope.advantage import Signed
from isentrope.aggregate import ConstantLength, PromptMean, SequenceMean, TokenMean
from isentrope.surrogate import PolicyGradient

# Rows of 3, 1, 0 and 2 tokens; the first two are one prompt's.
MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False], [True, False, True]])
BATCH = {
    "reward": torch.ones(4),
    "group": torch.tensor([4, 4, 9, 2]),
    "mask": MASK,
    "old_logp": torch.full((4, 3), -1.0),
    "logp": torch.full((4, 3), -1.0),
    "length_limit": torch.tensor([8.0, 8, 8, 16]),
}


def weights(aggregate):
    """With advantage 1 and the plain policy gradient, dJ/dlogp is the aggregation's weight."""
    objective = replace(presets.rloo, advantage=Signed(), surrogate=PolicyGradient(), aggregate=aggregate)
    rows, _ = objective.prepare(BATCH)
    found = objective.weights(rows, objective.count(rows))
    assert not found[~MASK].any()
    return [found[i][MASK[i]].tolist() for i in range(4)]


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (TokenMean(), [1 / 6, 1 / 6, 1 / 6]),
        (SequenceMean(), [1 / 9, 1 / 3, 1 / 6]),
        (ConstantLength(10), [1 / 30, 1 / 30, 1 / 30]),
        (ConstantLength(), [1 / 24, 1 / 24, 1 / 48]),
        (PromptMean(), [1 / 8, 1 / 8, 1 / 4]),
    ],
    ids=str,
)
def test_a_tokens_weight_by_hand(aggregate, expected):
    """A row without tokens is no row, a group without tokens no group."""
    a, b, none, c = weights(aggregate)
    assert (a, b, none, c) == (
        [pytest.approx(expected[0])] * 3,
        [pytest.approx(expected[1])],
        [],
        [pytest.approx(expected[2])] * 2,
    )


@pytest.mark.parametrize("aggregate", [TokenMean(), SequenceMean(), PromptMean()], ids=str)
def test_the_weights_of_a_mean_add_up_to_one(aggregate):
    assert sum(map(sum, weights(aggregate))) == pytest.approx(1)


@pytest.mark.parametrize("aggregate", [TokenMean(), SequenceMean(), ConstantLength(), PromptMean()], ids=str)
@pytest.mark.parametrize("micro_batch", [1, 2, 3, 8])
def test_the_scale_of_the_loss_is_that_of_the_batch(aggregate, micro_batch):
    """verl 3741, 7321; trl 5619, 5890: it depended on micro-batches and accumulation."""
    batch = check.draw(seed=1)
    objective = replace(presets.dapo, select=(), aggregate=aggregate)
    rows, _ = objective.prepare(batch)
    totals = objective.count(rows)
    parts = [{n: x[i : i + micro_batch] for n, x in rows.items()} for i in range(0, 8, micro_batch)]
    whole = objective.loss(rows, totals)
    assert abs(whole.item()) > 1e-3
    torch.testing.assert_close(sum(objective.loss(part, totals) for part in parts), whole)


def test_several_steps_a_rollout_batch_keep_the_scale_of_one():
    """trl 5619: with k optimizer steps each sees a k-th of the totals."""
    rows, _ = presets.rloo.prepare(check.draw(seed=1))
    totals = presets.rloo.count(rows)
    half = totals.scaled(0.5)
    assert half == Totals(totals.tokens / 2, totals.rows / 2, totals.groups / 2)
    torch.testing.assert_close(presets.rloo.loss(rows, half), 2 * presets.rloo.loss(rows, totals))


def test_totals_add_up_over_ranks():
    assert Totals(5, 2, 1) + Totals(3, 1, 1) == Totals(8, 3, 2)


@pytest.mark.parametrize("aggregate", [TokenMean(), SequenceMean(), ConstantLength(8), PromptMean()], ids=str)
def test_a_masked_row_or_batch_gives_zero_with_a_graph(aggregate):
    """open-instruct 1685, trl 3700, verl 782: 0 / 0."""
    objective = replace(presets.dapo, select=(), aggregate=aggregate)
    rows, _ = objective.prepare(BATCH | {"mask": torch.zeros_like(MASK)})
    logp = rows["logp"].clone().requires_grad_()
    loss = objective.loss(rows | {"logp": logp}, objective.count(rows))
    loss.backward()
    assert loss.item() == 0
    assert not logp.grad.any()


def test_constant_length_without_a_length_says_what_it_needs():
    objective = presets.dr_grpo
    rows, _ = objective.prepare({n: x for n, x in BATCH.items() if n != "length_limit"})
    with pytest.raises(ValueError, match=r"set length=\.\.\. or supply `length_limit`"):
        objective.loss(rows, objective.count(rows))


@pytest.mark.parametrize("length", [0, -5])
def test_a_length_that_is_not_positive_is_refused(length):
    with pytest.raises(ValueError, match=r"ConstantLength\.length must be None or a positive number"):
        ConstantLength(length)
