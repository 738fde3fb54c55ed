"""`isentrope show`: everything of one objective, in the terminal, as JSON and as an image."""

import json

import pytest
from typer.testing import CliRunner

from isentrope import catalogue, presets, spec
from isentrope.cli import app
from isentrope.columns import GLOSSARY

PNG = b"\x89PNG\r\n\x1a\n"
MINE = '''
"""A file of a user's own."""
from dataclasses import replace
from isentrope import presets


def bold(log_ratio, advantage):
    """J = log r A, and nothing more."""
    return log_ratio * advantage


def halved(advantage, *, difficulty, logp):
    return advantage * difficulty[:, None] * 0.5


mine = replace(presets.dapo, surrogate=bold, shaping=(halved,))
not_an_objective = 3
'''


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def show(*arguments, columns=120):
    return CliRunner().invoke(app, ["show", *map(str, arguments)], env={"COLUMNS": str(columns)})


def data(*arguments):
    result = show(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(("name", "columns"), [*((name, 80) for name in presets.names()), ("gepo", 120), ("ppo", 60)])
def test_every_preset_is_shown_within_the_terminal(name, columns):
    result = show(name, columns=columns)
    assert result.exit_code == 0, result.output
    specification = spec.dumps(getattr(presets, name)).splitlines()
    lines = [line for line in result.stdout.splitlines() if line not in specification]
    assert max(map(len, lines)) <= columns
    for title in ("Formula", "Numbers", "Columns", "Specification (TOML)", "Gradient weight over the ratio"):
        assert title in lines
    assert catalogue.ENTRIES[name].arxiv in lines[1] + lines[2]


def test_the_specification_can_be_copied_out_and_read_back():
    text = show("adapo", columns=80).stdout
    written = text[text.index("[advantage]") : text.index("\nGradient weight")]
    assert spec.load(written) == presets.adapo


def test_it_says_what_more_of_a_knob_does():
    text = " ".join(show("ce_gppo", columns=80).stdout.split())
    assert "more of surrogate.keep_low lowers it, more of surrogate.keep_high raises it" in text


def test_the_formula_is_the_docstring():
    text = " ".join(show("ce_gppo").stdout.split())
    assert "keep_low (1 - low) u A" in text
    assert "keep_low (1 - low) u A" in presets.ce_gppo.surrogate.__doc__
    assert ">>>" not in text


def test_numbers_come_with_their_place():
    rows = {row["name"]: row for row in data("dapo")["numbers"]}
    assert rows["clip, high"] == {"name": "clip, high", "values": [0.28], "place": "sec. 4.1"}
    assert "clip, high    0.28    sec. 4.1" in show("dapo").stdout


def test_columns_come_with_phase_meaning_and_supplier():
    rows = {row["name"]: row for row in data("repo_d")["columns"]}
    assert rows["old_logp"]["phase"] == "prepare, loss"
    assert rows["logp"]["phase"] == "loss"
    assert rows["old_entropy"]["phase"] == "optional"
    assert all(rows[name]["source"] == GLOSSARY[name].source for name in rows)


def test_controllers_come_with_start_bounds_and_target():
    (found,) = data("adapo")["controllers"]
    assert (found["path"], found["rule"]) == ("surrogate.high", "EntropyServo")
    assert (found["start"], found["low"], found["high"], found["target"]) == (0.28, 0.05, 1.0, "initial")
    assert found["settings"] == {"rate": 1.1}
    assert "surrogate.high   EntropyServo   0.28    [0.05, 1]   initial   rate 1.1" in show("adapo").stdout


def test_a_controller_without_a_number_yet_is_shown_without_start():
    low, high = data("gepo")["controllers"]
    assert (low["start"], high["start"]) == (None, None)
    assert low["settings"] == {"offset": -0.2, "gamma": 0.01, "by_task": False}


def test_json_holds_the_measured_curve():
    found = data("ce_gppo")["gradient"]
    assert len(found["ratio"]) == len(found["positive"]) == len(found["negative"]) == 401
    middle = 200
    assert (found["ratio"][middle], found["positive"][middle], found["negative"][middle]) == (1.0, 1.0, -1.0)
    assert found["positive"][-1] == pytest.approx(1.2)
    assert found["old_probability"] == 0.05


def test_json_is_complete_and_goes_to_standard_output_alone():
    result = show("repo_r", "--json")
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert spec.load(found["specification"]) == presets.repo_r
    assert found["papers"] == [{"arxiv": "2603.11682", "title": "Entropy-Preserving Reinforcement Learning"}]
    assert (found["closest_preset"], found["differs_in"]) == ("repo_r", [])
    assert found["knobs"] == {"shaping.0.zeta": "raises"}


def test_the_image_is_a_png(tmp_path):
    path = tmp_path / "folder" / "gradient.png"
    result = show("sapo", "--plot", path)
    assert result.exit_code == 0
    assert path.read_bytes().startswith(PNG)
    assert f"wrote {path}" in result.stdout
    assert [file.name for file in path.parent.iterdir()] == ["gradient.png"]


def test_json_and_image_together(tmp_path):
    path = tmp_path / "gradient.png"
    assert data("sapo", "--plot", path)["name"] == "sapo"
    assert path.is_file()


def test_ones_own_objective_is_shown_whole(mine):
    result = show(f"{mine}:mine", columns=80)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "J = log r A, and nothing more." in text
    assert "halved (no docstring)" in text
    assert "closest preset: dapo (differs in surrogate.rule" in text
    assert "Columns of its own, assumed: difficulty = 1." in text
    found = data(f"{mine}:mine")
    assert found["gradient"]["positive"] == pytest.approx([0.5] * 401), "J = log r A / 2 has the weight A / 2"
    (column,) = [row for row in found["columns"] if row["name"] == "difficulty"]
    assert column["meaning"] == "a column of the rule's own"


def test_a_specification_file_is_shown_and_known_for_the_preset_it_is(tmp_path):
    path = tmp_path / "steered.toml"
    path.write_text(spec.dumps(presets.gepo))
    text = show(path).stdout
    assert "closest preset: gepo (no difference)" in " ".join(text.split())
    assert "arXiv:2607.16850" in text


def test_an_objective_that_cannot_be_measured_is_shown_without_the_curve(mine, tmp_path):
    mine.write_text(MINE.replace("return log_ratio * advantage", "raise RuntimeError('no such thing')"))
    result = show(f"{mine}:mine")
    assert result.exit_code == 0
    assert "cannot be measured on a synthetic batch: RuntimeError: no such thing" in " ".join(result.stdout.split())
    found = data(f"{mine}:mine")
    assert found["gradient"] is None
    assert "no such thing" in found["gradient_error"]
    refused = show(f"{mine}:mine", "--plot", tmp_path / "none.png")
    assert refused.exit_code == 2
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cegppo"], "there is no objective 'cegppo'; did you mean 'ce_gppo'?; `file.py:name` takes one of your own"),
        (["zzz"], "there is no objective 'zzz'; there are adapo, adaptive_entropy,"),
        (["{mine}:mime"], "has no 'mime'; did you mean 'mine'?"),
        (["{mine}:not_an_objective"], "not_an_objective is int, not an Objective"),
        (["{folder}/other.py:mine"], "there is no file {folder}/other.py"),
        (["{folder}/typo.py:mine"], "{folder}/typo.py cannot be run: SyntaxError"),
        (["{folder}/missing.py:mine"], "cannot be run: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        (["grpo", "--plot", "{folder}/x.pdf"], "--plot writes PNG; found {folder}/x.pdf"),
        (["grpo", "--plot", "{mine}/x.png"], "cannot write {mine}/x.png: "),
    ],
)
def test_bad_input_ends_in_one_line(mine, tmp_path, arguments, message):
    (tmp_path / "typo.py").write_text("mine = = 3\n")
    (tmp_path / "missing.py").write_text("import nothing_of_this_name\n")
    filled = [text.format(mine=mine, folder=tmp_path) for text in arguments]
    result = show(*filled)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert message.format(mine=mine, folder=tmp_path) in line


def test_help_has_examples():
    text = " ".join(show("--help").stdout.split())
    assert "isentrope show ce_gppo --plot ce_gppo.png" in text
    assert "isentrope show my_rule.py:mine" in text
