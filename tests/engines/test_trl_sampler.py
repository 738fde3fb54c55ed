"""The rollout function that reads a prompt once for its group."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from isentrope import presets
from isentrope.engines import trl_sampler
from isentrope.engines.trl import ObjectiveTrainer, OptionError
from isentrope.engines.trl_sampler import serves, shared_prefill
from isentrope.rollout import Rollout

from .harness import MARKS

pytestmark = [
    *MARKS,
    pytest.mark.filterwarnings("ignore::isentrope.engines.trl_options.InertObjectiveWarning"),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func'"),
    pytest.mark.filterwarnings("ignore::isentrope.engines.trl_options.SamplerMismatchWarning"),
]

Make = Callable[..., Any]
SEVERAL = {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 4}


def test_a_prompt_is_read_once_for_its_group(run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    original = trl_sampler.continue_ids

    def watched(model: Any, tokenizer: Any, encoded: Any, num_samples: int, *args: Any, **kw: Any) -> Any:
        seen.append((len(encoded), num_samples))
        return original(model, tokenizer, encoded, num_samples, *args, **kw)

    monkeypatch.setattr(trl_sampler, "continue_ids", watched)
    run(objective=presets.ce_gppo, options=SEVERAL, rollout_func=shared_prefill)
    assert seen == [(4, 4)]  # 16 rows of 4 prompts, sampled once for 4 updates


def test_completions_belong_to_their_prompts(tiny: Make, config: Make, prompts: Any, tokenizer: Any) -> None:
    """Greedy decoding of each prompt by transformers gives what sampling at a tiny temperature gives here."""
    trainer = ObjectiveTrainer(
        tiny(),
        reward_funcs=lambda completion_ids, **kw: [0.0] * len(completion_ids),
        args=config(temperature=1e-4),
        train_dataset=prompts,
        processing_class=tokenizer,
        objective=presets.grpo,
        rollout_func=shared_prefill,
    )
    asked = [prompts[i]["prompt"] for i in (0, 0, 9, 9, 9, 31, 17, 17)]  # groups of different and of equal sizes
    found = shared_prefill(asked, trainer)
    for prompt, ids, completion in zip(asked, found["prompt_ids"], found["completion_ids"], strict=True):
        assert ids == tokenizer(prompt)["input_ids"]
        given = torch.tensor([ids])
        expected = trainer.model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=6, do_sample=False, temperature=None
        )[0, len(ids) :]
        assert completion == expected.tolist()
    assert found["completion_ids"][0] != found["completion_ids"][-1]


def test_old_and_current_policy_agree_on_what_was_sampled(run: Make) -> None:
    """The first update after a rollout has ratios of 1 where TRL scores the rollout by itself."""
    done = run(objective=presets.repo_d, options=SEVERAL, rollout_func=shared_prefill)
    assert done.logged("ratio/mean")[0] == pytest.approx(1.0, abs=1e-5)


def test_a_resumed_run_samples_what_the_uninterrupted_one_would_have(run: Make, tmp_path: Any) -> None:
    options = SEVERAL | {"max_steps": 8, "save_strategy": "steps", "save_steps": 4, "output_dir": str(tmp_path / "a")}
    whole = run(objective=presets.ce_gppo, options=options, rollout_func=shared_prefill)
    again = run(
        objective=presets.ce_gppo,
        options=options | {"output_dir": str(tmp_path / "b")},
        rollout_func=shared_prefill,
        resume=str(tmp_path / "a" / "checkpoint-4"),
    )
    assert len(again.parameters) == 4
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters[4:], again.parameters, strict=True))


def test_it_samples_at_the_temperature_of_the_rollout(run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float]] = []
    original = trl_sampler.continue_ids

    def watched(model: Any, tokenizer: Any, encoded: Any, *args: Any, temperature: float, **kw: Any) -> Any:
        seen.append((len(encoded), temperature))
        return original(model, tokenizer, encoded, *args, temperature=temperature, **kw)

    monkeypatch.setattr(trl_sampler, "continue_ids", watched)
    part = replace(presets.arbitrary_entropy, rollout=Rollout(temperature=1.3, share=0.5))
    run(objective=part, options=SEVERAL, rollout_func=shared_prefill)
    assert sorted(seen) == [(2, 1.0), (2, 1.3)]


@pytest.mark.parametrize("options", [{"top_p": 0.9}, {"generation_kwargs": {"num_beams": 2}}])
def test_what_it_would_ignore_is_refused(run: Make, config: Make, options: dict[str, Any]) -> None:
    assert not serves(config(**options))
    with pytest.raises(OptionError, match="would be ignored"):
        run(objective=presets.grpo, options=options, rollout_func=shared_prefill)


def test_plain_options_are_served(config: Make) -> None:
    assert serves(config())
