"""Damaged files of every kind that is read: each is read or refused, a minute of them on every run of the suite."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.utils.tensorboard")
SCRIPT = Path(__file__).with_name("fuzz.py")


@pytest.mark.slow
@pytest.mark.engine
def test_a_minute_of_damaged_files_shows_no_fault(tmp_path):
    command = [sys.executable, SCRIPT, "--seconds", "60", "--seed", "1", "--kept", tmp_path]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert found.returncode == 0, found.stderr
    assert found.stdout.endswith(" 0 faults\n")
