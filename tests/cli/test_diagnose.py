"""`isentrope diagnose`: exit status, JSON, what the terminal shows, and bad input in one line."""

import json
import random

import pytest
from typer.testing import CliRunner

from isentrope.cli import app

HEALTHY = {"entropy": lambda t: 0.5 - 0.15 * t, "reward": lambda t: 0.3 + 0.3 * t}
COLLAPSED = {"entropy": lambda t: 0.5 * 0.03**t, "reward": lambda t: 0.5}


def diagnose(*arguments, columns=120):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)], env={"COLUMNS": str(columns)})


def data(*arguments, status=0):
    result = diagnose(*arguments, "--json")
    assert result.exit_code == status, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)["runs"]


def log(path, shapes, n=60, **constant):
    rng = random.Random(0)
    rows = [
        {"step": i + 1, **{k: f(i / (n - 1)) * (1 + rng.gauss(0, 0.02)) for k, f in shapes.items()}, **constant}
        for i in range(n)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def healthy(tmp_path):
    return log(tmp_path / "healthy.jsonl", HEALTHY)


@pytest.fixture
def collapsed(tmp_path):
    return log(tmp_path / "collapsed.jsonl", COLLAPSED, frac_reward_zero_std=0.3)


def test_a_healthy_run_gets_a_clean_bill_and_status_0(healthy):
    result = diagnose(healthy)
    assert result.exit_code == 0, result.output
    assert "nothing found" in result.stdout
    assert "1 run, none with a finding of severity warning or worse" in result.stdout


def test_a_collapse_gives_status_1_with_evidence_confidence_and_knob(collapsed):
    result = diagnose(collapsed)
    assert result.exit_code == 1, result.output
    text = " ".join(result.stdout.split())
    assert "error entropy has collapsed" in text
    for label in ("evidence steps 1 to 60:", "confidence high:", "turn "):
        assert label in text


def test_what_was_read_and_what_is_missing_is_said(collapsed):
    text = " ".join(diagnose(collapsed).stdout.split())
    assert "collapsed.jsonl (3 known columns of 4)" in text
    assert "without clip fractions it cannot be said whether clipping acts" in text
    assert "without entropy" not in text


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_report_fits_the_terminal(collapsed, columns):
    assert max(map(len, diagnose(collapsed, columns=columns).stdout.splitlines())) <= columns


def test_curves_are_drawn(collapsed):
    assert any("\u2801" <= character <= "\u28ff" for character in diagnose(collapsed).stdout)


def test_several_runs_are_judged_one_by_one(healthy, collapsed):
    result = diagnose(healthy, collapsed)
    assert result.exit_code == 1
    assert "2 runs, 1 with a finding of severity warning or worse" in result.stdout


def test_json_is_complete(collapsed):
    (run,) = data(collapsed, status=1)
    assert (run["name"], run["engine"], run["alarm"]) == ("collapsed", "trl", True)
    assert run["curves"]["entropy"] == {"points": 60, "first_step": 1.0, "last_step": 60.0}
    assert run["missing"]
    (finding,) = run["findings"]
    assert (finding["name"], finding["severity"], finding["confidence"]) == ("collapse", "error", "high")
    assert finding["numbers"]["start"] == pytest.approx(0.45, rel=0.1)
    assert finding["evidence"]
    assert finding["turn"]
    assert finding["steps"] == [1.0, 60.0]


def test_json_of_a_healthy_run_has_no_finding(healthy):
    (run,) = data(healthy)
    assert (run["findings"], run["alarm"]) == ([], False)


def test_a_column_map_and_facts(tmp_path):
    path = log(tmp_path / "t.jsonl", {"h": lambda t: 5.0, "r": lambda t: 0.3 + 0.3 * t})
    (run,) = data(path, "--column", "entropy=h", "--column", "reward=r")
    assert set(run["curves"]) == {"entropy", "reward"}
    (run,) = data(path, "--column", "entropy=h", "--vocabulary", 100, status=1)
    assert [f["name"] for f in run["findings"]] == ["impossible"]
    assert "is above log V = 4.605" in run["findings"][0]["evidence"][0]
    assert run["facts"] == {"vocabulary": 100}
    (run,) = data(path, "--column", "entropy=h", "--fact", "updates_per_rollout=4", "--fact", "entropy_kind=exact")
    assert run["facts"] == {"updates_per_rollout": 4, "entropy_kind": "exact"}


def test_paths_that_are_parts_of_one_run(healthy, tmp_path):
    (tmp_path / "dump").mkdir()
    rows = [{"input": f"p{i // 2}", "output": "x", "gts": "", "score": 1.0} for i in range(4)]
    (tmp_path / "dump" / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(data(healthy, tmp_path / "dump", status=0)) == 2
    (run,) = data(healthy, tmp_path / "dump", "--one-run")
    assert {"entropy", "reward", "distinct"} <= run["curves"].keys()


def test_names_are_shown_as_they_are(tmp_path):
    path = log(tmp_path / "[red]a.jsonl", HEALTHY)
    assert "[red]a  " in diagnose(path).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.jsonl"], "there is no none.jsonl"),
        (["{t}", "--column", "entropy"], "--column entropy: expected NAME=VALUE"),
        (["{t}", "--column", "entropie=h"], "--column entropie: there is no curve of that name; there are clip,"),
        (["{t}", "--column", "entropy=hh"], "has no column 'hh'"),
        (["{t}", "--fact", "updates=4"], "--fact updates: there is no such fact; there are vocabulary,"),
        (["{t}", "--fact", "updates_per_rollout=x"], "expected a whole number"),
        (["{t}", "--fact", "entropy_kind=guess"], "entropy_kind must be one of"),
        (["{t}", "--vocabulary", "0"], "vocabulary must be at least 1; found 0"),
        (["{folder}"], "bad.jsonl line 1 is not JSON"),
    ],
)
def test_bad_input_ends_in_one_line_and_status_2(healthy, tmp_path, arguments, message):
    bad = tmp_path / "bad.jsonl"
    bad.write_text("nonsense\n{}\n")
    filled = [text.format(t=healthy, folder=bad) for text in arguments]
    result = diagnose(*filled)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert message in line


def test_the_exit_status_is_documented_with_an_example():
    text = " ".join(diagnose("--help").stdout.replace("│", " ").split())
    assert "isentrope diagnose runs/first metrics.csv" in text
    assert "exit status is 0" in text
