"""What the verbs share: how the program is called, and where it writes."""

import sys
import time

import pytest

from isentrope.cli._output import new_folder, program


@pytest.fixture
def script(tmp_path, monkeypatch):
    path = tmp_path / ".venv" / "bin" / "isentrope"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "train"])
    monkeypatch.setenv("PATH", "/nowhere")
    return path


def test_a_program_that_the_shell_does_not_find_is_called_by_its_path(script):
    assert program() == ".venv/bin/isentrope"


def test_from_outside_its_folder_it_is_called_by_its_whole_path(script, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert program() == str(script)


def test_a_program_on_the_path_is_called_by_its_name(script, monkeypatch):
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == "isentrope"


def test_a_module_that_was_run_is_called_as_documented(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/x/isentrope/__main__.py", "train"])
    assert program() == "isentrope"


def test_folders_of_one_second_differ(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "20250102-030405")
    found = []
    for _ in range(3):
        found.append(new_folder("evaluations", "mine"))
        found[-1].mkdir(parents=True)
    assert [str(path) for path in found] == [f"evaluations/20250102-030405-mine{end}" for end in ("", "-2", "-3")]
