"""FSDP2 rounds what its root returns to bfloat16; the guard undoes it at the root and nowhere else."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from isentrope.precision import on_grid

from .harness import MARKS

pytestmark = [*MARKS, pytest.mark.slow]
SCRIPT = Path(__file__).parent / "fsdp2_processes.py"


def start(model: str, out: Path, *without: str) -> dict[str, Any]:
    """Train on two processes with some guards off; what the first rank saw, once it is clear that FSDP2 ran."""
    out.mkdir(exist_ok=True)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launch, str(SCRIPT), model, str(out), *without]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = (torch.load(out / f"result{rank}.pt", weights_only=False) for rank in range(2))
    assert first["processes"] == second["processes"] == 2
    assert first["type"] == "FSDP"
    assert first["sharded"]
    assert second["sharded"]
    found: dict[str, Any] = first
    return found


def test_without_guards_log_probabilities_arrive_rounded(tiny_path: str, tmp_path: Path) -> None:
    found = start(tiny_path, tmp_path / "out", "fsdp2_output", "float32_logp")
    assert set(found["policies"].values()) == {torch.bfloat16}
    assert {logp.dtype for logp in found["logp"]} == {torch.bfloat16}


def test_the_guard_of_the_format_stops_such_a_run_and_names_fsdp2(tiny_path: str, tmp_path: Path) -> None:
    found = start(tiny_path, tmp_path / "out", "fsdp2_output")
    assert found["error"].startswith("float32_logp: ")
    assert "FSDP2 casts what the root module returns to its output_dtype" in found["error"]


def test_the_guard_makes_the_root_return_float32_and_leaves_its_children(tiny_path: str, tmp_path: Path) -> None:
    found = start(tiny_path, tmp_path / "out")
    assert not found["error"]
    root, children = found["policies"].pop(""), found["policies"]
    assert root is torch.float32
    assert len(children) >= 4, "embedding, layer, norm and head are sharded apart"
    assert set(children.values()) == {torch.bfloat16}
    for logp in found["logp"]:
        assert logp.dtype is torch.float32
        assert on_grid(logp) < 0.1, "rounded although its type is float32"
    assert len(found["losses"]) == 2
    assert all(math.isfinite(loss) for loss in found["losses"])
