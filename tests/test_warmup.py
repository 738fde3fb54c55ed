"""A warm-up learns references: the policy's own tokens, by a schedule, the same for the same seed."""

import math

import pytest
import torch

from isentrope import models, tasks
from isentrope.errors import IsentropeError
from isentrope.tasks.base import Example
from isentrope.warmup import labelled, rate, warm_up


def fresh():
    return models.load("embedded", torch.float32)


def test_of_a_transcript_the_policys_lines_are_learnt_and_of_an_answer_all_of_it():
    _, tokenizer = fresh()
    apps, plain = tasks.get("apps"), tasks.get("countdown")

    def shown(task, example, reference):
        pairs = labelled(task, tokenizer, example, reference)
        text = tokenizer.decode([token for token, _ in pairs])
        return text, tokenizer.decode([token for token, is_own in pairs if is_own])

    example = Example("pay 1 8:", {}, "apps")
    assert shown(apps, example, "c?1\n47\nw>47,8\n+\n.") == (
        "pay 1 8:c?1\n47\nw>47,8\n+\n.<end>",
        "c?1\nw>47,8\n.<end>",
    )
    assert shown(plain, Example("1,2>3:", {}, "countdown"), "1+2=3") == ("1,2>3:1+2=3<end>", "1+2=3<end>")


def test_a_warm_up_lowers_the_loss_on_references_and_repeats_exactly():
    mix = tasks.get_mix("apps=3,addition=1")

    def run(seed=0):
        model, tokenizer = fresh()
        losses = {}
        model.eval()
        last = warm_up(model, tokenizer, mix, 12, 8, 32, 4e-3, seed, losses.__setitem__)
        assert not model.training
        assert list(losses) == list(range(1, 13))
        assert last == losses[12]
        return model, losses

    model, losses = run()
    again, same = run()
    assert losses == same
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert losses[12] < 0.6 * losses[1]
    assert run(seed=1)[1] != losses


def test_the_rate_rises_to_its_peak_and_falls_to_nothing():
    rates = [rate(step, 200, 3e-3) for step in range(200)]
    assert rates[:2] == pytest.approx([3e-3 / 20, 6e-3 / 20])
    assert max(rates) == rates[19] == rates[20] == 3e-3
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[110] == pytest.approx(1.5e-3)
    assert rate(0, 1, 1.0) == 1.0


def test_a_task_without_references_cannot_be_warmed_up_on():
    class Bare:
        name = "bare"

        def examples(self, split, count, seed):
            return [Example("1:", 1, "bare")] * count

    model, tokenizer = fresh()
    with pytest.raises(IsentropeError, match=r"task bare has no references to warm up on; set warmup\.steps = 0"):
        warm_up(model, tokenizer, [(Bare(), 1.0)], 1, 2, 2, 1e-3, 0)


def test_no_steps_change_nothing():
    model, tokenizer = fresh()
    before = [p.clone() for p in model.parameters()]
    assert math.isnan(warm_up(model, tokenizer, tasks.get_mix("addition"), 0, 2, 2, 1e-3, 0))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
