"""`isentrope train apps`: a warm-up, episodes, goal completion by scenario, and --resume."""

import subprocess

import pytest
from typer.testing import CliRunner

from isentrope import record, token_dump
from isentrope.cli import app
from isentrope.record import RunFolder

SMALL = [
    *(
        "--set",
        "warmup.steps=6",
        "--set",
        "warmup.batch=8",
        "--set",
        "warmup.problems=30",
        "--set",
        "trainer.prompts=4",
    ),
    *("--set", "trainer.group_size=4", "--set", "trainer.max_completion_length=24", "--set", "trainer.problems=30"),
    *("--set", "evaluation.problems=6", "--set", "evaluation.samples=2", "--set", "output.keep_checkpoints=9"),
]


def _train(*arguments):
    return CliRunner().invoke(app, ["train", "apps", *map(str, arguments)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    result = _train(*SMALL, "--steps", 6, "--tokens", 2, "--set", "output.checkpoint_every=2", "--out", out)
    assert result.exit_code == 0, result.output
    return RunFolder(out), result.output


@pytest.mark.engine
def test_a_run_warms_up_plays_and_reports_goals_and_scenarios(finished):
    folder, output = finished
    assert "warm-up    6 of 6 updates on references, loss" in output
    assert "scenario goal completion" in output
    for when in ("before", "after"):
        (report,) = record.read_json(folder.evaluation(when))
        assert report["task"] == "apps"
        assert report["scenarios"] == 2
        assert report["task_goal_completion"] == report["pass_at"]["1"]
        assert 0 <= report["scenario_goal_completion"] <= report["task_goal_completion"]


@pytest.mark.engine
def test_the_dump_marks_what_the_environment_wrote(finished):
    folder, _ = finished
    table = token_dump.read_tokens(folder.tokens, 2)
    mask, weight = table["mask"].to_pylist(), table["weight"].to_pylist()
    assert any(mask)
    assert all(w == 0 for w, is_own in zip(weight, mask, strict=True) if not is_own)


@pytest.mark.slow
@pytest.mark.engine
def test_a_resumed_run_does_not_warm_up_again_and_ends_in_the_same_numbers(finished, tmp_path):
    folder, _ = finished
    copy = RunFolder(tmp_path / "run")
    subprocess.run(["cp", "-r", folder.path, copy.path], check=True)
    for step in (4, 6):
        (copy.checkpoints / f"checkpoint-{step}" / record.COMPLETE).unlink()
    result = CliRunner().invoke(app, ["train", "--resume", "--out", str(copy.path)])
    assert result.exit_code == 0, result.output
    assert "after step 2" in result.output
    assert "warm-up" not in result.output

    def numbers(run):
        lines = record.read_metrics(run.metrics)
        return [{k: v for k, v in line.items() if k not in ("time", "step_time")} for line in lines]

    assert numbers(copy) == numbers(folder)
    assert record.read_json(copy.evaluation("after")) == record.read_json(folder.evaluation("after"))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("trainer.sampler=transformers", "task apps takes several turns, which only sampler"),
        ("trl.top_k=3", "task apps takes several turns, which only sampler"),
        ("warmup.steps=-1", "[warmup] steps = -1"),
        ("warmup.learning_rate=0.0", "[warmup] learning_rate = 0.0"),
    ],
)
def test_what_an_agent_cannot_be_trained_with_is_one_line(assignment, message, tmp_path):
    result = _train("--set", "trainer.problems=32", "--set", assignment, "--out", tmp_path / "run")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
