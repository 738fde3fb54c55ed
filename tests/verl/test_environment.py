"""Two environments: what each pins, what a wrong or missing verl says, and that recipes load without any of it."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from isentrope import recipe
from isentrope.engines import verl_table
from isentrope.errors import IsentropeError


def _pins(path):
    lines = path.read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def _extra(root, name):
    table = tomllib.loads((root / "pyproject.toml").read_text())
    return [Requirement(text) for text in table["project"]["optional-dependencies"][name]]


def test_the_cluster_engines_pins_meet_what_its_extra_asks_for(root):
    pins = {name.lower().replace("_", "-"): version for name, version in _pins(root / "constraints-verl.txt").items()}
    for wanted in _extra(root, "verl") + _extra(root, "test"):
        if wanted.name != "isentrope":
            assert wanted.specifier.contains(Version(pins[wanted.name.lower()])), wanted
    low, high = verl_table.TESTED
    assert low <= Version(pins["verl"]).release[:2] < high
    assert str(next(r for r in _extra(root, "verl") if r.name == "verl").specifier) == "<0.10,>=0.9"


def test_both_environments_have_the_same_torch(root):
    assert _pins(root / "constraints.txt")["torch"] == _pins(root / "constraints-verl.txt")["torch"]


def test_every_package_is_pinned_once_to_a_release(root):
    lines = [line for line in (root / "constraints-verl.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][\w.!]*", line) for line in lines), "no local versions, no paths"
    names = [line.partition("==")[0].lower() for line in lines]
    assert len(set(names)) == len(names)
    assert "vllm" not in names


@pytest.mark.parametrize("version", ["0.8.9", "0.10.0", "1.0.0"])
def test_a_verl_outside_the_tested_range_is_refused(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(IsentropeError) as caught:
        verl_table.check_version()
    assert str(caught.value) == (
        f"verl is {version}; isentrope is tested with >= 0.9, < 0.10: pip install 'verl>=0.9,<0.10'"
    )


@pytest.mark.parametrize("version", ["0.9.0", "0.9.1", "0.9.12.post1"])
def test_a_verl_inside_it_is_taken(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    assert verl_table.check_version() == version


def test_a_missing_verl_says_how_to_get_it(monkeypatch):
    def missing(_):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(IsentropeError, match=r"pip install 'isentrope\[verl\]', or make \.venv-verl"):
        verl_table.check_version()


def test_a_recipe_for_the_cluster_is_read_where_verl_is_missing(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "verl" else found(name, *rest))
    assert recipe.load("verl").verl["actor_rollout_ref.actor.optim.betas"] == [0.9, 0.99]
    with pytest.raises(IsentropeError, match="is set by trainer"):
        recipe.load("verl", ["verl.data.train_batch_size=3"])


def test_reading_recipes_imports_no_host_framework():
    text = """
import sys
from isentrope import recipe
recipe.parse('engine = "verl"'); recipe.parse("")
print([name for name in ("verl", "ray", "trl", "transformers", "hydra") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_verl_finds_our_modules_by_their_entry_points():
    found = {entry.name: entry.value for entry in importlib.metadata.entry_points(group="verl.plugins")}
    assert found["isentrope"] == "isentrope.engines.verl"
    assert found["isentrope_laptop"] == "isentrope.engines.verl_laptop"
    for value in found.values():
        if value.startswith("isentrope."):
            assert importlib.util.find_spec(value) is not None
