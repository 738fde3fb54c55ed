"""`isentrope list`: every objective that has a name, those of other packages too, and every rule."""

import importlib
import json
import subprocess
import sys
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from isentrope import catalogue, presets, spec
from isentrope.cli import app
from isentrope.errors import IsentropeError
from isentrope.objective import Objective

RULES = """
from dataclasses import replace
from isentrope import presets

calm = replace(presets.ce_gppo, surrogate=replace(presets.ce_gppo.surrogate, keep_high=0.7))
"""


def listed(*arguments, columns=120):
    return CliRunner().invoke(app, ["list", *arguments], env={"COLUMNS": str(columns)})


def data(*arguments):
    result = listed(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Puts a package on the path whose metadata offers objectives: package(name, entry points)."""
    added = []

    def make(name, offers, text=RULES):
        (tmp_path / f"{name}.py").write_text(text)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"[{spec.ENTRY_POINT_GROUP}]", *(f"{key} = {value}" for key, value in offers.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        added.append(name)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield make
    for name in added:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_names_every_preset_within_the_terminal(columns):
    result = listed(columns=columns)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    first = {line.split(" ")[0] for line in lines}
    assert set(presets.names()) <= first


def test_a_row_says_paper_slots_knobs_and_entropy():
    (row,) = [line for line in listed().stdout.splitlines() if line.startswith("ce_gppo ")]
    for text in ("2509.20712", "surrogate, aggregate", "keep_low-, keep_high+", "steered by two knobs"):
        assert text in row
    (row,) = [line for line in listed().stdout.splitlines() if line.startswith("adapo ")]
    assert "high+*" in row, "a controller moves it"


def test_json_says_the_same():
    rows = {row["name"]: row for row in data()}
    assert list(rows)[: len(presets.names())] == list(presets.names())
    assert rows["grpo"]["slots"] == []
    assert rows["adapo"] == {
        "name": "adapo",
        "from": "isentrope",
        "papers": ["2603.11682"],
        "slots": ["surrogate", "aggregate"],
        "knobs": [{"path": "surrogate.high", "entropy": "raises", "controller": "EntropyServo"}],
        "changes": catalogue.ENTRIES["adapo"].changes,
        "entropy": "steered to a target",
        "error": None,
    }
    controlled = {name: [k["path"] for k in row["knobs"] if k["controller"]] for name, row in rows.items()}
    assert {name: list(getattr(presets, name).controllers()) for name in presets.names()} == {
        name: paths for name, paths in controlled.items() if name in presets.names()
    }


def test_every_rule_and_controller_is_listed_once_with_what_its_docstring_says():
    rows = data("--rules")
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names))
    assert set(names) == set(spec.rule_names())
    (row,) = [row for row in rows if row["name"] == "PPOClip"]
    assert row["slot"] == "surrogate"
    assert row["summary"].startswith("J = min(r A, clip(r, 1 - low, 1 + high) A)")
    assert {row["slot"] for row in rows} <= {*(f.name for f in fields(Objective)), "any number"}


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_of_rules_names_each_slot_once(columns):
    lines = listed("--rules", columns=columns).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert sum(line.startswith("surrogate ") for line in lines) == 1
    assert sum("GradientPreservingClip" in line for line in lines) == 1


# -- objectives of other packages ----------------------------------------------------------------------


def test_a_package_offers_an_objective_by_name(package):
    package("calm_rules", {"calm": "calm_rules:calm"})
    objective = spec.load("calm")
    assert objective.surrogate.keep_high == 0.7
    (row,) = [row for row in data() if row["name"] == "calm"]
    assert (row["from"], row["slots"], row["entropy"]) == ("calm_rules:calm", ["surrogate", "aggregate"], None)
    assert "2509.20712" in row["papers"]
    assert any(line.startswith("calm ") and "calm_rules:calm" in line for line in listed().stdout.splitlines())
    shown = CliRunner().invoke(app, ["show", "calm"], env={"COLUMNS": "120"}).stdout
    assert "closest preset: ce_gppo (differs in surrogate.keep_high)" in shown


@pytest.mark.parametrize("taken", ["grpo", "calm"])
def test_a_name_that_is_taken_is_refused_everywhere(package, taken):
    package("calm_rules", {"calm": "calm_rules:calm"})
    package("other_rules", {taken: "other_rules:calm"})
    with pytest.raises(IsentropeError, match=f"objective '{taken}' is offered twice"):
        spec.load("grpo")
    result = listed()
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert "uninstall one of them" in line


def test_a_package_that_cannot_be_loaded_hides_nothing_else(package):
    package("broken_rules", {"broken": "broken_rules:calm"}, text="import nothing_of_this_name\n")
    rows = {row["name"]: row for row in data()}
    assert "No module named 'nothing_of_this_name'" in rows["broken"]["error"]
    assert rows["ce_gppo"]["error"] is None
    assert "nothing_of_this_name" in "".join(listed().stdout.split())
    result = CliRunner().invoke(app, ["show", "broken"])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "objective 'broken': broken_rules:calm cannot be loaded: ModuleNotFoundError" in line


def test_what_a_package_offers_must_be_an_objective(package):
    package("odd_rules", {"odd": "odd_rules:odd"}, text="odd = 3\n")
    assert {row["name"]: row["error"] for row in data()}["odd"] == "odd is int, not an Objective"


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m isentrope list --json | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[", "")


def test_help_has_examples():
    text = " ".join(listed("--help").stdout.split())
    assert "isentrope list --rules --json" in text
