"""The wheel at a user's: in an environment of its own, without the repository, with what it declares and no more."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .environments import Environment

pytestmark = pytest.mark.slow
TEN_SECONDS = ["--steps", "2", "--set", "trainer.problems=64", "--set", "evaluation.problems=8"]
# What no module imports and a run, a kernel or a type checker reads.
DATA = ["py.typed", "embedded/model.safetensors", "recipes/default.toml", "_kernels/head.cpp", "report/assets/base.js"]
LOOK = """
import json, sys
import isentrope
from importlib import metadata, resources
beyond = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(json.dumps({
    "version": metadata.version("isentrope"),
    "file": isentrope.__file__,
    "hosts": sorted(beyond & {"transformers", "trl", "typer", "pydantic", "numpy", "pyarrow"}),
    "missing": [name for name in DATA if not (resources.files("isentrope") / name).is_file()],
}))
"""


@pytest.fixture(scope="session")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def environment(wheel: Path, factory: pytest.TempPathFactory, *extras: str) -> Environment:
    made = Environment(factory.mktemp("environment") / "venv", wheel, extras)
    made.check()
    return made


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """What the command says; torch without numpy has a warning of its own before it."""
    return done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(wheel, tmp_path_factory)


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(wheel, tmp_path_factory, "cli")


@pytest.fixture(scope="module")
def trl(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(wheel, tmp_path_factory, "trl")


def test_the_bare_package_carries_its_data_and_imports_torch_alone(root: Path, bare: Environment) -> None:
    found = json.loads(bare.run("python", "-c", f"DATA = {DATA!r}\n{LOOK}").stdout)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert found["version"] == project["version"]
    assert Path(found["file"]).is_relative_to(bare.site)
    assert found["hosts"] == []
    assert found["missing"] == []
    assert "torch" in bare.packages
    assert bare.packages.isdisjoint({"typer", "pydantic", "transformers", "trl", "numpy"})


@pytest.mark.parametrize("verb", ["list", "train"])
def test_without_extras_a_command_says_what_to_install(bare: Environment, verb: str) -> None:
    line = last_line(bare.run("isentrope", verb, fails=True))
    assert "typer" in line
    assert "pip install 'isentrope[trl]'" in line


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["list"], 0, "gepo"),
        (["show", "ce_gppo"], 0, "keep_high"),
        (["diff", "grpo", "ce_gppo"], 1, "surrogate"),  # 1: they differ
        (["check", "grpo", "--examples", "3"], 0, "laws"),
        (["doctor"], 0, "pip install 'isentrope[trl]'"),
    ],
)
def test_the_extra_cli_is_enough_for_what_trains_nothing(
    commands: Environment, arguments: list[str], status: int, expected: str
) -> None:
    assert "transformers" not in commands.packages
    assert expected in commands.run("isentrope", *arguments, fails=bool(status)).stdout


def test_training_without_a_host_names_the_extra_that_brings_one(commands: Environment) -> None:
    line = last_line(commands.run("isentrope", "train", fails=True))
    assert "pip install 'isentrope[trl]'" in line


def test_the_wheel_trains_and_evaluates_outside_the_repository(trl: Environment) -> None:
    done = trl.run("isentrope", "train", *TEN_SECONDS, "--out", "run", "--json")
    summary = json.loads(done.stdout)
    assert summary["steps"] == 2
    assert not summary["interrupted"]
    assert (trl.work / "run" / "metrics.jsonl").read_text(encoding="utf-8").count("\n") >= 2


def test_its_doctor_finds_nothing_wrong(trl: Environment) -> None:
    found = {item["part"]: item["state"] for item in json.loads(trl.run("isentrope", "doctor", "--json").stdout)}
    assert found["trl"] == found["cli"] == found["report"] == "ok"
    assert found["verl"] == "absent"
    assert "wrong" not in found.values()
