"""The objective as a whole: what reaches the rules, errors, warnings, state."""

from dataclasses import replace

import pytest
import torch

from isentrope import presets
from isentrope.penalty import EntropyBonus
from isentrope.select import HighEntropyTokens

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
