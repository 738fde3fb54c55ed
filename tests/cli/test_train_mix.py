"""`isentrope train` with a mix: weights in every rollout batch, a curriculum, curves by task, and --resume."""

import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from isentrope import readers, recipe, record
from isentrope.cli import app
from isentrope.record import RunFolder

MIX = """
[[task]]
name = "countdown"
weight = 2.0
[[task]]
name = "digitsum"
[trainer]
prompts = 6
group_size = 4
minibatches = 2
passes = 2
problems = 60
max_completion_length = 20
threads = 1
order = "stratified"
[evaluation]
problems = 3
samples = 2
[output]
checkpoint_every = 3
keep_checkpoints = 9
[curriculum]
by = "{by}"
"""


def _train(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def _numbers(run):
    return [
        {k: v for k, v in line.items() if k not in ("time", "step_time")} for line in record.read_metrics(run.metrics)
    ]


@pytest.mark.engine
@pytest.mark.parametrize("by", [pytest.param("", marks=pytest.mark.slow), "pass_rate"])
def test_a_mix_has_curves_by_task_and_goes_on_bit_for_bit(by, tmp_path):
    (tmp_path / "mix.toml").write_text(MIX.format(by=by))
    folder = RunFolder(tmp_path / "run")
    result = _train(tmp_path / "mix.toml", "--steps", 8, "--out", folder.path)
    assert result.exit_code == 0, result.output
    lines = _numbers(folder)
    for line in lines[::4]:  # rewards are those of the rollout, on the line of its first update
        by_task = [line["reward/countdown"], line["reward/digitsum"]]
        assert line["reward"] == pytest.approx((2 * by_task[0] + by_task[1]) / 3)  # 4 of 6 prompts, and 2
    assert all({"entropy/current_exact/countdown", "entropy/current_exact/digitsum"} <= set(line) for line in lines)
    assert ("curriculum/new" in lines[4]) == (by != "")
    copy = RunFolder(tmp_path / "copy")
    subprocess.run(["cp", "-r", folder.path, copy.path], check=True)
    for step in (6, 8):
        (copy.checkpoints / f"checkpoint-{step}" / record.COMPLETE).unlink()
    resumed = _train("--resume", "--out", copy.path)
    assert "after step 3" in resumed.output, resumed.output
    assert _numbers(copy) == lines
    (run,) = readers.read(folder.path)
    assert set(run.tasks("reward")) == set(run.tasks("entropy")) == {"countdown", "digitsum"}


@pytest.mark.slow
@pytest.mark.engine
def test_a_mix_that_is_killed_goes_on_as_if_nothing_had_happened(tmp_path):
    (tmp_path / "mix.toml").write_text(MIX.format(by="pass_rate"))
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    command = [sys.executable, "-m", "isentrope", "train"]
    arguments = [str(tmp_path / "mix.toml"), "--steps", "40", "--out"]
    assert _train(*arguments, whole.path).exit_code == 0
    process = subprocess.Popen([*command, *arguments, str(killed.path)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while killed.last_checkpoint() is None:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not killed.evaluation("after").is_file()
    result = _train("--resume", "--out", killed.path)
    assert result.exit_code == 0, result.output
    assert _numbers(killed) == _numbers(whole)
    assert record.read_json(killed.evaluation("after")) == record.read_json(whole.evaluation("after"))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("curriculum.by=pass", "[curriculum] by = 'pass': input should be '' or 'pass_rate'"),
        ("curriculum.floor=0.0", "Curriculum.floor is 0.0; it must be above 0"),
        ("curriculum.hihg=0.5", "[curriculum] has no key 'hihg'; did you mean 'high'?"),
        ("trainer.order=sorted", "[trainer] order = 'sorted'"),
    ],
)
def test_a_curriculum_without_sense_is_one_line(assignment, message, tmp_path):
    result = _train("--set", assignment, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("assignment", ["curriculum.by=pass_rate", "warmup.steps=3", "trainer.order=stratified"])
def test_what_another_engine_has_not_is_refused(assignment):
    with pytest.raises(Exception, match="needs engine trl; the engine here is verl"):
        recipe.load("default", [assignment, "engine=verl"])
