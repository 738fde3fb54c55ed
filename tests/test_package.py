"""The package as a user gets it: what it needs, what it carries, what it calls itself."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from importlib import metadata, resources
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import isentrope

REPORT = "import sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"


def project_name(requirement: str) -> str:
    """`Tomli_W>=1.1; extra == "cli"` -> `tomli-w`."""
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return found.group().lower().replace("_", "-")


@cache
def loaded_by(statement: str) -> frozenset[str]:
    """Top-level names in sys.modules after `statement` in a fresh interpreter."""
    command = [sys.executable, "-c", f"{statement}\n{REPORT}"]
    return frozenset(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


@pytest.mark.parametrize("module", ["isentrope", "isentrope.presets", "isentrope.spec", "isentrope.diagnostics"])
def test_importing_the_core_loads_torch_and_the_standard_library_only(module: str) -> None:
    beyond_torch = loaded_by(f"import {module}") - loaded_by("import torch") - set(sys.stdlib_module_names)
    assert beyond_torch == {"isentrope"}


def test_the_version_stands_in_one_place(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert isentrope.__version__ == metadata.version("isentrope") == project["version"]


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files("isentrope").joinpath("py.typed").is_file()


def test_the_core_asks_for_torch_alone() -> None:
    needed = [line for line in metadata.requires("isentrope") or [] if "extra ==" not in line]
    assert [project_name(line) for line in needed] == ["torch"]


@pytest.mark.parametrize(("missing", "arguments"), [("typer", []), ("trl", ["train", "--out", "run"])])
def test_a_missing_extra_is_named_in_one_line(missing: str, arguments: list[str], tmp_path: Path) -> None:
    hidden = f"import sys; sys.modules[{missing!r}] = None; sys.argv[1:] = {arguments!r}"
    command = [sys.executable, "-c", f"{hidden}; from isentrope.__main__ import main; main()"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert missing in line
    assert "pip install 'isentrope[trl]'" in line


def test_every_pin_is_exact_and_names_no_place(root: Path) -> None:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if pin.count("==") != 1 or set(pin) & set("@/+ ;")] == []
    assert [line for line in lines if "://" in line or line.startswith("-")] == []


def test_every_requirement_has_a_tested_pin(root: Path) -> None:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {project_name(line) for line in lines if not line.startswith("#")}
    tested = [line for line in metadata.requires("isentrope") or [] if "extra == 'verl'" not in line.replace('"', "'")]
    wanted = {project_name(line) for line in tested}
    assert wanted - {"isentrope"} - pins == set()


def test_a_wheel_carries_every_file_of_the_source(root: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=root,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    source = {
        path.relative_to(root / "src").as_posix()
        for path in (root / "src" / "isentrope").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("isentrope/")}
    assert packed == source


def pins(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {project_name(line): line.partition("==")[2] for line in lines}


def test_the_lowest_set_holds_every_lower_bound(root: Path) -> None:
    lowest = pins(root / "constraints-lowest.txt")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    bounds = [Requirement(text) for extra in ("cli", "trl", "tasks", "report") for text in extras[extra]]
    bounds = [bound for bound in bounds if bound.name != "isentrope"]
    assert len(bounds) > 10
    for bound in bounds:
        (low,) = [part.version for part in bound.specifier if part.operator == ">="]
        assert Version(lowest[project_name(bound.name)]) == Version(low), bound


def test_every_declared_python_is_run_by_the_forge_and_no_other(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    workflow = (root / ".github/workflows/test.yml").read_text(encoding="utf-8")
    run = set(re.findall(r'"(3\.\d+)"', workflow))
    assert named
    assert set(named) == run
    allowed = SpecifierSet(project["requires-python"])
    assert all(allowed.contains(version) for version in named)
    oldest = min(Version(version) for version in named)
    assert not allowed.contains(f"3.{oldest.minor - 1}"), "nothing was run on an older one"


def test_the_citation_names_this_version(root: Path) -> None:
    text = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", text, re.MULTILINE)[1] == isentrope.__version__


def test_the_forge_calls_the_same_targets_as_a_user(root: Path) -> None:
    made = set(re.findall(r"^([a-z0-9-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = re.findall(r"run: make (\S+)", (root / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    assert called
    assert set(called) <= made


def test_every_runtime_requirement_has_a_reason(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (root / "docs" / "dependencies.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| ([\w()]+) \| ([\w-]+) \|", page, re.MULTILINE)) - {("extra", "package")}
    wanted = {("(core)", project_name(text)) for text in project["dependencies"]}
    for extra in project["optional-dependencies"].keys() - {"dev", "test"}:
        wanted |= {(extra, project_name(text)) for text in project["optional-dependencies"][extra]}
    wanted = {(extra, name) for extra, name in wanted if name != "isentrope"}
    assert {(extra, name.lower()) for extra, name in rows} == {(extra, name.lower()) for extra, name in wanted}
