"""`isentrope train --engine verl`: what is found before Ray starts, and what becomes of a job's end.

The job is a script that writes what verl writes; whole jobs are in test_end_to_end.
"""

import importlib.metadata
import json
import os
import signal
import sys
import textwrap
import threading
import time

import pytest
from typer.testing import CliRunner

pytest.importorskip("verl", reason="needs verl 0.9 (make verl)")

from isentrope import record
from isentrope.cli import _verl_session, app
from isentrope.engines import verl_run
from isentrope.record import RunFolder

pytestmark = pytest.mark.engine
SMALL = [
    *("--engine", "verl", "--laptop", "--set", "trainer.prompts=4", "--set", "trainer.group_size=2"),
    *("--set", "trainer.minibatches=1", "--set", "trainer.passes=2", "--set", "trainer.problems=8"),
    *("--set", "evaluation.problems=0", "--set", "output.checkpoint_every=2", "--steps", "8"),
]
JOB = """
import json, os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
latest = folder / "checkpoints" / "latest_checkpointed_iteration.txt"
latest.parent.mkdir(parents=True, exist_ok=True)
done = int(latest.read_text()) if latest.exists() else 0
with open(os.environ["VERL_FILE_LOGGER_PATH"], "ab", buffering=0) as file:
    for step in range(done + 1, 5):
        data = {"critic/score/mean": step / 10, "actor/entropy": 1.0 / step, "perf/total_num_tokens": 100}
        file.write(json.dumps({"step": step, "data": data}).encode() + b"\\n")
        latest.write_text(str(step))
        time.sleep(0.1)
        AFTER
"""


@pytest.fixture(autouse=True)
def _no_job(monkeypatch):
    """What is refused or planned starts no job."""
    monkeypatch.setattr(_verl_session, "Job", lambda *_: pytest.fail("a job was started"))


@pytest.fixture
def stand_in(monkeypatch):
    """`stand_in(text)`: a script in the place of verl's job; `text` runs after each step."""

    def set_up(after="pass"):
        text = textwrap.dedent(JOB).replace("AFTER", after)
        monkeypatch.setattr(_verl_session, "Job", verl_run.Job)
        monkeypatch.setattr(verl_run, "command", lambda layout: [sys.executable, "-c", text, str(layout.folder)])

    return set_up


def _train(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def _refused(*arguments, status=2):
    result = _train(*arguments)
    assert result.exit_code == status, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("isentrope: ")]
    assert "Traceback" not in result.output
    return line


# -- before Ray starts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--objective", "ce_gpo"], "there is no objective 'ce_gpo'; did you mean 'ce_gppo'?"),
        (["--objective", "arbitrary_entropy"], "and verl's agent loops take actor_rollout_ref.rollout.temperature"),
        (["--set", "verl.actor_rollout_ref.actor.entropy_coeff=0.1"], "the objective's slot `penalties` does this"),
        (["--set", "verl.actor_rollout_ref.actor.loss_agg_mode=nonsense"], "aggregate"),
        (["--set", "verl.trainer.nodes=2"], "[verl] has no key 'trainer.nodes'; did you mean 'trainer.nnodes'?"),
        (["--model", "./nowhere"], "there is no such folder"),
        (["--steps", "7"], "trainer.steps = 7 is no multiple of the 2 updates"),
        (["--set", "verl.trainer.n_gpus_per_node=3"], "do not divide among 3 ranks"),
        (["--task", "countdwn"], "did you mean 'countdown'?"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_folder(tmp_path, arguments, message):
    out = tmp_path / "run"
    assert message in _refused(*SMALL, *arguments, "--out", out)
    assert not out.exists()


def test_a_column_that_the_job_would_lack_is_named_with_what_brings_it(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass, replace\n"
        "from isentrope import presets\n"
        "@dataclass(frozen=True)\n"
        "class Tempered:\n"
        "    def __call__(self, *, advantage, tempered):\n"
        "        return advantage\n"
        "mine = replace(presets.grpo, shaping=(Tempered(),))\n"
    )
    line = _refused(*SMALL, "--objective", f"{tmp_path}/mine.py:mine", "--out", tmp_path / "run")
    assert "the objective needs the column `tempered`" in line
    assert "nothing in verl" in line


def test_a_verl_outside_the_tested_range_is_refused(tmp_path, monkeypatch):
    found = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.8.0" if name == "verl" else found(name))
    assert "verl is 0.8.0; isentrope is tested with >= 0.9, < 0.10" in _refused(*SMALL, "--out", tmp_path / "run")


def test_a_laptop_without_verl_is_refused():
    assert "laptop = true rehearses a job of engine verl" in _refused("--laptop")


# -- the plan


def test_a_dry_run_shows_everything_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = _train(*SMALL, "--dry-run")
    assert result.exit_code == 0, result.output
    for expected in (
        "4 rollouts of 4 prompts = 8 completions on 1 rank, 2 updates each",
        "data.train_batch_size = 4",
        "trainer.v1.trainer_mode = isentrope",
        "command: ",
        "verl.trainer.main_ppo",
    ):
        assert expected in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_with_a_folder_writes_the_whole_configuration(tmp_path):
    from omegaconf import OmegaConf

    result = _train(*SMALL, "--dry-run", "--out", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["verl.yaml"]
    config = OmegaConf.load(tmp_path / "run" / "verl.yaml")
    assert config.data.train_batch_size == found["config"]["data"]["train_batch_size"] == 4
    assert found["refusals"] == []
    assert found["batches"]["rollouts"] == 4


def test_a_dry_run_of_what_cannot_be_honoured_says_so_and_fails():
    result = _train(*SMALL, "--dry-run", "--set", "verl.actor_rollout_ref.actor.entropy_coeff=0.1")
    assert result.exit_code == 2
    assert "refused    actor_rollout_ref.actor.entropy_coeff=0.1" in result.stdout
    assert "the objective's slot `penalties` does this" in result.stderr


def test_a_model_that_is_not_here_is_planned_for_and_not_run(tmp_path):
    cluster = [word for word in SMALL if word != "--laptop"] + ["--set", "trainer.prompts=8"]
    result = _train(*cluster, "--model", "nobody/never-7b", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "the tokenizer of nobody/never-7b is not on this machine" in result.output
    assert "cannot read the tokenizer" in _refused(*cluster, "--model", "nobody/never-7b", "--out", tmp_path / "run")


# -- after


def test_a_job_leaves_the_folder_of_every_engine(tmp_path, stand_in):
    stand_in()
    out = tmp_path / "run"
    result = _train(*SMALL, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    lines = record.read_metrics(RunFolder(out).metrics)
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert [line["reward"] for line in lines] == [0.1, 0.2, 0.3, 0.4]
    assert [line["num_tokens"] for line in lines] == [100, 200, 300, 400]
    summary = json.loads(result.stdout)
    assert (summary["steps"], summary["entropy"], summary["interrupted"]) == (8, [1.0, 0.25], False)
    assert RunFolder(out).curves.is_file()
    assert record.read_json(RunFolder(out).versions)["verl"]
    assert "step 8/8" in result.stderr


def test_a_job_that_fails_ends_the_run_in_its_own_words_and_it_goes_on_from_its_checkpoint(tmp_path, stand_in):
    out = tmp_path / "run"
    stand_in("if step == 3: latest.write_text('2'); raise MemoryError('no room for 7 tensors')")
    line = _refused(*SMALL, "--out", out, status=1)
    assert "the run stopped: verl's job ended with status 1: MemoryError: no room for 7 tensors" in line
    assert f"its log is {out}/verl/job.log" in line
    assert [line["step"] for line in record.read_metrics(RunFolder(out).metrics)] == [2, 4, 6]
    stand_in()
    result = _train("--resume", "--out", out)
    assert result.exit_code == 0, result.output
    assert "resuming   after rollout 2, update 4" in result.output
    lines = record.read_metrics(RunFolder(out).metrics)
    assert [line["step"] for line in lines] == [2, 4, 6, 8], "no step stands twice"
    assert [line["num_tokens"] for line in lines] == [100, 200, 300, 400]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job_and_says_how_to_go_on(tmp_path, stand_in, number):
    stand_in("if step == 2: time.sleep(60)")
    out = tmp_path / "run"
    metrics, earlier = RunFolder(out).metrics, signal.getsignal(signal.SIGTERM)

    def interrupt():
        while not metrics.is_file() or len(record.read_metrics(metrics)) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    result = _train(*SMALL, "--out", out)
    assert result.exit_code == 130, result.output
    assert f"stopped; verl's last checkpoint is after update 4: isentrope train --resume --out {out}" in result.stderr
    assert signal.getsignal(signal.SIGTERM) == earlier


def test_a_finished_run_is_reported_again_and_starts_no_job(tmp_path, stand_in, monkeypatch):
    out = tmp_path / "run"
    stand_in()
    assert _train(*SMALL, "--out", out).exit_code == 0
    monkeypatch.setattr(_verl_session, "Job", lambda *_: pytest.fail("a job was started"))
    result = _train("--resume", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["steps"] == 8


def test_a_resumed_run_may_be_made_longer(tmp_path, stand_in):
    out = tmp_path / "run"
    stand_in("if step == 2: break")
    assert _train(*SMALL, "--out", out).exit_code == 0
    stand_in()
    result = _train("--resume", "--out", out, "--steps", "8")
    assert result.exit_code == 0, result.output
    assert [line["step"] for line in record.read_metrics(RunFolder(out).metrics)] == [2, 4, 6, 8]


def test_a_run_without_a_checkpoint_cannot_be_resumed(tmp_path, stand_in):
    out = tmp_path / "run"
    stand_in("latest.unlink(); raise SystemExit(1)")
    _refused(*SMALL, "--out", out, status=1)
    assert "holds no complete checkpoint; remove it" in _refused("--resume", "--out", out)


def test_the_package_has_a_recipe_for_the_engine():
    from isentrope.cli import train

    _, found = train._start(train.Source(None, None, (), 1), None, {"engine": "verl"})
    assert (found.engine, found.objective, found.trainer.steps) == ("verl", "ce_gppo", 160)
    _, found = train._start(train.Source("default", None, ("output.diagnostics_every=0",), 1), None, {"engine": "verl"})
    assert found.trl
