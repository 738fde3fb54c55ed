"""`isentrope compare`: same data, seeds and budget; what is finished is not run again, what is half done goes on."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isentrope import comparison, recipe, record
from isentrope.cli import _comparison_run as runs
from isentrope.cli import _tabular_session, app
from isentrope.comparison import Comparison, run_folder
from isentrope.report.comparison import mean_series
from isentrope.report.data import Curve

SMALL = ("--set", "trainer.prompts=16", "--set", "evaluation.problems=6", "--set", "trainer.problems=64")
BASE = ("compare", "tabular", *SMALL, "--steps", "32")


def _compare(out: Path, *arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, [*BASE, *arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def _refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    return result.stderr


def test_objectives_are_set_side_by_side(tmp_path: Path) -> None:
    told, _ = _compare(tmp_path / "out", "--objectives", "grpo,repo_d", "--seeds", "2")
    for figure in ("reward, last tenth", "held-out pass@1", "held-out pass@k", "KL to the start", "cumulative entropy"):
        assert told.count(figure) == 2  # means, and differences
    assert "minus grpo" in told
    found = record.read_json(tmp_path / "out" / comparison.RESULT)
    mine = found["objectives"]["repo_d"]
    each = [run["entropy_end"] for run in mine["runs"]]
    assert mine["mean"]["entropy_end"]["mean"] == pytest.approx(sum(each) / 2)
    base = [run["entropy_end"] for run in found["objectives"]["grpo"]["runs"]]
    assert mine["difference"]["entropy_end"]["mean"] == pytest.approx(sum(each) / 2 - sum(base) / 2)
    page = (tmp_path / "out" / comparison.PAGE).read_text(encoding="utf-8")
    assert "Accuracy against entropy kept" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


@pytest.mark.slow
def test_runs_are_not_repeated_and_half_ones_go_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = json.loads(_compare(out, "--objectives", "grpo,gepo", "--seeds", "1", "--json")[0])
    before = (run_folder(out, "grpo", 0) / "metrics.jsonl").stat().st_mtime_ns
    half = run_folder(out, "cispo", 0)  # a run of the same recipe that was stopped after 20 updates
    loaded = recipe.load("tabular", overrides={"trainer.prompts": 16, "evaluation.problems": 6, "trainer.problems": 64})
    plan = runs.make(out, loaded, ["grpo", "cispo"], 1)
    stopped = plan.recipe_of("cispo", 0)
    loop = stopped.trainer.model_copy(update={"steps": 20})
    _tabular_session.run(stopped.model_copy(update={"trainer": loop}), half, resume=False, as_json=True)
    (half / "summary.json").unlink()
    lost = run_folder(out, "grpo", 1)  # a run that was killed before its first checkpoint
    lost.mkdir()
    (lost / "recipe.toml").write_text("")
    told, noted = _compare(out, "--objectives", "grpo,cispo", "--seeds", "2", "--json")
    assert "1 of 4 runs are finished already" in noted
    assert (run_folder(out, "grpo", 0) / "metrics.jsonl").stat().st_mtime_ns == before
    assert "resuming   after step 20" in (out / "cispo" / "seed-0.log").read_text()
    again = json.loads(told)
    assert again["objectives"]["grpo"]["runs"][0] == first["objectives"]["grpo"]["runs"][0]
    fresh = json.loads(_compare(tmp_path / "fresh", "--objectives", "grpo,cispo", "--seeds", "2", "--json")[0])
    for name in ("grpo", "cispo"):
        ours, theirs = ([run["pass_at_1"] for run in x["objectives"][name]["runs"]] for x in (again, fresh))
        assert ours == theirs


def test_a_folder_of_another_comparison_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = runs.make(out, recipe.load("tabular"), ["grpo", "cispo"], 1)
    runs.open_folder(plan)
    runs.open_folder(runs.make(out, recipe.load("tabular"), ["gepo", "grpo"], 3))  # more of the same
    assert "comparison of another recipe" in _refused("tabular", "--steps", 32, "--out", out)
    (tmp_path / "rule.py").write_text("from isentrope import presets\ncispo = presets.gepo\n")
    rule = f"grpo,{tmp_path / 'rule.py'}:cispo"
    assert "runs of another objective 'cispo'" in _refused("tabular", "--objectives", rule, "--out", out)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    assert "is not empty and holds no comparison" in _refused("tabular", "--out", tmp_path / "other")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--objectives", "grpo"], "name two or more"),
        (["--objectives", "grpo,grpo"], "two are called 'grpo'"),
        (["--objectives", "grpo,gepi"], "there is no objective 'gepi'; did you mean 'gepo'?"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    assert sentence in _refused("tabular", *arguments, "--out", tmp_path / "out")


def test_all_objectives_of_a_seed_run_before_the_next(tmp_path: Path) -> None:
    plan = runs.make(tmp_path, recipe.load("tabular", overrides={"seed": 5}), ["grpo", "cispo"], 2)
    assert plan.runs() == [("grpo", 5), ("cispo", 5), ("grpo", 6), ("cispo", 6)]
    assert [plan.recipe_of(*run).seed for run in plan.runs()] == [5, 5, 6, 6]


def test_figures_are_read_off_a_run() -> None:
    """A curve of 20 points, by hand: ends are means of two, the middle of points 9 and 10."""
    curve = Curve(tuple(range(20)), tuple(float(20 - i) for i in range(20)))
    after = [{"pass_at": {"1": 0.2, "8": 0.6}}, {"pass_at": {"1": 0.4, "8": 1.0}}]
    found = comparison.figures(comparison.Measured({"entropy": curve, "reward": curve}, after, 7.0))
    assert (found["entropy_start"], found["entropy_middle"], found["entropy_end"]) == (20.0, 10.5, 1.5)
    assert found["entropy_area"] == 199.5  # trapezoids over 19 steps from 20 down to 1
    assert (found["pass_at_1"], found["pass_at_k"], found["seconds"]) == (pytest.approx(0.3), 0.8, 7.0)
    assert "kl_start" not in Comparison((0,), {"a": [found]}).known()


def test_mean_curves_average_runs_and_shorten() -> None:
    steps = tuple(float(i) for i in range(200))
    low, high = Curve(steps, (1.0,) * 200), Curve(steps[:150], (3.0,) * 150)
    series = mean_series("x", [low, high], 0, points=10)
    assert len(series.x) == 10
    assert max(series.x) < 150  # steps that one run lacks are left out
    assert list(series.y) == [2.0] * 10
    assert series.low[0] < 2 < series.high[0]
