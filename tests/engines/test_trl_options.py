"""Every option of TRL is honoured, replaced by a slot, or refused; none is silently ignored."""

import dataclasses
import warnings
from typing import Any

import pytest
from transformers import TrainingArguments
from trl import GRPOConfig

from isentrope import presets
from isentrope.engines.trl import ObjectiveTrainer, OptionError, SamplerMismatchWarning
from isentrope.engines.trl_options import HONOURED, REFUSED, REPLACED, check_options, sampler_mismatches

from .conftest import length_reward
from .harness import MARKS

pytestmark = MARKS

FIELDS = {f.name for f in dataclasses.fields(GRPOConfig)}

# a value other than the default, for each option that is refused
OTHER_VALUES: dict[str, Any] = {
    "beta": 0.04,
    "epsilon": 0.1,
    "epsilon_high": 0.28,
    "delta": 4.0,
    "sapo_temperature_neg": 1.0,
    "sapo_temperature_pos": 1.1,
    "vespo_k_pos": 1.0,
    "vespo_lambda_pos": 1.0,
    "vespo_k_neg": 1.0,
    "vespo_lambda_neg": 1.0,
    "importance_sampling_level": "sequence",
    "multi_objective_aggregation": "normalize_then_sum",
    "scale_rewards": False,
    "loss_type": "grpo",
    "top_entropy_quantile": 0.2,
    "entropy_coef": 0.01,
    "use_adaptive_entropy": True,
    "entropy_coef_min": 0.1,
    "entropy_coef_max": 0.5,
    "entropy_coef_delta": 0.1,
    "entropy_target": 1.0,
    "off_policy_mask_threshold": 0.5,
    "use_bias_correction_kl": False,
    "label_smoothing_factor": 0.1,
    "train_sampling_strategy": "sequential",
    "include_for_metrics": ["loss"],
    "batch_eval_metrics": True,
}


def test_every_field_of_the_installed_trl_is_in_exactly_one_table() -> None:
    tables = [HONOURED, frozenset(REPLACED), frozenset(REFUSED)]
    unknown = FIELDS - frozenset().union(*tables)
    assert not unknown, f"new options of TRL: {sorted(unknown)}; read their code and classify them in trl_options"
    assert not frozenset().union(*tables) - FIELDS, "the tables name options that TRL no longer has"
    assert sum(map(len, tables)) == len(FIELDS)


def test_the_tables_know_options_of_their_own_kind() -> None:
    inherited = {f.name for f in dataclasses.fields(TrainingArguments)}
    assert not inherited & set(REPLACED), "the objective replaces options of TRL alone"
    assert set(OTHER_VALUES) == set(REPLACED) | set(REFUSED)


def test_a_configuration_at_its_defaults_passes(config: Any) -> None:
    check_options(config())


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_an_option_off_its_default_is_refused_by_name_value_and_slot(name: str, config: Any) -> None:
    with pytest.raises(OptionError) as caught:
        check_options(config(**{name: OTHER_VALUES[name]}))
    message = str(caught.value)
    assert message.startswith(f"{name}=")
    if name in REPLACED:
        assert REPLACED[name][0] in message
        assert "{" not in message
        assert message.endswith(f"in the objective, as in replace(presets.grpo, {REPLACED[name][0]}=...)")


def test_an_option_of_a_newer_trl_is_refused_only_when_set(config: Any) -> None:
    newer = dataclasses.make_dataclass("Newer", [("brand_new", float, 1.0)], bases=(GRPOConfig,))
    quiet = {"output_dir": config().output_dir, "report_to": "none", "use_cpu": True, "bf16": False}
    quiet["activation_checkpointing"] = False
    check_options(newer(**quiet))
    with pytest.raises(OptionError, match=r"brand_new=2\.0: .* TRL 1\.16"):
        check_options(newer(**quiet, brand_new=2.0))


def test_a_sampling_temperature_beside_the_option_is_refused(config: Any) -> None:
    with pytest.raises(OptionError, match=r"generation_kwargs has temperature=0\.7 but .* taken at 1\.0"):
        check_options(config(generation_kwargs={"temperature": 0.7}))


def test_options_that_truncate_sampling_are_found(config: Any) -> None:
    assert sampler_mismatches(config()) == []
    assert sampler_mismatches(config(top_p=0.9)) == ["top_p=0.9"]
    assert sampler_mismatches(config(generation_kwargs={"top_k": 5})) == ["top_k=5"]


def test_the_trainer_refuses_before_it_loads_anything(config: Any) -> None:
    with pytest.raises(OptionError, match=r"epsilon=0\.1: .*`surrogate`"):
        ObjectiveTrainer("no/such/model", length_reward, config(epsilon=0.1), objective=presets.grpo)


@pytest.mark.filterwarnings("ignore::isentrope.engines.trl_options.InertObjectiveWarning")
def test_truncated_sampling_is_said(tiny: Any, tokenizer: Any, prompts: Any, config: Any) -> None:
    with pytest.warns(SamplerMismatchWarning, match=r"top_p=0\.9: completions are not drawn from softmax"):
        ObjectiveTrainer(
            tiny(),
            length_reward,
            config(top_p=0.9),
            prompts,
            processing_class=tokenizer,
            objective="grpo",
        )


def test_the_options_that_liger_kernels_need_go_to_trl(config: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_options(config(use_liger_kernel=True))  # layer kernels; TRL itself refuses the fused loss
