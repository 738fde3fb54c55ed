"""A disk that is full or must not be written: one clear line, and the last checkpoint stays whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isentrope.record import RunFolder

RUN = ["--steps", "12", "--set", "evaluation.problems=0", "--set", "trainer.prompts=4", "--set", "trainer.group_size=4"]
pytestmark = [pytest.mark.slow, pytest.mark.engine]


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of 12 MB: a checkpoint of the embedded model takes 4.5 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", place], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def train(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "isentrope", "train", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_a_full_disk_stops_the_run_with_one_line_and_leaves_the_last_checkpoint(small_disk: Path):
    folder = RunFolder(small_disk / "run")
    keep = ["--set", "output.checkpoint_every=2", "--set", "output.keep_checkpoints=9"]
    found = train(*RUN, *keep, "--out", folder.path)
    assert found.returncode == 1
    assert f"no space left for {folder.path}" in found.stderr
    assert "make room and continue with --resume" in found.stderr
    last = folder.last_checkpoint()
    assert last is not None
    assert last.name != "checkpoint-12"
    (small_disk / "run" / "error.txt").unlink(missing_ok=True)
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    found = train("--resume", "--out", folder.path)
    assert found.returncode == 0, found.stderr
    assert folder.last_checkpoint().name == "checkpoint-12"


def test_a_disk_that_turns_read_only_stops_the_run_with_one_line(small_disk: Path):
    folder = RunFolder(small_disk / "run")
    assert train(*RUN, "--steps", 4, "--out", folder.path).returncode == 0
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    found = train("--resume", "--steps", 8, "--out", folder.path)
    assert found.returncode == 2
    assert "Read-only file system" in found.stderr
    assert "choose a folder that can be written with --out" in found.stderr
    assert folder.last_checkpoint().name == "checkpoint-4"
