"""docs/cluster.md: its files parse, its sizes are those of `isentrope.sizing`. For its keys see tests/verl."""

import doctest
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from isentrope.sizing import GIB, KNOWN

yaml = pytest.importorskip("yaml", reason="transformers brings PyYAML")

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cluster.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("make_cluster", PAGE.with_name("make_cluster.py"))
    module = importlib.util.module_from_spec(found)
    sys.modules["make_cluster"] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", blocks("bash"))
def test_shell_scripts_parse(text: str) -> None:
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""


def test_slurm_asks_for_what_the_job_uses() -> None:
    (text,) = (block for block in blocks("bash") if "#SBATCH" in block)
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.MULTILINE))
    (job,) = (block for block in blocks("bash") if "main_ppo" in block)
    assert asked["nodes"] == re.search(r"trainer\.nnodes=(\d+)", job)[1]
    assert asked["gpus-per-node"] == re.search(r"trainer\.n_gpus_per_node=(\d+)", job)[1]
    assert text.startswith("#!/bin/bash\n#SBATCH")


def test_the_ray_job_parses_and_mounts_what_it_names() -> None:
    (job,) = [yaml.safe_load(text) for text in blocks("yaml")]
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    yaml.safe_load(job["spec"]["runtimeEnvYAML"])
    cluster = job["spec"]["rayClusterSpec"]
    templates = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for pod in (group["template"]["spec"] for group in templates):
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            assert container["resources"]["limits"] == container["resources"]["requests"]
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 4


def test_the_sizing_table_is_what_the_script_prints(script: ModuleType) -> None:
    section = PAGE.read_text("utf-8").partition("## Sizing")[2]
    assert [line for line in section.splitlines() if line.startswith("|")] == script.table()


def test_the_scripts_example_is_true(script: ModuleType) -> None:
    assert doctest.testmod(script) == (0, 1)


def test_states_are_sixteen_bytes_a_parameter_over_the_gpus(script: ModuleType) -> None:
    for row in script.ROWS:
        cells: list[Any] = [cell.strip() for cell in script.line(row).split("|")[1:-1]]
        parameters = KNOWN[row.name].architecture.parameters
        assert float(cells[3]) == pytest.approx(16 * parameters / row.gpus / GIB, abs=0.01)
        assert float(cells[7]) == pytest.approx(sum(map(float, cells[3:6])), abs=0.02)
