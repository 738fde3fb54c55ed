"""Recipes: every key checked, every default written out, errors that name the key and what to do."""

import importlib
import tomllib

import pytest

from isentrope import recipe
from isentrope.errors import IsentropeError


def _error(text, label="recipe x.toml"):
    with pytest.raises(IsentropeError) as caught:
        recipe.parse(text, label)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_empty_recipe_is_a_whole_one():
    found = recipe.parse("")
    assert found.objective == "ce_gppo"
    assert found.task[0].name == "countdown"


@pytest.mark.parametrize("name", recipe.names())
def test_packaged_recipes_are_valid_and_read_back_equal(name):
    found = recipe.load(name)
    assert recipe.parse(found.to_toml()) == found


def test_the_resolved_text_spells_out_every_key():
    table = tomllib.loads(recipe.parse("").to_toml())
    assert set(table) == set(recipe.Recipe.model_fields)
    assert set(table["trainer"]) == set(recipe.Trainer.model_fields)
    assert set(table["task"][0]) == set(recipe.Task.model_fields)


def test_floats_read_back_exactly():
    found = recipe.parse("[trainer]\nlearning_rate = 0.1234567890123456789e-5")
    assert (
        recipe.parse(found.to_toml()).trainer.learning_rate == found.trainer.learning_rate == 0.1234567890123456789e-5
    )


@pytest.mark.parametrize(
    ("text", "place", "near"),
    [
        ("objectiv = 'grpo'", "the top level has no key 'objectiv'", "'objective'"),
        ("[trainr]\nsteps = 1", "the top level has no key 'trainr'", "'trainer'"),
        ("[trainer]\nleraning_rate = 1e-3", "[trainer] has no key 'leraning_rate'", "'learning_rate'"),
        ("[model]\nnmae = 'x'", "[model] has no key 'nmae'", "'name'"),
        ("[[task]]\nname = 'a'\nwieght = 1.0", "[task] number 0 has no key 'wieght'", "'weight'"),
        ("[evaluation]\nproblem = 3", "[evaluation] has no key 'problem'", "'problems'"),
        ("[output]\ntokens_evry = 3", "[output] has no key 'tokens_evry'", "'tokens_every'"),
        (
            "learning_rate = 1e-3",
            "the top level has no key 'learning_rate'",
            "'warmup.learning_rate' or 'trainer.learning_rate'",
        ),
        ("rank = 8", "the top level has no key 'rank'", "'model.lora.rank'"),
        ("[model.lora]\nrnak = 8", "[model.lora] has no key 'rnak'", "'rank'"),
    ],
)
def test_a_typo_is_answered_with_its_place_and_the_nearest_key(text, place, near):
    assert _error(text) == f"recipe x.toml: {place}; did you mean {near}?"


def test_a_key_like_no_other_is_answered_with_those_there_are():
    assert _error("[model]\nzzz = 1").endswith("[model] has no key 'zzz'; it has name, dtype, lora")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trainer]\nsteps = 0", "[trainer] steps = 0: input should be greater than or equal to 1"),
        ("[trainer]\nsteps = '3'", "[trainer] steps = '3': input should be a valid integer"),
        ("[trainer]\ntemperature = 0.0", "[trainer] temperature = 0.0: input should be greater than 0"),
        ("[trainer]\nmax_completion_length = 0", "max_completion_length = 0: input should be greater"),
        ("[trainer]\ngroup_size = 1", "[trainer] group_size = 1: input should be greater than or equal to 2"),
        ("[trainer]\nlearning_rate = nan", "[trainer] learning_rate = nan: input should be a finite number"),
        ("[trainer]\nlr_schedule = 'step'", "[trainer] lr_schedule = 'step': input should be 'constant'"),
        ("[trainer]\nprompts = 3\ngroup_size = 3", "[trainer] prompts * group_size = 9 completions do not divide"),
        ("[model.lora]\nrank = -1", "[model.lora] rank = -1: input should be greater than or equal to 0"),
        (
            "[model.lora]\nrank = 4\n[warmup]\nsteps = 3",
            "[warmup] changes the weights below the adapters of [model.lora]",
        ),
        (
            "engine = 'tabular'\n[model.lora]\nrank = 4",
            "[model.lora] rank needs engine trl; the engine here is tabular",
        ),
        ("engine = 'verl'\n[trainer]\nwithout_guards = ['sampler']", "[trainer] without_guards needs engine trl"),
        (
            "[trainer]\nwithout_guards = ['samplr']",
            "[trainer.without_guards] 0 = 'samplr': input should be 'float32_logp'",
        ),
        ("[trainer]\nproblems = 3", "[trainer] problems = 3 are too few for prompts = 16 of a rollout batch"),
        ("[trainer]\nmicro_batch = 7", "[trainer] micro_batch = 7 does not divide the 32 completions of a minibatch"),
        ("[[task]]\nweight = 1.0", "[task] number 0 name is missing"),
        ("task = []", "task = []: list should have at least 1 item"),
        ("[[task]]\nname = 'a'\n[[task]]\nname = 'a'", "each task may stand once in the mix, got ['a', 'a']"),
        ("trainer = 3", "trainer = 3: input should be a valid dictionary"),
        ("seed = -1\n[trainer]\nsteps = 0", "seed = -1: input should be greater than or equal to 0 (and 1 more)"),
        ("seed = ", "recipe x.toml is not TOML"),
    ],
)
def test_a_value_that_cannot_be_is_answered_with_key_and_value(text, message):
    assert message in _error(text)


def test_the_parts_of_a_rollout_batch_follow_from_the_loop():
    loop = recipe.parse("[trainer]\nprompts = 6\ngroup_size = 4\nminibatches = 3\npasses = 2\nmicro_batch = 4").trainer
    assert (loop.rows, loop.updates_per_rollout, loop.micro_rows) == (24, 6, 4)
    assert recipe.parse("[trainer]\nprompts = 6\ngroup_size = 4\nminibatches = 3").trainer.micro_rows == 8


def test_assignments_take_toml_values_and_bare_words(tmp_path):
    found = recipe.load(
        "default",
        ["trainer.steps=7", "model.name = smollm2", 'output.report_to=["tensorboard"]', "task.0.weight=2.5", "seed=3"],
    )
    assert (found.trainer.steps, found.model.name, found.output.report_to) == (7, "smollm2", ["tensorboard"])
    assert (found.task[0].weight, found.seed) == (2.5, 3)


def test_later_assignments_win_and_overrides_win_over_them():
    found = recipe.load("default", ["seed=1", "seed=2", "trainer.steps=3"], {"trainer.steps": 4})
    assert (found.seed, found.trainer.steps) == (2, 4)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("trainer.stepz=3", "[trainer] has no key 'stepz'; did you mean 'steps'?"),
        ("steps", "--set steps: expected KEY=VALUE"),
        ("=3", "--set =3: expected KEY=VALUE"),
        ("trainer.steps=", "expected KEY=VALUE"),
        ("output.report_to=[tensorboard]", "[tensorboard] is not a TOML value"),
        ("seed.x=3", "--set seed.x=3: seed is 0, not a table"),
        ("task.3.weight=1.0", "task.3 must be a number from 0 to 0"),
        ("task.first.weight=1.0", "task.first must be a number from 0 to 0"),
    ],
)
def test_an_assignment_that_fits_nowhere_is_refused(assignment, message):
    with pytest.raises(IsentropeError) as caught:
        recipe.load("default", [assignment])
    assert message in str(caught.value)


def test_assigning_inside_a_named_objective_refines_the_preset():
    found = recipe.load("default", ["objective.surrogate.keep_low=0.0"])
    assert found.objective == {"preset": "ce_gppo", "surrogate": {"keep_low": 0.0}}


def test_an_objective_file_is_looked_for_beside_the_recipe(tmp_path):
    (tmp_path / "mine.toml").write_text('objective = "rules.py:mine"')
    assert recipe.load(str(tmp_path / "mine.toml")).objective == f"{tmp_path}/rules.py:mine"


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), (b"\xff", "not UTF-8 text")])
def test_a_recipe_that_cannot_be_read_names_those_that_can(tmp_path, content, message):
    path = tmp_path / "none.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(IsentropeError, match=f"none.toml: {message}.*default"):
        recipe.load(str(path))


def test_without_trl_a_recipe_is_read_and_only_places_are_checked(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert recipe.parse("[trl]\nadam_beta22 = 1").trl == {"adam_beta22": 1}
    assert "[trl] learning_rate is set by trainer.learning_rate" in _error("[trl]\nlearning_rate = 1")


@pytest.mark.engine
def test_any_option_of_trl_is_taken_by_its_own_name():
    assert recipe.parse("[trl]\nadam_beta2 = 0.99").trl == {"adam_beta2": 0.99}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adam_beta22 = 1", "[trl] has no key 'adam_beta22'; did you mean 'adam_beta2'?"),
        ("learning_rate = 1", "[trl] learning_rate is set by trainer.learning_rate; use that key"),
        ("logging_steps = 1", "[trl] logging_steps is set by the command itself; remove it"),
    ],
)
def test_an_option_that_trl_lacks_or_that_has_a_place_is_refused(text, message):
    pytest.importorskip("trl", reason="TRL has an environment of its own")
    assert _error(f"[trl]\n{text}") == f"recipe x.toml: {message}"


def test_only_the_table_of_the_engine_that_runs_is_read():
    assert recipe.parse('engine = "verl"\n[trl]\nnonsense = 1').trl == {"nonsense": 1}
    assert recipe.parse("[verl]\nnonsense = 1").verl == {"nonsense": 1}


def test_only_the_cluster_is_rehearsed_on_a_laptop():
    assert recipe.parse('engine = "verl"\nlaptop = true').laptop
    assert "laptop = true rehearses a job of engine verl; the engine here is trl" in _error("laptop = true")


def test_an_unknown_engine_is_refused():
    assert "engine = 'vrl': input should be 'trl', 'verl' or 'tabular'" in _error('engine = "vrl"')


@pytest.mark.engine
def test_every_option_said_to_have_another_place_exists_in_both():
    pytest.importorskip("trl", reason="TRL has an environment of its own")
    known = {
        field.name for field in importlib.import_module("dataclasses").fields(importlib.import_module("trl").GRPOConfig)
    }
    table = importlib.import_module("isentrope.engines.trl_table")
    assert set(table.OWNED_BY_RECIPE) | set(table.FIXED_BY_COMMAND) <= known
    for key in table.OWNED_BY_RECIPE.values():
        section, _, name = key.rpartition(".")
        model = recipe.Recipe.model_fields[section].annotation if section else recipe.Recipe
        assert name in model.model_fields


@pytest.mark.parametrize(
    ("objective", "assignment", "path", "value"),
    [
        ("gppo", "objective.surrogate.keep_low=0.3", "surrogate.keep_low", 0.3),
        ("repo_r", "objective.shaping.0.zeta.high=1.0", "shaping.0.zeta.high", 1.0),
    ],
)
def test_an_assignment_refines_the_objective_that_an_option_names(objective, assignment, path, value):
    from isentrope import catalogue, spec

    for source in ({"objective": objective}, {}):
        given = [f"objective={objective}", assignment] if not source else [assignment]
        found = spec.load(recipe.load("default", given, source).objective)
        assert catalogue.at(found, path) == value
        assert spec.load(str(found)) == found
