"""`isentrope diff`: places and values, and the exit status of diff(1)."""

import json

import pytest
from typer.testing import CliRunner

from isentrope import presets, spec
from isentrope.cli import app


def diff(*arguments, columns=120):
    return CliRunner().invoke(app, ["diff", *map(str, arguments)], env={"COLUMNS": str(columns)})


def test_equal_objectives_have_status_0_and_say_so(tmp_path):
    written = tmp_path / "same.toml"
    written.write_text(spec.dumps(presets.ce_gppo))
    result = diff("ce_gppo", written)
    assert result.exit_code == 0
    assert result.stdout.replace("\n", "") == f"ce_gppo and {written} are equal"


def test_different_objectives_have_status_1_and_every_place_is_shown():
    result = diff("ppo", "ce_gppo")
    assert result.exit_code == 1
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["path", "ppo", "ce_gppo"]
    assert ["surrogate.keep_low", "-", "0.5"] in rows
    assert ["advantage.gamma", "1", "-"] in rows
    assert ["advantage.whiten", "yes", "-"] in rows
    assert len(rows) - 2 == len(spec.difference(presets.ppo, presets.ce_gppo))


def test_json_holds_the_values_as_they_are():
    result = diff("gspo", "adapo", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["a"], found["b"], found["equal"]) == ("gspo", "adapo", False)
    held = {row["path"]: (row["a"], row["b"]) for row in found["differences"]}
    assert held["surrogate.low"] == (3e-4, 0.2)
    assert held["surrogate.high.rule"] == (None, "EntropyServo")
    assert json.loads(diff("gspo", "gspo", "--json").stdout) == {
        "a": "gspo",
        "b": "gspo",
        "equal": True,
        "differences": [],
    }


def test_a_narrow_terminal_cuts_nothing(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('preset = "adapo"\nsurrogate.high.target = 0.25\n')
    result = diff("adapo", mine, columns=60)
    assert result.exit_code == 1
    text = "".join(result.stdout.split())
    assert "surrogate.high.target" in text
    assert "initial" in text
    assert "0.25" in text
    assert max(map(len, result.stdout.splitlines())) <= 60


@pytest.mark.parametrize(
    ("a", "message"),
    [
        ("cegppo", "there is no objective 'cegppo'; did you mean 'ce_gppo'?"),
        ("none.py:mine", "there is no file"),
        ("isentrope.presets:ce_gpo", "isentrope.presets has no 'ce_gpo'; did you mean 'ce_gppo'?"),
        ("isentrope.presets:names", "isentrope.presets:names is function, not an Objective"),
        ("none.toml", "cannot read none.toml"),
        ("surogate.high = 1", "an objective has no slot 'surogate'; did you mean 'surrogate'?"),
        ('preset = "grpo"\nsurrogate.hihg = 1', "surrogate: PPOClip has no field 'hihg'; did you mean 'high'?"),
        (
            'preset = "grpo"\nsurrogate.rule = "PPOClpi"',
            "surrogate: there is no rule 'PPOClpi'; did you mean 'PPOClip'?",
        ),
        (
            'preset = "grpo"\nsurrogate.high = "wide"',
            "PPOClip.high must be a number, or a controller that stays, in [0, inf]",
        ),
        ("preset = grpo", "is not valid TOML"),
    ],
)
def test_what_is_not_understood_ends_in_one_line_that_names_the_nearest(a, message):
    result = diff(a, "grpo")
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("isentrope: ")
    assert message in line


def test_help_states_the_exit_status_and_an_example():
    text = " ".join(diff("--help").stdout.split())
    assert "isentrope diff grpo ce_gppo" in text
    assert "0 where they are equal, 1 where they differ, 2 for bad input" in text
