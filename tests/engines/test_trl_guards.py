"""Guards of the TRL engine: each fault is found or cured, each guard can be switched off, none cries wolf."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope import presets
from isentrope.correction import TruncatedImportance
from isentrope.engines.trl import GuardError, NumericalClippingWarning, ObjectiveTrainer, SamplerMismatchWarning
from isentrope.engines.trl_guards import GUARDS

from .harness import MARKS

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::isentrope.engines.trl_options.InertObjectiveWarning")]
REUSE = {"num_iterations": 2, "learning_rate": 1e-3}


class Altered(ObjectiveTrainer):
    """Changes what a forward pass for the loss returns; passes without gradient stay as they are."""

    def alter(self, logp: Tensor) -> Tensor:
        raise NotImplementedError

    def _score(self, *args: Any, **kwargs: Any) -> Any:
        logp, entropy, aux = super()._score(*args, **kwargs)
        return (self.alter(logp) if logp.requires_grad else logp), entropy, aux


class ReturnsBfloat16(Altered):
    def alter(self, logp: Tensor) -> Tensor:
        return logp.bfloat16()


class RoundsToBfloat16(Altered):
    def alter(self, logp: Tensor) -> Tensor:
        return logp.bfloat16().float()


class RoundsToFloat16(Altered):
    def alter(self, logp: Tensor) -> Tensor:
        return logp.half().float()


class Shifts(Altered):
    """Every tenth token becomes 1.5 times as likely at its update."""

    def alter(self, logp: Tensor) -> Tensor:
        raised = torch.zeros(logp.numel())
        raised[::10] = 0.4
        return logp + raised.view_as(logp)


@pytest.mark.parametrize(
    ("trainer", "found"),
    [
        (ReturnsBfloat16, "are bfloat16 numbers"),
        (RoundsToBfloat16, r"were rounded to bfloat16: 100% of \d\d+ values"),
        (RoundsToFloat16, r"were rounded to float16: 100% of \d\d+ values"),
    ],
)
def test_log_probabilities_of_a_narrow_format_stop_the_run(run: Any, trainer: Any, found: str) -> None:
    with pytest.raises(GuardError, match=f"^float32_logp: .*{found}.*cast_lm_head_to_fp32"):
        run("grpo", trainer=trainer)


def test_few_tokens_a_micro_batch_are_judged_together(run: Any) -> None:
    options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "max_completion_length": 4}
    with pytest.raises(GuardError, match="were rounded to bfloat16"):
        run("grpo", options, trainer=RoundsToBfloat16)


@pytest.mark.parametrize("trainer", [ReturnsBfloat16, RoundsToBfloat16])
def test_the_guard_of_the_format_can_be_switched_off(run: Any, trainer: Any) -> None:
    done = run("grpo", {"max_steps": 1}, trainer=trainer, without_guards=("float32_logp",))
    assert len(done.gradients) == 1


def test_no_guard_speaks_in_a_float32_run(run: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumericalClippingWarning)
        done = run("ce_gppo", REUSE)
    assert done.trainer._guards._logp is None, "the format was judged"


def test_autocast_in_bfloat16_has_float32_statistics_and_trips_no_guard(run: Any) -> None:
    done = run("ce_gppo", REUSE | {"bf16": True})
    assert done.trainer.accelerator.mixed_precision == "bf16"
    assert done.trainer._guards._logp is None


def test_bfloat16_weights_have_float32_statistics_and_trip_no_guard(run: Any, tiny: Any) -> None:
    done = run("ce_gppo", REUSE, model=tiny().to(torch.bfloat16))
    assert done.trainer._guards._logp is None


def test_ratios_of_equal_weights_outside_the_band_are_said_once_with_their_share(run: Any) -> None:
    with pytest.warns(NumericalClippingWarning) as caught:
        run("ce_gppo", REUSE | {"max_steps": 5}, trainer=Shifts)
    (said,) = [str(w.message) for w in caught if w.category is NumericalClippingWarning]
    share = float(said.removeprefix("old_logp: ").split("%")[0])
    assert 6 < share < 14
    assert "(0.00% below" in said
    assert "isentrope probe" in said


def test_the_share_is_that_of_all_micro_batches_of_the_update(run: Any) -> None:
    options = REUSE | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 2}
    with pytest.warns(NumericalClippingWarning, match="clip band"):
        done = run("ce_gppo", options, trainer=Shifts)
    assert done.trainer._guards._outside == {}


def test_the_guard_of_old_log_probabilities_can_be_switched_off(run: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumericalClippingWarning)
        run("ce_gppo", REUSE, trainer=Shifts, without_guards=["old_logp"])


def test_old_log_probabilities_of_the_sampler_are_named_as_the_cause(
    run: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    class SamplersOwn(ObjectiveTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            return output | {"isentrope/old_logp": output["isentrope/rollout_logp"]}

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        ids = [[3, 4, 5 + i % 4, 1] for i in range(len(prompts))]
        return {
            "prompt_ids": tokenizer(prompts)["input_ids"],
            "completion_ids": ids,
            "logprobs": [[-1.0] * len(x) for x in ids],
        }

    with pytest.warns(NumericalClippingWarning, match="the sampler's, bit for bit"):
        run("ce_gppo", REUSE, trainer=SamplersOwn, rollout_func=rollout)


def make(tiny: Any, tokenizer: Any, prompts: Any, args: Any, objective: Any = "grpo", **more: Any) -> ObjectiveTrainer:
    from .conftest import length_reward

    return ObjectiveTrainer(
        tiny(), length_reward, args, prompts, processing_class=tokenizer, objective=objective, **more
    )


@pytest.mark.parametrize("options", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.1}])
def test_each_way_of_truncated_sampling_is_said(
    options: dict[str, Any], tiny: Any, tokenizer: Any, prompts: Any, config: Any
) -> None:
    with pytest.warns(SamplerMismatchWarning, match=f"{next(iter(options))}=.*guard `sampler`"):
        make(tiny, tokenizer, prompts, config(**options))


def test_a_correction_or_the_switch_silences_the_guard_of_the_sampler(
    tiny: Any, tokenizer: Any, prompts: Any, config: Any
) -> None:
    corrected = replace(presets.grpo, correction=TruncatedImportance())
    with warnings.catch_warnings():
        warnings.simplefilter("error", SamplerMismatchWarning)
        make(tiny, tokenizer, prompts, config(top_p=0.9), corrected)
        make(tiny, tokenizer, prompts, config(top_p=0.9), without_guards=("sampler",))


@pytest.mark.parametrize("without", [("float32",), "sampler", ["sampler", "old"]])
def test_unknown_names_of_guards_are_refused(
    without: Any, tiny: Any, tokenizer: Any, prompts: Any, config: Any
) -> None:
    with pytest.raises(ValueError, match=f"without_guards=.*{', '.join(GUARDS)}"):
        make(tiny, tokenizer, prompts, config(), without_guards=without)
