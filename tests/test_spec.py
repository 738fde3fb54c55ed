"""Specifications: every way to name an objective, what is said of mistakes, and what differs between two."""

import sys
from dataclasses import replace

import pytest
import torch

from isentrope import IsentropeError, presets, spec
from isentrope.control import EntropyPI
from isentrope.schedule import Piecewise
from isentrope.shaping import GroupEntropyGate
from isentrope.surrogate import GradientPreservingClip, PPOClip

FILE = """
from dataclasses import dataclass, replace
from isentrope import presets
from isentrope.surrogate import PPOClip

@dataclass(frozen=True)
class Halved:
    factor: float = 0.5
    label: str = ""

    def __call__(self, advantage, *, mask):
        return advantage * self.factor

def untouched(advantage, *, mask):
    return advantage

mine = replace(presets.grpo, shaping=(Halved(0.25), untouched))
number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rules.py"
    path.write_text(FILE)
    return path


def test_a_name_is_a_preset():
    assert spec.load("ce_gppo") is presets.ce_gppo
    assert spec.load(presets.ce_gppo) is presets.ce_gppo


def test_toml_starts_from_a_preset_and_changes_single_fields():
    found = spec.load('preset = "ce_gppo"\n[surrogate]\nkeep_low = 0.75\n')
    assert found == replace(presets.ce_gppo, surrogate=GradientPreservingClip(keep_low=0.75, keep_high=1.0))


def test_a_table_that_names_a_rule_replaces_the_presets():
    found = spec.load({"preset": "ce_gppo", "surrogate": {"rule": "PPOClip", "high": 0.3}})
    assert found == replace(presets.ce_gppo, surrogate=PPOClip(high=0.3))


def test_a_controller_is_a_table_in_the_place_of_a_number():
    text = '[advantage]\nrule = "GroupRelative"\n[surrogate]\nrule = "GradientPreservingClip"\n'
    text += 'keep_high = { rule = "EntropyPI", start = 1.0, low = 0.0, high = 2.0, kp = 0.5 }\n'
    text += 'keep_low = { rule = "Piecewise", pieces = [[0, 0.0], [10, 0.5]] }\n'
    found = spec.load(text)
    assert found.surrogate.keep_high == EntropyPI(start=1.0, low=0.0, high=2.0, kp=0.5)
    assert found.surrogate.keep_low == Piecewise(((0, 0.0), (10, 0.5)))
    assert spec.load(str(found)) == found


def test_several_rules_of_a_slot_are_an_array_of_tables():
    text = 'preset = "dapo"\n[[shaping]]\nrule = "GroupEntropyGate"\n'
    text += '[[shaping]]\nrule = "RescaleBySurprisal"\nzeta = 0.01\n'
    assert [type(rule).__name__ for rule in spec.load(text).shaping] == ["GroupEntropyGate", "RescaleBySurprisal"]


def test_a_toml_file_is_read(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(str(presets.gepo))
    assert spec.load(path) == spec.load(str(path)) == presets.gepo


def test_a_file_of_ones_own_is_run_once(file):
    first, second = spec.load(f"{file}:mine"), spec.load(f"{file}:mine")
    assert first is second
    assert first.shaping[0].factor == 0.25


def test_a_file_that_was_edited_is_run_again_even_within_a_second_and_at_the_same_length(file):
    before = spec.load(f"{file}:mine")
    file.write_text(FILE.replace("Halved(0.25)", "Halved(0.75)"))
    assert (before.shaping[0].factor, spec.load(f"{file}:mine").shaping[0].factor) == (0.25, 0.75)


def test_ones_own_rules_are_written_as_their_file_and_read_back(file):
    mine = spec.load(f"{file}:mine")
    text = str(mine)
    assert f'rule = "{file}:Halved"' in text
    assert f'rule = "{file}:untouched"' in text
    assert spec.load(text) == mine


def test_a_rule_of_ones_own_stands_in_toml(file):
    found = spec.load(f'preset = "grpo"\n[[shaping]]\nrule = "{file}:Halved"\nfactor = 0.125\n')
    assert found.shaping[0](torch.ones(1, 1), mask=None).item() == 0.125


def test_an_installed_module_may_hold_the_rule(file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent))
    try:
        found = spec.load('preset = "grpo"\n[[shaping]]\nrule = "rules:Halved"\n')
        assert type(found.shaping[0]).__name__ == "Halved"
        assert spec.load(str(found)) == found
    finally:
        sys.modules.pop("rules", None)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("ce_gpo", "there is no objective 'ce_gpo'; did you mean 'ce_gppo'.*`file.py:name`"),
        ("zzz", "there is no objective 'zzz'; there are "),
        ("nowhere.py:mine", "there is no file .*nowhere.py"),
        ("no_such_package:mine", "cannot import 'no_such_package' for 'no_such_package:mine'"),
        ("isentrope.presets:dapoo", "isentrope.presets has no 'dapoo'; did you mean 'dapo'"),
        ("isentrope.presets:names", "isentrope.presets:names is function, not an Objective"),
        ("missing.toml", "cannot read missing.toml"),
        ("a = ", "the objective is not valid TOML"),
        ({"surogate": {}}, "an objective has no slot 'surogate'; did you mean 'surrogate'"),
        ({"preset": "grpo", "surrogate": {"hihg": 1}}, "surrogate: PPOClip has no field 'hihg'; did you mean 'high'"),
        (
            {"preset": "grpo", "surrogate": {"rule": "PPOclip"}},
            "surrogate: there is no rule 'PPOclip'; did you mean 'PPOClip'",
        ),
        ({"advantage": {"eps": 1.0}}, r'advantage: the table does not name its rule; add `rule = "..."` \(found eps\)'),
        ({"preset": "grpo", "penalties": [{"rule": "ReferenceKL"}]}, "penalties.0: .*coef"),
        ({"surrogate": {"rule": "PPOClip"}}, "the objective: .*advantage"),
    ],
)
def test_a_mistake_is_named_with_what_is_near(source, message):
    with pytest.raises(IsentropeError, match=message):
        spec.load(source)


def test_a_field_out_of_range_keeps_its_sentence():
    with pytest.raises((ValueError, IsentropeError), match=r"PPOClip.low must be .* in \[0, 1\]; found 7"):
        spec.load({"preset": "grpo", "surrogate": {"rule": "PPOClip", "low": 7}})


def test_a_function_takes_no_fields(file):
    with pytest.raises(IsentropeError, match=r"shaping.0: .*untouched takes no fields; found factor"):
        spec.load({"preset": "grpo", "shaping": [{"rule": f"{file}:untouched", "factor": 1.0}]})


@pytest.mark.parametrize(
    ("name", "message"), [("number", "is int, not an Objective"), ("min", "has no 'min'; did you mean 'mine'")]
)
def test_what_a_file_does_not_offer_is_said(file, name, message):
    with pytest.raises(IsentropeError, match=message):
        spec.load(f"{file}:{name}")


def test_what_cannot_be_written_down_is_said():
    class Handle:
        def __call__(self, advantage, *, mask):
            return advantage

    with pytest.raises(IsentropeError, match="cannot be written down"):
        str(replace(presets.grpo, shaping=(Handle(),)))


@pytest.mark.parametrize(
    "text", ['say "no"', "back\\slash", "ünïcode", "two\nlines\tand a tab", "\x00\x1f\x7f\u2028", ""]
)
def test_strings_and_small_numbers_survive_toml(file, text):
    mine = spec.load(f"{file}:mine")
    changed = replace(mine, shaping=(replace(mine.shaping[0], label=text, factor=1e-300),))
    assert spec.load(str(changed)) == changed


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_prints_a_specification_that_reads_back(name):
    objective = getattr(presets, name)
    assert spec.load(str(objective)) == objective
    assert spec.from_dict(spec.to_dict(objective)) == objective
    assert spec.dumps(objective) == str(objective)


def test_differences_are_by_place():
    assert spec.difference(presets.grpo, presets.grpo) == {}
    assert spec.difference(presets.gppo, presets.ce_gppo) == {"surrogate.keep_low": (1.0, 0.5)}
    found = spec.difference(presets.grpo, replace(presets.grpo, shaping=(GroupEntropyGate(),)))
    assert found["shaping.0.rule"] == (None, "GroupEntropyGate")
    assert found["shaping.0.low.offset"] == (None, -0.2)


# -- names that packages offer -------------------------------------------------------------------------


def offer(folder, package, entries):
    """A distribution on the path that offers objectives by name."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {value}" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{spec.ENTRY_POINT_GROUP}]\n{lines}\n")


def test_a_package_offers_names(tmp_path, monkeypatch):
    offer(tmp_path, "somebodys", {"their_rule": "isentrope.presets:gepo"})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert spec.load("their_rule") == presets.gepo
    assert "their_rule" in spec.objective_names()


@pytest.mark.parametrize("twice", [{"grpo": "isentrope.presets:gepo"}, {"theirs": "isentrope.presets:gepo"}])
def test_a_name_offered_twice_is_refused(tmp_path, monkeypatch, twice):
    offer(tmp_path, "somebodys", {"theirs": "isentrope.presets:gepo"})
    offer(tmp_path, "others", twice)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(IsentropeError, match=f"objective '{next(iter(twice))}' is offered twice"):
        spec.load("ppo")


def test_an_offer_that_cannot_be_loaded_is_said(tmp_path, monkeypatch):
    offer(tmp_path, "somebodys", {"theirs": "no_such_module:rule", "wrong": "isentrope.presets:names"})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(IsentropeError, match="objective 'theirs': no_such_module:rule cannot be loaded"):
        spec.load("theirs")
    with pytest.raises(IsentropeError, match="wrong is function, not an Objective"):
        spec.load("wrong")


def test_a_preset_refined_by_place_keeps_its_other_rules():
    found = spec.load({"preset": "dapo_full", "select": {"1": {"count": "all"}}})
    assert [rule.count for rule in found.select] == ["kept", "all"]
    with pytest.raises(IsentropeError, match="does not name its rule"):
        spec.load({"preset": "dapo_full", "select": {"2": {"count": "all"}}})
