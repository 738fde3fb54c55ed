"""A run that is killed at any moment, and continued, ends as if nothing had happened."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kills.py")


@pytest.mark.slow
@pytest.mark.engine
def test_a_run_that_was_killed_thirty_times_ends_as_the_undisturbed_one(tmp_path):
    command = [sys.executable, SCRIPT, tmp_path, "--kills", "30", "--seed", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=550)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.endswith("30 kills; the runs are equal\n")
    assert found.stdout.count("killed at") == 30
