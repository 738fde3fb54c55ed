"""Two processes train as one does: same gradients, controllers and metrics on every rank."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .harness import MARKS, relative_distance

pytestmark = [*MARKS, pytest.mark.slow]
SCRIPT = Path(__file__).parent / "two_processes.py"


def start(processes: int, model: str, out: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run the script under torchrun and read what each rank saved."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launch if processes > 1 else []), str(SCRIPT), model, str(out), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(out / f"result{rank}.pt", weights_only=False) for rank in range(processes)]


def close(a: dict[str, float], b: dict[str, float], rel: float) -> bool:
    keys = {k for k in b if not k.startswith(("train_", "step_time", "total_flos", "grad_norm"))}
    assert keys <= set(a)
    return all(a[k] == pytest.approx(b[k], rel=rel, abs=1e-6) for k in keys)


@pytest.mark.parametrize("objective", ["gepo", "adapo"])
def test_two_processes_equal_one(objective: str, tiny_path: str, tmp_path: Path) -> None:
    (one,) = start(1, tiny_path, tmp_path / "one", objective)
    first, second = start(2, tiny_path, tmp_path / "two", objective)
    assert first["world"] == 2
    for mine, theirs in zip(first["gradients"], one["gradients"], strict=True):
        assert theirs.abs().max() > 1e-3
        assert relative_distance(mine, theirs) < 5e-5
    for a, b in zip(first["parameters"], second["parameters"], strict=True):
        assert torch.equal(a, b)
    assert first["state"] == second["state"] != {}
    assert first["state"] == pytest.approx(one["state"], rel=1e-5)
    assert all(close(a, b, rel=1e-3) for a, b in zip(first["history"], one["history"], strict=True))


def test_two_processes_resume_in_the_middle_of_a_rollout(tiny_path: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    whole = start(2, tiny_path, out, "adapo")
    resumed = start(2, tiny_path, out, "adapo", str(out / "checkpoint-3"))
    for rank in range(2):
        for a, b in zip(resumed[rank]["parameters"], whole[rank]["parameters"][3:], strict=True):
            assert torch.equal(a, b)
        assert resumed[rank]["state"] == whole[rank]["state"]
