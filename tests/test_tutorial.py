"""The tutorial's commands are true: what it trains can be trained, diagnosed and drawn."""

import doctest
import importlib.util
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isentrope import record
from isentrope.cli import app

DOCS = Path(__file__).resolve().parent.parent / "docs"
STEPS = 8


def _script():
    spec = importlib.util.spec_from_file_location("make_tutorial", DOCS / "make_tutorial.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_trains_two_runs_of_one_budget_that_differ_in_the_objective_alone():
    one, other = _script().train_commands()
    different = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    assert [one[one.index(a) - 1] for a, _ in different] == ["--objective", "--out"]


def test_the_scripts_examples_are_true():
    failed, tried = doctest.testmod(_script())
    assert (failed, tried) == (0, 2)


def test_every_picture_of_the_page_is_there_and_small():
    named = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (DOCS / "tutorial.md").read_text("utf-8"))
    assert sorted(named) == sorted(f"pictures/{path.name}" for path in (DOCS / "pictures").glob("*.png"))
    assert all((DOCS / name).stat().st_size < 150_000 for name in named)


@pytest.mark.slow
@pytest.mark.engine
def test_the_commands_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = _script()
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    monkeypatch.setattr(script, "PICTURES", pictures)
    runs = {}
    for words in script.train_commands():
        short = ["--steps", str(STEPS), "--set", "evaluation.problems=4"]  # the last of an option's values counts
        trained = CliRunner().invoke(app, [*words, *short])
        assert trained.exit_code == 0, trained.output
        folder = script.folder_of(words)
        lines = record.read_metrics(folder.metrics)
        assert lines[-1]["step"] == STEPS
        assert any("diagnostics/change_share/PA&HP" in line for line in lines)
        diagnosed = CliRunner().invoke(app, ["diagnose", str(folder.path)])
        assert diagnosed.exit_code in (0, 1), diagnosed.output
        assert "entropy" in diagnosed.output
        runs[folder.path.name] = lines
    script.draw_curves(runs)
    script.draw_quadrants(runs)
    assert {path.name for path in pictures.iterdir()} == {"curves.png", "quadrants.png"}
