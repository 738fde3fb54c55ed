"""prime-rl: by the signature in its documentation, on stand-ins for its two dataclasses, as it is not on PyPI."""

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope import Objective, presets, spec
from isentrope.advantage import GroupRelative
from isentrope.correction import TruncatedImportance
from isentrope.engines import prime_rl
from isentrope.engines.loss_hook import EngineError
from isentrope.surrogate import ClipCov

from .batches import ROWS, make


@dataclass
class LossInputs:
    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = None


@dataclass
class LossOutputs:
    loss: Tensor
    metrics: dict[str, Tensor]


@pytest.fixture(autouse=True)
def _prime_rl(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("prime_rl.trainer.rl.loss")
    module.LossOutputs = LossOutputs
    for name in ("prime_rl", "prime_rl.trainer", "prime_rl.trainer.rl"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("name", ["ce_gppo", "gppo", "cispo", "rloo", "reinforce_pp"])
def test_the_sequences_sums_over_the_steps_tokens_are_the_objectives_loss(name: str) -> None:
    made, objective = make(), getattr(presets, name)
    prepared, _ = objective.prepare(made.columns)
    totals, found = objective.count(prepared), []
    for whole in (True, False):
        logp = made.logp.clone().requires_grad_()
        if whole:
            value = objective.loss(prepared | {"logp": logp}, totals)
        else:
            value = sum(prime_rl.loss(sequence(made, prepared, logp, i), objective=name).loss for i in range(ROWS))
            value = value / totals.tokens
        found.append((value, torch.autograd.grad(value, logp)[0]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-14)
    assert found[0][1].count_nonzero() > 10


def sequence(made: Any, prepared: dict[str, Tensor], logp: Tensor, i: int) -> LossInputs:
    c = made.columns
    return LossInputs(logp[i], c["old_logp"][i], None, prepared["advantage"][i], c["mask"][i])


def test_metrics_are_shares_of_the_sequences_tokens() -> None:
    made = make()
    prepared, _ = presets.ce_gppo.prepare(made.columns)
    metrics = prime_rl.loss(sequence(made, prepared, made.logp, 1), "ce_gppo").metrics
    rows = {n: x[1:2] for n, x in prepared.items()} | {"logp": made.logp[1:2]}
    low, high = presets.ce_gppo.clipped(rows)
    assert float(metrics["clip_low"]) == pytest.approx(float(low.sum() / rows["mask"].sum()))
    assert float(metrics["clip_high"]) == pytest.approx(float(high.sum() / rows["mask"].sum()))
    assert float(metrics["clip_low"] + metrics["clip_high"]) > 0


REFUSED: dict[str, tuple[Callable[[], Objective], str]] = {
    "rows weighed alike": (lambda: presets.grpo, "aggregate: prime-rl divides by the tokens of the step"),
    "a correction": (lambda: replace(presets.cispo, correction=TruncatedImportance()), "correction: prime-rl"),
    "early shaping": (lambda: presets.repo_d.at(presets.repo_d.init()), "shaping: prime-rl"),
    "a selection": (lambda: presets.dapo, r"select\.0: VaryingReward"),
    "several rows": (
        lambda: replace(presets.clip_cov, surrogate=ClipCov(scope="micro_batch")),
        "surrogate: ClipCov compares tokens of a micro-batch, and prime-rl calls row by row",
    ),
    "a controller": (lambda: presets.adapo, r"surrogate\.high is held by EntropyServo"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_prime_rl_cannot_host_is_refused_by_name(case: str) -> None:
    made, message = REFUSED[case]
    with pytest.raises(EngineError, match=message):
        prime_rl.loss(None, objective=spec.dumps(made()))


def test_the_advantage_slot_is_not_asked() -> None:
    assert prime_rl.refusals(replace(presets.ce_gppo, advantage=GroupRelative(eps=1.0))) == []
    assert prime_rl.refusals(replace(presets.ppo)) == []


def test_weights_of_a_loss_component_are_refused() -> None:
    made = make()
    weighted = replace(sequence(made, {"advantage": made.columns["value"]}, made.logp, 0), loss_weights=torch.ones(12))
    with pytest.raises(EngineError, match="loss_weights are set"):
        prime_rl.loss(weighted, "ce_gppo")
