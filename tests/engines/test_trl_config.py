"""Configurations of TRL's command line: every key is translated, passed on or refused, and the run is TRL's own."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from trl import DatasetMixtureConfig, GRPOConfig, ModelConfig, TrlParser
from trl.scripts.grpo import GRPOScriptArguments

from isentrope import presets, recipe, spec
from isentrope.engines import trl_config, trl_config_objective
from isentrope.errors import IsentropeError

from .harness import relative_distance
from .test_trl_parity import Case, assert_same_run, both

NEEDED = {"model_name_or_path": "embedded", "dataset_name": "countdown", "max_steps": 12}


def read(text: str, folder: Path, name: str = "grpo.yaml") -> dict[str, Any]:
    (folder / name).write_text(text, encoding="utf-8")
    return trl_config.read(folder / name)


def resolved(processes: int = 1, **keys: Any) -> recipe.Recipe:
    return recipe.resolve(trl_config.to_table(NEEDED | keys, "it", processes=processes), "it")


def refusal(**keys: Any) -> str:
    with pytest.raises(IsentropeError) as caught:
        resolved(**keys)
    return str(caught.value)


# -- every key of TRL is known


def test_every_key_of_trls_command_line_is_known_and_no_other():
    kinds = (GRPOScriptArguments, GRPOConfig, ModelConfig, DatasetMixtureConfig)
    theirs = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert theirs - trl_config.KNOWN == set()
    ours = {"objective", "env", "accelerate_config", "num_processes"}  # the last three are read before TRL's parser
    assert trl_config.KNOWN - theirs - ours <= set(trl_config.HONOURED)  # of other releases of transformers


def test_defaults_are_trls_own():
    (script, config, model) = TrlParser((GRPOScriptArguments, GRPOConfig, ModelConfig)).parse_args_into_dataclasses(
        args=["--output_dir", "x", "--use_cpu", "--bf16", "False"]
    )
    for key, value in trl_config.DEFAULTS.items():
        assert getattr(config, key) == value, key
    for key, value in trl_config_objective.DEFAULTS.items():
        assert getattr(config, key) == value, key
    assert (script.dataset_train_split, model.dtype) == ("train", "float32")


# -- what becomes of the keys


def test_a_file_that_says_little_has_trls_defaults_and_not_the_recipes():
    found = resolved()
    loop = found.trainer
    assert found.seed == 42
    assert (loop.steps, loop.learning_rate, loop.lr_schedule, loop.max_completion_length) == (12, 1e-6, "linear", 512)
    assert (loop.prompts, loop.group_size, loop.minibatches, loop.micro_batch, loop.passes) == (1, 8, 1, 8, 1)
    assert found.output.checkpoint_every == 500
    assert found.trl == {}
    assert [task.name for task in found.task] == ["countdown"]


def test_keys_of_the_loop_become_keys_of_the_recipe():
    found = resolved(
        seed=3,
        dtype="bfloat16",
        learning_rate=2e-5,
        lr_scheduler_type="cosine",
        warmup_steps=0.25,
        max_grad_norm=0.5,
        num_iterations=2,
        max_completion_length=64,
        temperature=0.7,
        output_dir="runs/x",
        report_to="tensorboard",
        save_steps=0.3,
        save_total_limit=5,
    )
    assert (found.seed, found.model.dtype, found.model.name) == (3, "bfloat16", "embedded")
    loop = found.trainer
    assert (loop.learning_rate, loop.lr_schedule, loop.warmup_steps, loop.max_grad_norm) == (2e-5, "cosine", 3, 0.5)
    assert (loop.passes, loop.max_completion_length, loop.temperature) == (2, 64, 0.7)
    output = found.output
    assert (output.dir, output.report_to, output.checkpoint_every, output.keep_checkpoints) == (
        "runs/x",
        ["tensorboard"],
        4,
        5,
    )


@pytest.mark.parametrize(
    ("keys", "processes", "expected"),
    [  # prompts, mini-batches, micro-batch
        ({"gradient_accumulation_steps": 4}, 1, (4, 1, 8)),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 8}, 1, (8, 2, 8)),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 8}, 2, (16, 4, 16)),
        ({"generation_batch_size": 64, "num_generations": 4}, 2, (16, 4, 16)),
    ],
)
def test_batches_are_counted_over_all_processes(keys: Any, processes: int, expected: Any):
    loop = resolved(processes, **keys).trainer
    assert (loop.prompts, loop.minibatches, loop.micro_batch) == expected


@pytest.mark.engine
@pytest.mark.parametrize("keys", [{"gradient_accumulation_steps": 2, "steps_per_generation": 8, "num_iterations": 2}])
def test_the_host_gets_the_numbers_that_the_file_gave(keys: Any, tmp_path: Path):
    from isentrope.cli._session import grpo_config
    from isentrope.record import RunFolder

    args = grpo_config(resolved(**keys, weight_decay=0.1, adam_beta2=0.95), RunFolder(tmp_path))
    for key, value in (keys | {"weight_decay": 0.1, "adam_beta2": 0.95, "per_device_train_batch_size": 8}).items():
        assert getattr(args, key) == value, key


def test_what_trl_itself_honours_goes_on_to_it():
    keys = {"weight_decay": 0.1, "top_p": 0.9, "use_vllm": True, "mask_truncated_completions": True, "adam_beta2": 0.95}
    assert resolved(**keys).trl == keys


def test_a_set_with_trls_accuracy_reward_is_the_task_math():
    (task,) = resolved(
        dataset_name="trl-lib/DeepMath-103K", dataset_config="default", reward_funcs=["accuracy_reward"]
    ).task
    assert task.name == "math"
    assert task.options == {
        "hub": "trl-lib/DeepMath-103K",
        "hub_config": "default",
        "problem": "prompt",
        "answer": "solution",
    }


def test_adapters_are_those_of_the_recipe():
    given = {"use_peft": True, "lora_dropout": 0.0, "lora_target_modules": ["all-linear"], "lora_r": 4}
    lora = resolved(**given).model.lora
    assert (lora.rank, lora.alpha, lora.targets) == (4, 32, "all-linear")


def test_neutral_values_of_what_is_not_honoured_pass():
    keys = {
        "use_peft": False,
        "push_to_hub": False,
        "eval_strategy": "no",
        "logging_steps": 1,
        "model_revision": "main",
    }
    assert resolved(**keys) == resolved()


@pytest.mark.parametrize(
    ("keys", "names", "advice"),
    [
        ({"use_peft": True}, "use_peft", "set lora_dropout to 0"),
        ({"use_peft": True, "lora_dropout": 0.0}, "lora_target_modules", "all-linear"),
        ({"lora_r": 16}, "lora_r", "use_peft"),
        ({"use_dora": True}, "use_dora", "peft_config"),
        ({"bnb_4bit_quant_type": "nf4"}, "bnb_4bit_quant_type", "peft_config"),
        ({"load_in_4bit": True}, "load_in_4bit", "peft_config"),
        ({"eval_strategy": "steps"}, "eval_strategy", "evaluation.problems"),
        ({"num_train_epochs": 1}, "num_train_epochs", "max_steps"),
        ({"logging_steps": 10}, "logging_steps", "leave it out"),
        ({"logging_steps": True}, "logging_steps", "leave it out"),  # True == 1
        ({"push_to_hub": True}, "push_to_hub", "upload"),
        ({"resume_from_checkpoint": "x"}, "resume_from_checkpoint", "--resume"),
        ({"env": {"A": "b"}}, "env", "export"),
        ({"accelerate_config": "zero3"}, "accelerate_config", "accelerate launch"),
        ({"datasets": [{"path": "a"}]}, "datasets", "[[task]]"),
        ({"attn_implementation": "flash_attention_2"}, "attn_implementation", "leave it out"),
        ({"model_init_kwargs": {"revision": "x"}}, "model_init_kwargs", "dtype"),
        ({"dtype": "auto"}, "dtype", "float32"),
        ({"lr_scheduler_type": "polynomial"}, "lr_scheduler_type", "cosine"),
        ({"report_to": "all"}, "report_to", "tensorboard"),
        ({"save_strategy": "epoch"}, "save_strategy", "steps or no"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor", "ignores it"),
        ({"reward_funcs": ["accuracy_reward"]}, "reward_funcs", "leave it out"),
        ({"dataset_name": "a/b", "reward_funcs": ["think_format_reward"]}, "reward_funcs", "file.py:name"),
        ({"dataset_name": "a/b"}, "reward_funcs", "file.py:name"),
        ({"generation_batch_size": 8, "steps_per_generation": 1}, "generation_batch_size", "one of them"),
        ({"num_generations": 3}, "num_generations", "multiple"),
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, "rollout batch of 24", "multiple"),
        ({"gradient_accumulation_steps": "two"}, "gradient_accumulation_steps", "whole number"),
        ({"max_steps": -1}, "max_steps", "set it above 0"),
        ({"warmup_steps": -1}, "warmup_steps", "share"),
        ({"learning_rte": 1}, "learning_rte", "did you mean 'learning_rate'?"),
        ({"loss_type": "vespo"}, "loss_type", "file.py:name"),
        ({"loss_type": "bnpo"}, "loss_type", "dapo"),
        ({"loss_type": "typo"}, "loss_type", "dr_grpo"),
        ({"loss_type": "cispo"}, "epsilon_high", "above 1"),
        ({"beta": 0.04}, "use_bias_correction_kl", "false"),
        ({"loss_type": "grpo", "entropy_coef": 0.01}, "entropy_coef", "dapo"),
        ({"loss_type": "dr_grpo", "use_adaptive_entropy": True}, "use_adaptive_entropy", "dapo"),
        ({"vespo_k_pos": 1.0}, "vespo_k_pos", "leave it out"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold", "leave it out"),
        ({"scale_rewards": "rank"}, "scale_rewards", "batch"),
        ({"sapo_temperature_pos": 2.0}, "sapo_temperature_pos", "loss_type = sapo"),
        ({"entropy_target": 0.3}, "entropy_target", "use_adaptive_entropy"),
        ({"epsilon": -1}, "objective", "low"),
        ({"objective": "gepo", "epsilon": 0.2}, "epsilon", "leave epsilon out"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_honoured_is_refused_by_name_with_what_to_do(keys: Any, names: str, advice: str):
    message = refusal(**keys)
    assert message.startswith("it: ")
    assert names in message
    assert advice in message


@pytest.mark.parametrize("key", NEEDED)
def test_what_a_run_cannot_do_without_is_asked_for(key: str):
    with pytest.raises(IsentropeError, match=f"{key} is missing"):
        trl_config.to_table({name: value for name, value in NEEDED.items() if name != key}, "it")


# -- the objective


def test_a_named_objective_takes_the_place_of_trls_keys(tmp_path: Path):
    assert resolved(objective="ce_gppo").objective == "ce_gppo"
    table = trl_config.to_table(NEEDED | {"objective": "rule.py:mine"}, "it", tmp_path)
    assert table["objective"] == str(tmp_path / "rule.py:mine")


def test_the_command_line_takes_the_place_of_what_the_file_says_of_an_objective():
    table = trl_config.to_table(NEEDED | {"loss_type": "grpo", "epsilon": 0.3}, "it", objective="gepo")
    assert recipe.resolve(table, "it").objective == "gepo"


def test_trls_dr_grpo_is_our_preset():
    assert spec.load(resolved(loss_type="dr_grpo", scale_rewards=False).objective) == presets.dr_grpo


LOSSES = {
    "defaults": {},
    "clip-higher, batch scale": {"epsilon_high": 0.28, "scale_rewards": "batch"},
    "dual clip": {"loss_type": "grpo", "epsilon": 0.01, "delta": 1.02},
    "sequence ratios": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.05},
    "sapo": {"loss_type": "sapo", "sapo_temperature_neg": 1.5},
}
# Terms beside the loss. TRL's bonus is a mean over each micro-batch, which is ours where completions are equally long,
# as in the first rollout; a KL of 100 nats makes rounding errors grow beyond it.
TERMS = {
    "reference": {"beta": 0.05, "use_bias_correction_kl": False},
    "entropy": {"entropy_coef": 0.02},
}


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_the_objective_that_a_file_describes_has_trls_gradients(
    name: str, tiny: Callable[[], Any], config: Any, prompts: Dataset, tokenizer: Any
):
    objective = spec.load(resolved(**LOSSES[name]).objective)
    case = Case(objective, LOSSES[name])
    assert_same_run(*both(case, "several updates a rollout", tiny, config, prompts, tokenizer))


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("name", TERMS)
def test_terms_beside_the_loss_have_trls_gradients(
    name: str, tiny: Callable[[], Any], config: Any, prompts: Dataset, tokenizer: Any
):
    case = Case(spec.load(resolved(**TERMS[name]).objective), TERMS[name])
    stock, ours = both(case, "several updates a rollout", tiny, config, prompts, tokenizer)
    for mine, theirs in list(zip(ours.gradients, stock.gradients, strict=True))[:4]:
        assert relative_distance(mine, theirs) < 1e-4
    losses = stock.logged("loss")[:4]
    assert ours.logged("loss")[:4] == pytest.approx(losses, rel=1e-4)
    assert max(map(abs, losses)) > 0.05, "the term must be seen: the clipped loss alone is about .02"


# -- files


def test_yaml_is_read_as_its_author_meant_it(tmp_path: Path):
    found = read("learning_rate: 1e-6\nadam_beta1: .9\noptim_args: a=1e\nwarmup_steps: 3\n", tmp_path)
    assert found == {"learning_rate": 1e-6, "adam_beta1": 0.9, "optim_args": "a=1e", "warmup_steps": 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1", "not YAML in line"),
        ("- 1\n- 2\n", "no table"),
        ("1: 2\n", "no table"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
        ("[" * 900, "nested too deeply"),
        ("a: &a [*a]", "nested more than"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: &d [*c, *c]\ne: [[[*d]]]", "nested more than"),
    ],
)
def test_a_file_that_is_no_table_is_refused(text: str, expected: str, tmp_path: Path):
    with pytest.raises(IsentropeError, match=expected):
        read(text, tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(IsentropeError, match=r"nowhere.yaml: No such file.*; give a recipe"):
        trl_config.read(tmp_path / "nowhere.yaml")


def test_a_file_is_of_trls_kind_by_its_keys(tmp_path: Path):
    assert trl_config.is_trl(Path("a.yml"), {"seed": 1})
    assert trl_config.is_trl(Path("a.toml"), {"seed": 1, "max_steps": 2})
    assert not trl_config.is_trl(Path("a.toml"), {"seed": 1, "objective": "gepo", "trainer": {}})
    for name in recipe.names():
        assert not trl_config.is_trl(Path("a.toml"), recipe.load(name).model_dump())


def test_assignments_reach_the_file_or_the_recipe_by_their_key():
    config = dict(NEEDED)
    left = trl_config.assigned(config, ["learning_rate=3e-5", "evaluation.problems=0", "seed=7"])
    assert config["learning_rate"] == 3e-5
    assert left == ["evaluation.problems=0", "seed=7"]


def test_choices_of_the_command_line_take_the_place_of_keys():
    config: dict[str, Any] = {"dataset_name": "a/b", "reward_funcs": ["x"]}
    left = trl_config.replaced(
        config, {"trainer.steps": 3, "model.name": "embedded", "task": [{"name": "digitsum"}], "seed": 1}
    )
    assert left == {"seed": 1}
    found = recipe.resolve(trl_config.to_table(config, "it"), "it", (), left)
    assert (found.trainer.steps, found.model.name, found.task[0].name, found.seed) == (3, "embedded", "digitsum", 1)
