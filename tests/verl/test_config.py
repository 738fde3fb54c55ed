"""A recipe as verl's configuration: what goes where, what is refused, what verl itself makes of the result."""

import math
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="needs verl 0.9 (make verl)")

from isentrope import presets, recipe, spec
from isentrope.engines import verl_config, verl_laptop, verl_table
from isentrope.engines.verl_config import Layout, batches, configuration, in_rollouts, settings
from isentrope.errors import IsentropeError

pytestmark = pytest.mark.engine
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def _recipe(*assignments, laptop=True):
    return recipe.load("verl", [f"laptop={str(laptop).lower()}", *assignments])


def _settings(*assignments, laptop=True, objective=presets.ce_gppo, **changes):
    given = {"model": "the/model", "longest_prompt": 11, "plain": True} | changes
    return settings(_recipe(*assignments, laptop=laptop), objective, Layout(Path("run")), **given)


def _refusal(function, *arguments, **keywords):
    with pytest.raises(IsentropeError) as caught:
        function(*arguments, **keywords)
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- every key has its place


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("trainer.prompts=128", "data.train_batch_size", 128),
        ("trainer.group_size=4", f"{ROLLOUT}.n", 4),
        ("trainer.minibatches=2", f"{ACTOR}.ppo_mini_batch_size", 32),
        ("trainer.passes=1", f"{ACTOR}.ppo_epochs", 1),
        ("trainer.micro_batch=32", f"{ACTOR}.ppo_micro_batch_size_per_gpu", 32),
        ("trainer.micro_batch=32", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", 32),
        ("trainer.learning_rate=1e-3", f"{ACTOR}.optim.lr", 1e-3),
        ("trainer.lr_schedule=cosine", f"{ACTOR}.optim.lr_scheduler_type", "cosine"),
        ("trainer.lr_schedule=constant_with_warmup", f"{ACTOR}.optim.lr_scheduler_type", "constant"),
        ("trainer.warmup_steps=16", f"{ACTOR}.optim.lr_warmup_steps", 2),
        ("trainer.max_grad_norm=0.5", f"{ACTOR}.optim.clip_grad", 0.5),
        ("trainer.max_grad_norm=0", f"{ACTOR}.optim.clip_grad", math.inf),
        ("trainer.max_completion_length=9", "data.max_response_length", 9),
        ("trainer.temperature=0.7", f"{ROLLOUT}.temperature", 0.7),
        ("trainer.steps=80", "trainer.total_training_steps", 10),
        ("seed=3", "data.seed", 3),
        ("seed=3", f"{ROLLOUT}.seed", 3),
        ("seed=3", f"{ACTOR}.data_loader_seed", 3),
        ("output.checkpoint_every=40", "trainer.save_freq", 5),
        ("output.checkpoint_every=0", "trainer.save_freq", 20),
        ("output.keep_checkpoints=5", "trainer.max_actor_ckpt_to_keep", 5),
        ("output.report_to=['wandb']", "trainer.logger", ["console", "file", "wandb"]),
        ("evaluation.problems=0", "trainer.test_freq", -1),
        ("evaluation.problems=7", "trainer.test_freq", 20),
        ("evaluation.samples=3", f"{ROLLOUT}.val_kwargs.n", 3),
        ("evaluation.temperature=0.5", f"{ROLLOUT}.val_kwargs.temperature", 0.5),
        ("verl.trainer.n_gpus_per_node=2", "trainer.n_gpus_per_node", 2),
        ("verl.trainer.n_gpus_per_node=2", f"{ACTOR}.ppo_micro_batch_size_per_gpu", 64),
        ("verl.actor_rollout_ref.actor.optim.weight_decay=0.1", f"{ACTOR}.optim.weight_decay", 0.1),
    ],
)
def test_a_key_of_the_recipe_becomes_a_key_of_verl(assignment, key, value):
    assert _settings(assignment)[key] == value


@pytest.mark.parametrize(("dtype", "compute"), [("float32", "fp32"), ("bfloat16", "bf16"), ("float16", "fp16")])
def test_the_models_format_is_that_of_weights_compute_and_rollout(dtype, compute):
    found = _settings(f"model.dtype={dtype}", laptop=False)
    assert found[f"{ACTOR}.fsdp_config.model_dtype"] == compute
    assert found[f"{ACTOR}.fsdp_config.mixed_precision"]["param_dtype"] == compute
    assert found[f"{ACTOR}.fsdp_config.mixed_precision"]["reduce_dtype"] == "fp32"
    assert found[f"{ROLLOUT}.dtype"] == dtype


def test_every_key_of_a_section_changes_something_or_is_refused():
    changed = {
        "trainer": {
            "steps": 80, "problems": 65, "prompts": 32, "group_size": 4, "minibatches": 2, "passes": 1,
            "micro_batch": 64, "learning_rate": 1.0, "lr_schedule": "cosine", "warmup_steps": 8, "max_grad_norm": 2.0,
            "max_completion_length": 3, "temperature": 0.3, "threads": 3,
        },
        "evaluation": {"problems": 0, "samples": 2, "temperature": 0.3},
        "output": {
            "dir": "x", "checkpoint_every": 8, "keep_checkpoints": 7, "tokens_every": 8, "report_to": ["wandb"],
        },
        "model": {"name": "x", "dtype": "bfloat16"},
    }  # fmt: skip
    refused = {
        "trainer": {
            "sampler": "transformers",
            "order": "stratified",
            "reward_time_limit": 1.0,
            "without_guards": ["old_logp"],
        },
        "evaluation": {"batch": 3},
        "output": {"diagnostics_every": 8},
        "model": {"lora.rank": 4},
    }
    elsewhere = {"problems", "threads", "dir", "name"}  # the parquet file, the environment, paths
    base = _settings(laptop=False)
    for section, keys in changed.items():
        model = recipe.Recipe.model_fields[section].annotation
        assert keys.keys() | {name.partition(".")[0] for name in refused[section]} == set(model.model_fields), section
        for name, value in keys.items():
            text = f'"{value}"' if isinstance(value, str) else value
            assert (_settings(f"{section}.{name}={text}", laptop=False) != base) == (
                name not in elsewhere or (section, name) == ("evaluation", "problems")
            ), name
        for name, value in refused[section].items():
            text = f'"{value}"' if isinstance(value, str) else value
            assert name.rpartition(".")[2] in _refusal(_settings, f"{section}.{name}={text}")


def test_the_objective_arrives_as_text_that_reads_back():
    found = _settings(objective=presets.adapo)
    assert spec.load(found[f"{ACTOR}.policy_loss.objective"]) == presets.adapo
    assert found[f"{ACTOR}.policy_loss.loss_mode"] == "isentrope"
    assert found["trainer.v1.trainer_mode"] == "isentrope"


def test_texts_pass_through_no_chat_template_and_chats_through_the_models_own():
    key = "actor_rollout_ref.model.custom_chat_template"
    assert "message['content']" in _settings(plain=True)[key]
    assert key not in _settings(plain=False)


def test_the_users_own_keys_are_the_last_word():
    found = _settings(f"verl.{ACTOR}.strategy=fsdp", f"verl.{ROLLOUT}.name=vllm")
    assert found[f"{ACTOR}.strategy"] == "fsdp"
    assert found[f"{ROLLOUT}.name"] == "vllm"


# -- what is refused


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["trainer.lr_schedule=linear"], "trainer.lr_schedule = 'linear' cannot be had with engine verl"),
        (["trainer.sampler=shared_prefill"], "trainer.sampler = 'shared_prefill' cannot be had"),
        (["output.diagnostics_every=8"], "output.diagnostics_every = 8 cannot be had with engine verl"),
        (["trainer.steps=10"], "trainer.steps = 10 is no multiple of the 8 updates on a rollout batch"),
        (["trainer.steps=10"], "set it to 8 or 16"),
        (["trainer.warmup_steps=4"], "trainer.warmup_steps = 4 is no multiple of the 8 updates"),
        (["trainer.warmup_steps=4"], "set it to 8"),
        (["output.checkpoint_every=12"], "output.checkpoint_every = 12 is no multiple"),
        (["trainer.prompts=2", "trainer.minibatches=4"], "do not divide into trainer.minibatches = 4"),
        (["verl.trainer.n_gpus_per_node=3"], "do not divide among 3 ranks"),
        (["verl.trainer.n_gpus_per_node=0"], "must be whole numbers above 0"),
        (["verl.trainer.nnodes=2"], "a laptop is one node"),
    ],
)
def test_what_verl_has_no_place_for_is_refused(assignments, message):
    assert message in _refusal(_settings, *assignments)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"trainer.nodes": 2}, "[verl] has no key 'trainer.nodes'; did you mean 'trainer.nnodes'?"),
        ({"nnodes": 2}, "did you mean 'trainer.nnodes'?"),
        ({f"{ROLLOUT}.gpu_memory_utilisation": 0.5}, f"did you mean '{ROLLOUT}.gpu_memory_utilization'?"),
        ({"data.train_batch_size": 8}, "[verl] data.train_batch_size is set by trainer.prompts; use that key"),
        ({"+data.train_batch_size": 8}, "is set by trainer.prompts; use that key"),
        ({"trainer.default_local_dir": "x"}, "is set by the command itself; remove it"),
        ({"model_engine": "megaton"}, "verl has no model_engine 'megaton'"),
    ],
)
def test_a_key_that_verl_lacks_or_that_has_a_place_is_refused(table, message):
    assert message in _refusal(verl_table.check_table, table, "recipe x")


@pytest.mark.parametrize(
    "key",
    [
        "trainer.nnodes",
        f"{ACTOR}.fsdp_config.mixed_precision",  # a field of the dataclass that the yaml leaves out
        f"{ROLLOUT}.engine_kwargs.vllm.max_num_seqs",  # below an open place
        "actor_rollout_ref.model.override_config.attn_implementation",
        "ray_kwargs.ray_init.num_gpus",
        "+somewhere.new",
    ],
)
def test_a_key_that_verl_reads_is_taken(key):
    verl_table.check_table({key: 1}, "recipe x")


def test_every_key_said_to_have_another_place_exists_in_both():
    config = verl_table.compose()
    added = {f"{ACTOR}.policy_loss.objective"}  # a field of our subclass
    for key, owner in verl_table.OWNED_BY_RECIPE.items():
        assert key in added or verl_table.is_known(config, key), key
        section, _, name = owner.rpartition(".")
        model = recipe.Recipe.model_fields[section].annotation if section else recipe.Recipe
        assert name in model.model_fields, owner
    for key in verl_table.FIXED_BY_COMMAND:
        assert verl_table.is_known(config, key), key


@pytest.mark.parametrize("laptop", [True, False])
def test_every_key_that_is_set_exists_in_verl(laptop):
    config = verl_table.compose()
    for key in _settings(laptop=laptop):
        assert verl_table.is_known(config, key) or key == f"{ACTOR}.policy_loss.objective", key


def test_megatron_gets_its_own_names_for_the_same_settings():
    found = _settings("verl.model_engine=megatron", "trainer.lr_schedule=linear", laptop=False)
    assert found[f"{ACTOR}.optim.lr_decay_style"] == "linear"
    config = configuration(found)
    assert config.actor_rollout_ref.actor.strategy == "megatron"
    assert "fsdp_config" not in config.actor_rollout_ref.actor


def test_a_training_engine_without_a_place_for_the_recipe_is_refused():
    assert "use dp or megatron" in _refusal(_settings, "verl.model_engine=torchtitan", laptop=False)


def test_every_key_that_is_set_is_the_recipes_the_laptops_or_refused_to_the_user():
    owned = {*verl_table.OWNED_BY_RECIPE, *verl_table.FIXED_BY_COMMAND}
    free = _settings(laptop=False).keys() - owned
    # defaults of ours that a user may change: everything else that we set, nobody else may
    assert free == {
        "trainer.v1.trainer_mode", "algorithm.adv_estimator", "data.max_prompt_length", "trainer.n_gpus_per_node",
        "trainer.nnodes", f"{ACTOR}.entropy_coeff", f"{ACTOR}.use_kl_loss", f"{ACTOR}.optim.weight_decay",
        f"{ACTOR}.optim.betas", f"{ACTOR}.data_loader_seed", f"{ACTOR}.checkpoint.save_contents",
        f"{ACTOR}.checkpoint.load_contents", f"{ROLLOUT}.name", f"{ROLLOUT}.dtype",
        f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.model.custom_chat_template",
        *(f"actor_rollout_ref.{role}.fsdp_config.model_dtype" for role in ("actor", "ref")),
        *(f"actor_rollout_ref.{role}.fsdp_config.mixed_precision" for role in ("actor", "ref")),
    }  # fmt: skip


# -- verl's own view


@pytest.mark.parametrize("ranks", [1, 2])
def test_verl_accepts_the_whole_configuration(ranks, capsys):
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = configuration(_settings(f"verl.trainer.n_gpus_per_node={ranks}", model=_embedded()))
    validate_config(config, use_reference_policy=False, use_critic=False)
    assert "passed successfully" in capsys.readouterr().out
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert actor.policy_loss.loss_mode == "isentrope"
    assert actor.optim.lr == 5e-5
    assert actor.ppo_mini_batch_size == 16


def _embedded():
    from importlib.resources import files

    return str(files("isentrope") / "embedded")


def test_our_own_refusals_find_nothing_in_it():
    from isentrope.engines.verl import refusals

    for objective in (presets.ce_gppo, presets.gepo, presets.repo_d, presets.adapo, presets.grpo):
        assert refusals(configuration(_settings(objective=objective)), objective) == []


def test_the_composed_configuration_is_a_copy():
    verl_config.configuration({"trainer.nnodes": 5})
    assert verl_table.compose().trainer.nnodes == 1


# -- arithmetic


def test_the_arithmetic_of_a_job():
    found = batches(_recipe(), {"trainer.n_gpus_per_node": 2})
    assert (found.prompts, found.rows, found.minibatch_prompts, found.micro_rows) == (64, 512, 16, 64)
    assert (found.ranks, found.updates_per_rollout, found.rollouts) == (2, 8, 20)
    assert "20 rollouts of 64 prompts = 512 completions on 2 ranks" in found.describe()
    assert "160 updates in all" in found.describe()


def test_updates_are_counted_in_rollouts():
    assert in_rollouts(_recipe(), "trainer.steps", 16) == 2
    assert in_rollouts(_recipe(), "trainer.steps", 0) == 0


def test_a_cluster_has_eight_gpus_a_node_unless_told():
    assert _settings(laptop=False)["trainer.n_gpus_per_node"] == 8
    assert _settings(laptop=True)["trainer.n_gpus_per_node"] == 1


def test_a_rehearsal_declares_as_many_logical_gpus_as_ranks():
    found = verl_laptop.settings(3)
    assert found["ray_kwargs.ray_init.num_gpus"] == found["trainer.n_gpus_per_node"] == 3
