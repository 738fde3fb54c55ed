"""Our head in TRL: the same numbers as TRL's, from the completion's positions alone."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM
from trl.trainer.utils import add_fused_lm_head

from isentrope import presets
from isentrope.engines import trl_head
from isentrope.engines.trl import OptionError
from isentrope.penalty import EntropyBonus

from .harness import MARKS, relative_distance

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::isentrope.engines.trl_options.InertObjectiveWarning")]

Make = Callable[..., Any]


def scored(model: LlamaForCausalLM, ours: bool, temperature: float = 1.0, entropy_gradient: bool = True) -> Any:
    """A model's fused output on two rows of which the first three tokens are a prompt."""
    if ours:
        with_ours = trl_head.taking_head("auto", entropy_gradient)
        with with_ours:
            from trl.trainer import grpo_trainer

            grpo_trainer.add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy"))
    else:
        add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy"))
    ids = torch.arange(3, 19).reshape(2, 8)
    labels = ids.clone()
    labels[:, :3] = -100
    labels[1, 6:] = -100
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, fused_lm_head=True)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_entropies_and_gradients_equal_trls(tiny: Make, temperature: float) -> None:
    models = tiny(), tiny()
    found, expected = (scored(m, ours, temperature) for m, ours in zip(models, (True, False), strict=True))
    torch.testing.assert_close(found.log_probs, expected.log_probs)
    torch.testing.assert_close(found.entropy, expected.entropy)
    assert torch.equal(found.label_mask, expected.label_mask)
    assert (found.log_probs[:, :2] == 0).all()
    for output in (found, expected):
        (output.log_probs.sum() + 0.3 * output.entropy.square().sum()).backward()
    for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_the_entropy_has_no_graph_where_no_rule_differentiates_it(tiny: Make) -> None:
    """slime 1523."""
    assert not scored(tiny(), ours=True, entropy_gradient=False).entropy.requires_grad


def test_only_the_labelled_positions_reach_the_head(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = trl_head.logprobs
    monkeypatch.setattr(
        trl_head, "logprobs", lambda hidden, *a, **kw: (seen.append(len(hidden)), original(hidden, *a, **kw))[1]
    )
    scored(tiny(), ours=True)
    assert seen == [5 + 3]


def test_no_label_at_all_gives_zeros_with_a_graph(tiny: Make) -> None:
    model = tiny()
    with trl_head.taking_head("auto", False):
        from trl.trainer import grpo_trainer

        grpo_trainer.add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.arange(3, 11)[None]
    found = model(input_ids=ids, labels=torch.full_like(ids, -100), fused_lm_head=True)
    assert found.log_probs.tolist() == [[0.0] * 7]
    found.log_probs.sum().backward()


@pytest.mark.parametrize("objective", [presets.ce_gppo, replace(presets.grpo, penalties=(EntropyBonus(coef=0.01),))])
def test_a_run_with_our_head_equals_one_with_trls(run: Make, objective: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = trl_head.logprobs
    monkeypatch.setattr(trl_head, "logprobs", lambda *a, **kw: (calls.append(1), original(*a, **kw))[1])
    ours = run(objective=objective)
    assert calls
    calls.clear()
    theirs = run(objective=objective, head="trl")
    assert not calls
    for mine, other in zip(ours.gradients, theirs.gradients, strict=True):
        assert relative_distance(mine, other) < 1e-4
    assert relative_distance(ours.parameters[-1], theirs.parameters[-1]) < 1e-5


def test_what_our_head_does_not_cover_goes_trls_way(tiny: Make) -> None:
    model = tiny()
    labels = {"labels": torch.zeros(1, 2)}
    assert trl_head.why_trl(model, "auto", labels) == ""
    assert "head='trl'" in trl_head.why_trl(model, "trl", labels)
    assert "router" in trl_head.why_trl(model, "auto", labels | {"output_router_logits": True})
    assert "shifted" in trl_head.why_trl(model, "auto", labels | {"shift_labels": torch.zeros(1, 2)})
    model.config.logits_scaling = 8.0
    assert "logits_scaling" in trl_head.why_trl(model, "auto", labels)
    weight = SimpleNamespace(device=torch.device("cuda"), is_floating_point=lambda: True)
    plain = tiny().config
    elsewhere = SimpleNamespace(config=plain, get_output_embeddings=lambda: SimpleNamespace(weight=weight))
    assert "Triton" in trl_head.why_trl(elsewhere, "auto", labels)
    assert trl_head.why_trl(elsewhere, "isentrope", labels) == ""


def test_an_unknown_head_is_refused(run: Make) -> None:
    with pytest.raises(OptionError, match="'fast'"):
        run(objective=presets.grpo, head="fast")


def test_autocast_reaches_our_head(tiny: Make) -> None:
    """Products in bfloat16, statistics in float32: not on bfloat16's grid."""
    from isentrope import precision

    with torch.autocast("cpu", torch.bfloat16):
        found = scored(tiny(), ours=True).log_probs.detach()
    exact = scored(tiny(), ours=True).log_probs.detach()
    assert found.dtype == torch.float32
    assert 0 < float((found - exact).abs().max()) < 0.2
    assert precision.on_grid(found) < 0.5
