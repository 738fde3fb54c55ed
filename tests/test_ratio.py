"""Ratios: the printed values, and whose gradient a sequence's ratio is."""

from dataclasses import replace

import pytest
import torch

from isentrope import check, presets
from isentrope.ratio import SequenceRatio, TokenRatio
from isentrope.surrogate import ImportanceWeighted

OLD = torch.full((2, 3), -1.0, dtype=torch.float64)
LOGP = OLD + torch.tensor([[0.1, -0.2, 0.05], [0.3, 9.0, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, False, False]])


def test_the_token_ratio_is_unbounded():
    found = TokenRatio()(logp=LOGP - 300, old_logp=OLD)
    assert found[0].tolist() == pytest.approx([-299.9, -300.2, -299.95])


def test_the_sequence_ratio_is_the_printed_one():
    found = SequenceRatio()(logp=LOGP, old_logp=OLD, mask=MASK)
    assert found[0].exp().tolist() == pytest.approx([0.98347] * 3, abs=1e-5)
    assert found[1, 0].item() == pytest.approx(0.3)  # molt 53: padding never enters


def test_the_gradient_of_a_sequence_ratio_is_the_tokens_own():
    logp = LOGP.clone().requires_grad_()
    ratio = SequenceRatio()(logp=logp, old_logp=OLD, mask=MASK)
    (gradient,) = torch.autograd.grad(ratio[0, 1], logp)
    assert gradient.tolist() == [[0, 1, 0], [0, 0, 0]]


def test_gspo_clips_by_the_ratio_of_the_sequence():
    """molt 53: bounds were put on token ratios. Here tokens leave the band, their sequence does not."""
    batch = check.draw(seed=1, rows=2, tokens=4, prompts=1) | {
        "reward": torch.tensor([1.0, 0.0], dtype=torch.float64),
        "mask": torch.ones(2, 4, dtype=torch.bool),
    }
    spread = torch.tensor([[0.5, -0.5, 0.1, -0.1], [-0.4, 0.4, 0.2, -0.2]], dtype=torch.float64)
    near = batch | {"logp": batch["old_logp"] + spread}
    prepared, _ = presets.gspo.prepare(near)
    totals = presets.gspo.count(prepared)
    assert (presets.gspo.weights(prepared, totals) != 0).all()
    above = prepared | {"logp": prepared["logp"] + torch.tensor([[5e-4], [-5e-4]])}
    assert not presets.gspo.weights(above, totals).any()


def test_gspos_gradient_is_that_of_the_sequence_objective():
    """Token form against eq. 5 of the paper, s_i A_i with s = exp(mean log-ratio), differentiated directly."""
    batch = check.draw(seed=2)
    objective = replace(presets.gspo, surrogate=ImportanceWeighted())
    prepared, _ = objective.prepare(batch)
    mask = prepared["mask"]
    logp = prepared["logp"].clone().requires_grad_()
    rows = mask.any(-1)
    mean = torch.where(mask, logp - prepared["old_logp"], 0).sum(-1)[rows] / mask.sum(-1)[rows]
    advantage = torch.stack([a[m][0] for a, m in zip(prepared["advantage"], mask, strict=True) if m.any()])
    (expected,) = torch.autograd.grad((mean.exp() * advantage).sum() / rows.sum(), logp)
    torch.testing.assert_close(objective.weights(prepared, objective.count(prepared)), expected, rtol=1e-10, atol=1e-13)
