"""`isentrope doctor` says what is here, what is not, and what to do."""

import json
import shutil
from collections import namedtuple
from importlib import metadata

import pytest
import torch
from typer.testing import CliRunner

from isentrope.cli import _checkup, app

Usage = namedtuple("Usage", "total used free")


def findings(expected=0):
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == expected, result.output
    return {finding["part"]: finding for finding in json.loads(result.stdout)}


def test_a_sound_environment_has_nothing_wrong():
    found = findings()
    assert {finding["state"] for finding in found.values()} <= {"ok", "absent"}
    assert found["python"]["state"] == found["torch"]["state"] == found["cli"]["state"] == "ok"
    assert torch.__version__ in found["torch"]["what"]
    table = CliRunner().invoke(app, ["doctor"])
    assert table.exit_code == 0
    assert "Nothing is wrong." in table.output


def test_a_package_of_another_version_is_wrong_with_both_versions(monkeypatch):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == "rich" else real(name))
    found = findings(expected=1)["cli"]
    assert found["state"] == "wrong"
    assert "rich 0.1 (needs >=13.9)" in found["what"]
    assert found["do"] == "pip install 'isentrope[cli]'"


@pytest.mark.parametrize(("package", "extra"), [("trl", "trl"), ("math-verify", "tasks"), ("matplotlib", "report")])
def test_an_absent_package_is_named_with_the_extra_that_brings_it(package, extra, monkeypatch):
    real = metadata.version

    def version(name):
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    found = findings()[extra]
    assert found["state"] == "absent"
    assert package in found["what"]
    assert f"isentrope[{extra}]" in found["do"]


def test_a_disk_without_room_is_wrong(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40, 2**28))
    found = findings(expected=1)["disk"]
    assert found["what"].startswith("0.2 GiB free")
    assert "make room" in found["do"]


def test_a_driver_that_torch_does_not_see_is_wrong(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    found = findings(expected=1)["accelerator"]
    assert "CUDA" in found["do"]


def test_a_head_that_cannot_be_compiled_is_no_fault(monkeypatch):
    monkeypatch.setattr("isentrope._kernels.choose.native_fault", lambda dtype: "there is no C++ compiler")
    assert findings()["compiled head"] == {
        "part": "compiled head",
        "state": "absent",
        "what": "there is no C++ compiler",
        "do": "nothing must be done: PyTorch computes it, slower",
    }


def test_little_memory_is_wrong(monkeypatch):
    monkeypatch.setattr(_checkup, "_memory", lambda: 0.5)
    assert findings(expected=1)["memory"]["state"] == "wrong"
