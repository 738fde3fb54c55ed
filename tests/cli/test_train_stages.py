"""`isentrope train` with stages: which task when, what is measured between them, --resume, every verb on the run."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isentrope import readers, recipe, record, report, tasks
from isentrope.cli import _stages, app
from isentrope.record import RunFolder
from isentrope.report.stages import learnt
from isentrope.tasks.mix import Stretch

# 2 updates on each rollout batch of 4 prompts x 4 rows
STAGES = """
objective = "adapo"
[[task]]
name = "countdown"
[[task]]
name = "digitsum"
[[stage]]
tasks = ["countdown"]
steps = 4
[[stage]]
tasks = ["digitsum"]
steps = 6
[[stage]]
tasks = ["countdown", "digitsum"]
steps = 2
[trainer]
steps = 12
prompts = 4
group_size = 4
minibatches = 1
passes = 2
problems = 40
max_completion_length = 20
learning_rate = 1e-4
threads = 1
[evaluation]
problems = 3
samples = 2
[output]
checkpoint_every = 3
keep_checkpoints = 9
"""


def _run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


def _numbers(folder):
    return [
        {k: v for k, v in line.items() if k not in ("time", "step_time")}
        for line in record.read_metrics(folder.metrics)
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder of a finished run of 12 updates in three stages, its recipe, and what it printed."""
    base = tmp_path_factory.mktemp("stages")
    path = base / "stages.toml"
    path.write_text(STAGES)
    told = _run("train", path, "--out", base / "run")
    return RunFolder(base / "run"), path, told


TASK = """
from dataclasses import dataclass
from isentrope.tasks.countdown import Countdown

@dataclass(frozen=True)
class Mine(Countdown):
    name: str = "of_its_own"

mine = Mine()
"""


def test_stages_are_counted_in_rollout_batches_and_know_tasks_by_their_own_names(tmp_path):
    (tmp_path / "mine.py").write_text(TASK)
    name = f"{tmp_path}/mine.py:mine"
    resolved = recipe.parse(STAGES.replace('"countdown"', f"'{name}'"))
    mix = [(tasks.get(task.name), task.weight) for task in resolved.task]
    assert _stages.stretches(resolved, mix) == (
        Stretch(("of_its_own",), 2),
        Stretch(("digitsum",), 3),
        Stretch(("of_its_own", "digitsum"), 1),
    )


@pytest.mark.engine
def test_the_datas_own_order_and_stages_are_refused_before_anything_is_written(tmp_path):
    (tmp_path / "stages.toml").write_text(STAGES + "[trl]\nshuffle_dataset = false\n")
    result = CliRunner().invoke(app, ["train", str(tmp_path / "stages.toml"), "--out", str(tmp_path / "run")])
    assert result.exit_code == 2, result.output
    assert (
        "shuffle_dataset=False asks for the data's own order; leave out the order of prompts (stages" in result.output
    )
    assert not (tmp_path / "run" / "recipe.toml").exists()
    planned = CliRunner().invoke(app, ["train", str(tmp_path / "stages.toml"), "--dry-run"])
    assert planned.exit_code == 1
    assert "shuffle_dataset=False asks for the data's own order" in planned.output


@pytest.mark.engine
def test_every_step_says_its_stage_and_draws_from_its_tasks(finished):
    lines = _numbers(finished[0])
    assert [line["stage"] for line in lines] == [1.0] * 4 + [2.0] * 6 + [3.0] * 2
    by_task = [tuple(t for t in ("countdown", "digitsum") if f"reward/{t}" in line) for line in lines[::2]]
    assert by_task == [("countdown",)] * 2 + [("digitsum",)] * 3 + [("countdown", "digitsum")]


@pytest.mark.engine
def test_every_task_is_measured_between_stages(finished):
    folder, _, told = finished
    names = sorted(path.name for path in folder.path.glob("evaluation-*.json"))
    ends = ["evaluation-step-10.json", "evaluation-step-4.json"]
    assert names == ["evaluation-after.json", "evaluation-before.json", *ends]
    summary = record.read_json(folder.summary)
    assert [(stage["tasks"], stage["step"]) for stage in summary["stages"]] == [(["countdown"], 4), (["digitsum"], 10)]
    for stage in summary["stages"]:
        assert [one["task"] for one in stage["evaluation"]] == ["countdown", "digitsum"]
    entropies = {one[0]["entropy"] for one in (summary["before"], summary["after"])}
    assert len(entropies | {stage["evaluation"][0]["entropy"] for stage in summary["stages"]}) == 4
    assert "stage      digitsum: 6 updates" in told
    heads = [line.split() for line in told.splitlines() if "before" in line and "after" in line]
    assert [[word for word in head if word.isalnum()] for head in heads] == [
        ["before", "stage", "1", "stage", "2", "after"]
    ] * 2


@pytest.mark.engine
def test_measuring_between_stages_changes_nothing_of_the_run(finished, tmp_path):
    whole, path, _ = finished
    blind = RunFolder(tmp_path / "blind")
    _run("train", path, "--out", blind.path, "--set", "evaluation.problems=0")
    assert _numbers(blind) == _numbers(whole)
    assert list(blind.path.glob("evaluation-*.json")) == []
    assert [stage["evaluation"] for stage in record.read_json(blind.summary)["stages"]] == [[], []]


@pytest.mark.engine
@pytest.mark.parametrize("step", [3, pytest.param(6, marks=pytest.mark.slow), pytest.param(9, marks=pytest.mark.slow)])
def test_a_run_that_stops_within_a_stage_goes_on_bit_for_bit(step, finished, tmp_path):
    """3 and 9 lie within a rollout batch, 3 before the first boundary, 6 and 9 in the second stage."""
    whole, copy = finished[0], RunFolder(tmp_path / "copy")
    shutil.copytree(whole.path, copy.path)
    for later in range(step + 3, 13, 3):
        (copy.checkpoints / f"checkpoint-{later}" / record.COMPLETE).unlink()
    for name in ("step-4", "step-10"):  # of steps that are made again, so they must be measured again
        if int(name[5:]) > step:
            record.write_json(copy.evaluation(name), [])
    assert f"after step {step}" in _run("train", "--resume", "--out", copy.path)
    assert _numbers(copy) == _numbers(whole)
    for name in ("step-4", "step-10", "after"):
        assert record.read_json(copy.evaluation(name)) == record.read_json(whole.evaluation(name))
    weights = "checkpoints/checkpoint-12/model.safetensors"
    assert (copy.path / weights).read_bytes() == (whole.path / weights).read_bytes()


@pytest.mark.slow
@pytest.mark.engine
def test_a_run_killed_in_its_second_stage_goes_on_as_if_nothing_had_happened(finished, tmp_path):
    changes = ["--set", "stage.1.steps=60", "--steps", "66"]
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    _run("train", finished[1], *changes, "--out", whole.path)
    command = [sys.executable, "-m", "isentrope", "train", str(finished[1]), *changes, "--out", str(killed.path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (killed.metrics.is_file() and len(record.read_metrics(killed.metrics)) > 12):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not killed.summary.is_file()
    _run("train", "--resume", "--out", killed.path)
    assert _numbers(killed) == _numbers(whole)
    for name in ("step-4", "step-64", "after"):
        assert record.read_json(killed.evaluation(name)) == record.read_json(whole.evaluation(name))


@pytest.mark.engine
def test_a_run_killed_before_its_first_checkpoint_is_measured_afresh(finished, tmp_path):
    whole, copy = finished[0], RunFolder(tmp_path / "copy")
    shutil.copytree(whole.path, copy.path)
    shutil.rmtree(copy.checkpoints)
    record.write_json(copy.evaluation("step-4"), [])
    record.rewind(copy, 0)
    assert not copy.evaluation("step-4").is_file()
    assert not copy.evaluation("step-10").is_file()
    assert copy.evaluation("before").is_file()


@pytest.mark.engine
def test_report_and_diagnosis_read_the_stages(finished):
    folder = finished[0]
    (run,) = report.load([folder.path])
    second, third = learnt(run)
    assert (second.tasks, third.tasks) == ("digitsum", "countdown, digitsum")
    assert second.entropy_left == run.curve("entropy/current_exact").values[3]
    assert {one.step for one in run.evaluations} == {0.0, 4.0, 10.0, 12.0}
    assert second.entropy_own == record.read_json(folder.evaluation("step-4"))[1]["entropy"]
    page = report.build([run])
    assert 'id="stages"' in page
    assert 'id="stages-own"' in page
    assert len(readers.read(folder.path)) == 1
    found = CliRunner().invoke(app, ["diagnose", str(folder.path), "--json"])
    assert found.exit_code in (0, 1), found.output


@pytest.mark.engine
def test_the_plan_tells_the_stages(finished):
    told = _run("train", finished[1], "--dry-run")
    assert "stage        countdown, digitsum: 2 updates" in told
    found = json.loads(_run("train", finished[1], "--dry-run", "--json"))
    assert found["stages"][1] == {"tasks": ["digitsum"], "steps": 6}


@pytest.mark.slow
@pytest.mark.engine
def test_objectives_are_compared_on_stages(finished, tmp_path):
    _run("compare", finished[1], "--objectives", "grpo,gepo", "--seeds", 1, "--out", tmp_path / "both")
    for name in ("grpo", "gepo"):
        folder = RunFolder(tmp_path / "both" / name / "seed-0")
        assert [line["stage"] for line in _numbers(folder)] == [1.0] * 4 + [2.0] * 6 + [3.0] * 2
        assert folder.evaluation("step-10").is_file()
    runs = report.load([tmp_path / "both" / name / "seed-0" for name in ("grpo", "gepo")])
    assert all(len(learnt(run)) == 2 for run in runs)


@pytest.mark.engine
def test_a_curriculum_and_a_stratified_order_go_with_stages(finished, tmp_path):
    assert "nothing refuses it" in _run(
        "train", finished[1], "--dry-run", "--set", "curriculum.by=pass_rate", "--set", "trainer.order=stratified"
    )
    folder = RunFolder(tmp_path / "run")
    changes = ["--set", "curriculum.by=pass_rate", "--set", "evaluation.problems=0"]
    _run("train", finished[1], "--out", folder.path, *changes)
    lines = _numbers(folder)
    assert [line["curriculum/new"] for line in lines[:6:2]] == [1.0] * 3  # of 20 problems a task, 8 were sampled
    assert "reward/digitsum" not in lines[2]
    assert "reward/countdown" not in lines[4]


def _two(*arguments):
    """What two processes of the command print on stdout."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, str(Path(__file__).parent / "two_processes.py"), *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.engine
def test_two_processes_go_through_the_stages_together_and_part_at_the_end(finished, tmp_path):
    whole, copy = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "copy")
    told = _two("train", finished[1], "--out", whole.path)
    assert told.count("still connected: False") == 2
    lines = _numbers(whole)
    assert [line["stage"] for line in lines] == [1.0] * 4 + [2.0] * 6 + [3.0] * 2
    assert [("reward/countdown" in line, "reward/digitsum" in line) for line in lines[::2]] == [
        *[(True, False)] * 2,
        *[(False, True)] * 3,
        (True, True),
    ]
    assert [one["task"] for one in record.read_json(whole.evaluation("step-10"))] == ["countdown", "digitsum"]
    shutil.copytree(whole.path, copy.path)
    for later in (9, 12):  # 6 lies in the second stage
        (copy.checkpoints / f"checkpoint-{later}" / record.COMPLETE).unlink()
    assert "after step 6" in _two("train", "--resume", "--out", copy.path)
    assert _numbers(copy) == lines
    weights = "checkpoints/checkpoint-12/model.safetensors"
    assert (copy.path / weights).read_bytes() == (whole.path / weights).read_bytes()


def test_the_tabular_engine_measures_between_stages_and_again_on_resume(tmp_path):
    small = ("--set", "trainer.prompts=8", "--set", "evaluation.problems=4", "--set", "trainer.problems=16")
    steps = ("--set", "stage.0.steps=16", "--set", "stage.1.steps=32", "--set", "stage.2.steps=16", "--steps", 64)
    whole, copy = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "copy")
    keep = ("--set", "output.checkpoint_every=20", "--set", "output.keep_checkpoints=9")
    _run("train", "stages", *small, *steps, *keep, "--out", whole.path)
    assert [line["stage"] for line in _numbers(whole)] == [1.0] * 16 + [2.0] * 32 + [3.0] * 16
    shutil.copytree(whole.path, copy.path)
    for later in (40, 60, 64):
        (copy.checkpoints / f"checkpoint-{later}" / record.COMPLETE).unlink()
    record.write_json(copy.evaluation("step-48"), [])
    _run("train", "--resume", "--out", copy.path)
    assert _numbers(copy) == _numbers(whole)
    for name in ("step-16", "step-48", "after"):
        assert record.read_json(copy.evaluation(name)) == record.read_json(whole.evaluation(name))
    assert [one["task"] for one in record.read_json(copy.summary)["stages"][1]["evaluation"]] == ["first", "second"]
