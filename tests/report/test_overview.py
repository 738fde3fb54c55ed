"""Tables over the runs."""

from pathlib import Path

import pytest

from isentrope import presets, spec
from isentrope.report import overview
from isentrope.report.data import Curve, RunData, load

from . import synthetic


def cells(rows):
    return {row.label: row.cells for row in rows}


def test_results_stand_side_by_side(tmp_path):
    runs = load(
        [synthetic.write_run(tmp_path / "a", dumped=()), synthetic.write_run(tmp_path / "b", steps=20, dumped=())]
    )
    found = cells(overview.results(runs))
    assert found["steps"] == ("40", "20")
    assert found["countdown: pass@1, before \u2192 after"] == ("20.0% \u2192 50.0%",) * 2
    assert found["completion length, tokens"][0] == "29.7 \u2192 25.2"
    assert float(found["predicted against measured change, correlation"][0]) > 0.8


def test_measures_that_no_run_has_are_left_out():
    run = RunData("a", Path("a"), curves={"reward": Curve((1, 2), (0.5, 0.5))})
    assert set(cells(overview.results([run]))) == {"steps", "reward, first \u2192 last tenth"}


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_is_recognised_by_its_rules(name):
    run = RunData("a", Path("a"), recipe={"objective": spec.to_dict(getattr(presets, name))})
    said = cells(overview.settings([run]))["objective"][0]
    assert getattr(presets, said) == getattr(presets, name)


def test_a_variant_names_the_preset_and_what_differs():
    table = spec.to_dict(presets.ce_gppo)
    table["surrogate"]["keep_low"] = 0.75
    run = RunData("a", Path("a"), recipe={"objective": table})
    assert cells(overview.settings([run]))["objective"] == ("ce_gppo, surrogate.keep_low 0.75",)


def test_rules_of_a_users_own_are_named_and_not_loaded(tmp_path):
    file = tmp_path / "evil.py"
    file.write_text(f"open({str(tmp_path / 'hacked')!r}, 'w')\n")
    slots = ("advantage", "shaping", "ratio", "surrogate", "correction", "aggregate")
    run = RunData("a", Path("a"), recipe={"objective": {slot: {"rule": f"{file}:Rule"} for slot in slots}})
    assert f"{file}:Rule" in cells(overview.settings([run]))["objective"][0]
    assert not (tmp_path / "hacked").exists()


def test_only_what_differs_between_recipes_is_listed():
    runs = [
        RunData(
            str(i),
            Path(str(i)),
            recipe={"seed": i, "same": 1, "task": [{"name": "math", "weight": w}], "only": {"b": 2} if i else {}},
        )
        for i, w in enumerate((1.0, 2.0))
    ]
    assert cells(overview.recipe_differences(runs)) == {
        "only.b": ("\u2013", "2"),
        "seed": ("0", "1"),
        "task[math].weight": ("1", "2"),
    }
    assert overview.recipe_differences(runs[:1]) == []


def test_versions_of_all_runs_are_listed_in_order():
    runs = [
        RunData("a", Path("a"), versions={"torch": "2", "trl": None}),
        RunData("b", Path("b"), versions={"torch": "3", "x": 1}),
    ]
    assert cells(overview.versions(runs)) == {"torch": ("2", "3"), "trl": ("\u2013",) * 2, "x": ("\u2013", "1")}
