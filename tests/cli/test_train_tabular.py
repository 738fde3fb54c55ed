"""`isentrope train --engine tabular`: the same recipe, run folder, resume, diagnosis and report as every engine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isentrope import readers, recipe, record, report, token_dump
from isentrope.cli import app
from isentrope.record import RunFolder

SMALL = ("--set", "trainer.prompts=16", "--set", "evaluation.problems=6", "--set", "trainer.problems=64")


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.stdout


def _refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 2, result.output
    return result.stderr


def _numbers(folder: RunFolder) -> list[dict[str, object]]:
    return [{k: v for k, v in line.items() if k != "time"} for line in record.read_metrics(folder.metrics)]


def test_a_run_leaves_the_folder_of_every_engine(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    arguments = ("train", "--engine", "tabular", *SMALL, "--steps", 32, "--tokens", 16, "--out", folder.path)
    summary = json.loads(_run(*arguments, "--json"))
    assert summary["steps"] == 32
    assert summary["interrupted"] is False
    assert [one["task"] for one in summary["after"]] == ["e05", "e15", "e30", "e45", "e60", "e75", "e85", "e95"]
    assert summary["after"][7]["entropy"] != summary["before"][7]["entropy"]
    (run,) = readers.read(folder.path)
    assert {"entropy", "reward", "clip_low", "kl_old", "entropy/e05"} <= set(run.series)
    assert token_dump.token_steps(folder.tokens) == [16, 32]
    tokens = token_dump.read_tokens(folder.tokens, 16).to_pydict()
    assert len(tokens["row"]) == 16  # 128 completions in 8 minibatches
    assert set(tokens["task"]) <= set(range(8))
    assert all(group == row // 8 for group, row in zip(tokens["group"], tokens["row"], strict=True))
    page = report.build(report.load([folder.path]))
    assert "held-out" in page.lower()
    assert recipe.load(str(folder.recipe)).engine == "tabular"


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    common = ("train", "chains", *SMALL, "--objective", "adapo", "--set", "output.diagnostics_every=5")
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    _run(*common, "--steps", 24, "--out", whole.path)
    _run(*common, "--steps", 10, "--out", parts.path)  # in the middle of a rollout batch
    _run("train", "--resume", "--out", parts.path, "--steps", 24)
    assert _numbers(whole) == _numbers(parts)
    ends = [record.read_json(folder.evaluation("after")) for folder in (whole, parts)]
    assert ends[0] == ends[1]


def test_the_plan_of_a_run_is_told_without_running_it(tmp_path: Path) -> None:
    told = _run("train", "stages", "--dry-run", "--out", tmp_path / "run")
    assert "32 prompts x 8 = 256 completions; 16 updates on each" in told
    assert "stage        second: 320 updates" in told
    assert "nothing refuses it" in told
    assert not (tmp_path / "run").exists()
    found = json.loads(_run("train", "--engine", "tabular", "--dry-run", "--json"))
    assert [task["problems"] for task in found["tasks"]] == [64] * 8


def test_tasks_of_text_are_refused() -> None:
    assert "task countdown: the tabular engine has no texts" in _refused("train", "default", "--engine", "tabular")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("stage.0.tasks=['frist']", "[[stage]] names the task 'frist'; did you mean 'first'?"),
        ("stage.0.steps=321", "a stage of 321 steps ends within a rollout batch of 16 updates"),
        ("trainer.steps=96", "the stages have 960 steps in all, [trainer] steps is 96"),
        ("stage.0.tasks=['first','first']", "[[stage]] names the task 'first' twice"),
        ("engine='verl'", "[[stage]] needs engine trl or tabular; the engine here is verl"),
    ],
)
def test_stages_that_do_not_fit_are_refused(change: str, sentence: str) -> None:
    assert sentence in _refused("train", "stages", "--set", change)


@pytest.mark.slow
def test_ctrl_c_saves_a_checkpoint_from_which_it_goes_on(tmp_path: Path) -> None:
    folder, whole = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "whole")
    arguments = ["train", "tabular", *SMALL, "--steps", "400"]
    command = [sys.executable, "-m", "isentrope", *arguments, "--out", str(folder.path)]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)
    while not (folder.metrics.is_file() and len(record.read_metrics(folder.metrics)) > 20):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "continue with: isentrope train --resume" in told
    _run("train", "--resume", "--out", folder.path)
    _run(*arguments, "--out", whole.path)
    assert _numbers(folder) == _numbers(whole)
