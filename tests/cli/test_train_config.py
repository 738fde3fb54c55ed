"""`isentrope train --config FILE`: a recipe of ours, or a configuration of TRL's own command."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from isentrope import recipe
from isentrope.cli import app

FILE = """
model_name_or_path: embedded
dataset_name: countdown
learning_rate: 1e-4
num_generations: 4
per_device_train_batch_size: 16
steps_per_generation: 2
max_steps: 2
max_completion_length: 24
loss_type: grpo
epsilon_high: 0.28
weight_decay: 0.01
save_strategy: "no"
"""


def train(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["train", *arguments])


def plan(*arguments: str) -> Any:
    result = train(*arguments, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grpo.yaml").write_text(FILE, encoding="utf-8")
    return "grpo.yaml"


def test_a_dry_run_says_what_a_configuration_of_trl_comes_to(config: str):
    found = plan("--config", config)
    assert found["refusals"] == []
    assert found["objective"].endswith("PPOClip(low=0.2, high=0.28), SequenceMean()")
    counts = found["batches"]
    assert [counts[key] for key in ("prompts", "group_size", "updates_per_rollout", "steps")] == [8, 4, 2, 2]


def test_each_gpu_of_a_plan_is_a_process_that_trl_counts_for(config: str):
    counts = plan("--config", config, "--gpus", "2")["batches"]
    assert (counts["prompts"], counts["micro_rows"]) == (16, 16)


def test_options_take_the_place_of_what_the_file_says(config: str):
    arguments = ["--objective", "gepo", "--steps", "6", "--task", "digitsum", "--set", "num_iterations=2"]
    found = plan("--config", config, *arguments)
    assert found["objective"].startswith("gepo: ")
    assert found["data"][0]["task"] == "digitsum"
    assert (found["batches"]["steps"], found["batches"]["updates_per_rollout"]) == (6, 4)


def test_a_recipe_is_taken_as_well(tmp_path: Path):
    (tmp_path / "mine.toml").write_text('objective = "gepo"\n', encoding="utf-8")
    assert plan("--config", str(tmp_path / "mine.toml"))["objective"].startswith("gepo: ")


def test_toml_with_trls_keys_is_trls(tmp_path: Path):
    lines = ['model_name_or_path = "embedded"', 'dataset_name = "countdown"', 'objective = "gepo"']
    lines += ["max_steps = 3", "max_completion_length = 24"]
    (tmp_path / "trl.toml").write_text("\n".join(lines), encoding="utf-8")
    found = plan("--config", str(tmp_path / "trl.toml"))
    assert found["objective"].startswith("gepo: ")
    assert found["batches"]["steps"] == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["default", "--config", "grpo.yaml"], "leave one out"),
        (["--config", "grpo.yaml", "--engine", "verl"], "engine verl cannot read"),
        (["--config", "grpo.yaml", "--resume", "--out", "run"], "leave out grpo.yaml"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["--config", "grpo.yaml", "--set", "load_in_4bit=true"], "load_in_4bit"),
        (["--config", "grpo.yaml", "--set", "trainer.stpes=2"], "did you mean 'steps'?"),
        (["--config", "grpo.yaml", "--set", "lerning_rate=2"], "lerning_rate"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments: list[str], expected: str, config: str):
    result = train(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert expected in line


@pytest.mark.engine
@pytest.mark.slow
def test_a_configuration_of_trl_trains_and_its_recipe_runs_again(config: str, tmp_path: Path):
    result = train("--config", config, "--set", "evaluation.problems=0", "--out", "run", "--json")
    assert result.exit_code == 0, result.output
    written = recipe.load(str(tmp_path / "run" / "recipe.toml"))
    assert written.trl == {"weight_decay": 0.01}
    assert (written.seed, written.trainer.learning_rate, written.trainer.lr_schedule) == (42, 1e-4, "linear")
    again = train(str(tmp_path / "run" / "recipe.toml"), "--out", "again", "--json")
    assert again.exit_code == 0, again.output
    first, second = (json.loads(each.stdout)["entropy"] for each in (result, again))
    assert first == second
