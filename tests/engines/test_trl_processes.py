"""Two and four processes train as one does: same gradients, controllers and metrics on every rank."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isentrope import presets
from isentrope.control import EntropySwitch
from isentrope.rollout import Rollout
from isentrope.select import VaryingReward

from .harness import MARKS, relative_distance

pytestmark = [*MARKS, pytest.mark.slow]
NOISE = "diagnostics/gradient_noise"
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
    # the noise scale is estimated from the first micro-batch of each rank, which differ
    keys = {k for k in b if not k.startswith(("train_", "step_time", "total_flos", "grad_norm"))} - {NOISE}
    assert keys <= set(a)
    return all(a[k] == pytest.approx(b[k], rel=rel, abs=1e-6) for k in keys)


def compare(objective: str, model: str, out: Path, processes: int = 2) -> list[dict[str, float]]:
    """Assert that several processes do what one does, and return what the one logged."""
    (one,) = start(1, model, out / "one", objective)
    first, *others = start(processes, model, out / "several", objective)
    assert first["world"] == processes == 1 + len(others)
    for step, (mine, theirs) in enumerate(zip(first["gradients"], one["gradients"], strict=True)):
        assert theirs.abs().max() > 1e-3
        # rounding grows about tenfold in two updates of this size; the first rollout batch has seen little of it
        assert relative_distance(mine, theirs) < (5e-6 if step < 2 else 1e-3)
    for other in others:
        for a, b in zip(first["parameters"], other["parameters"], strict=True):
            assert torch.equal(a, b)
        assert first["state"] == other["state"]
        assert first["prompts"] == other["prompts"]
        assert first["norms"] == other["norms"]
    assert first["state"] == pytest.approx(one["state"], rel=1e-5)
    for a, b in zip(first["history"], one["history"], strict=True):
        assert close(a, b, rel=1e-3), (a, b)
    assert first["prompts"] == one["prompts"]
    assert first["norms"][1] == pytest.approx(one["norms"][1], rel=1e-4)
    assert first["norms"][0] > first["norms"][1], "the gradient of a quarter of the rows is noisier than that of all"
    history: list[dict[str, float]] = one["history"]
    return history


@pytest.mark.parametrize("objective", ["gepo", "adapo"])
def test_two_processes_equal_one(objective: str, tiny_path: str, tmp_path: Path) -> None:
    lines = compare(objective, tiny_path, tmp_path)
    assert [key for line in lines for key in line if key.startswith("controller/")]
    assert [line for line in lines if "diagnostics/change_correlation" in line]


def test_four_processes_equal_one(tiny_path: str, tmp_path: Path) -> None:
    compare("adapo", tiny_path, tmp_path, processes=4)


def test_a_process_that_dies_ends_the_job_with_its_rank(tiny_path: str, tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launch, str(SCRIPT), tiny_path, str(tmp_path), "adapo"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DIES": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "Signal 9 (SIGKILL) received by PID" in done.stderr
    assert re.search(r"rank +: 1 \(local_rank: 1\)", done.stderr)


def test_two_processes_sample_the_same_share_at_another_temperature(tiny_path: str, tmp_path: Path) -> None:
    temperature = EntropySwitch(below=1.2, above=0.8, start=1.2)
    objective = replace(presets.arbitrary_entropy, rollout=Rollout(temperature=temperature, share=0.25))
    lines = compare(str(objective), tiny_path, tmp_path)
    assert len({line["rollout/temperature"] for line in lines if "rollout/temperature" in line}) == 2
    assert [line for line in lines if "rollout/tempered_reward" in line]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_two_processes_replace_the_same_groups(share: float, tiny_path: str, tmp_path: Path) -> None:
    rollout = Rollout(rounds=2) if share == 1 else Rollout(temperature=0.9, share=share, rounds=2)
    objective = replace(presets.dapo_full, select=(VaryingReward(),), rollout=rollout)
    lines = compare(str(objective), tiny_path, tmp_path)
    replaced = [line["dynamic_sampling/replaced"] for line in lines if "dynamic_sampling/replaced" in line]
    assert any(replaced)
    assert any(number % 2 for number in replaced), "an odd number of groups does not divide among two ranks"


def test_two_processes_draw_the_same_prompts_by_pass_rate(tiny_path: str, tmp_path: Path) -> None:
    (one,) = start(1, tiny_path, tmp_path / "one", "curriculum")
    first, second = start(2, tiny_path, tmp_path / "two", "curriculum")
    assert first["world"] == 2
    assert first["prompts"] == second["prompts"] == one["prompts"]
    assert sum(rate is not None for rate in one["prompts"]["rates"]) > 4
    assert relative_distance(first["gradients"][0], one["gradients"][0]) < 5e-6
    keys = ("curriculum/seen", "curriculum/new", "curriculum/in_band", "curriculum/pass_rate", "reward/low")
    mine, theirs = ([[line.get(key, -1.0) for key in keys] for line in run["history"]] for run in (first, one))
    assert [x for line in mine for x in line] == pytest.approx([x for line in theirs for x in line], rel=1e-6)


def test_two_processes_resume_in_the_middle_of_a_rollout(tiny_path: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    whole = start(2, tiny_path, out, "adapo")
    resumed = start(2, tiny_path, out, "adapo", str(out / "checkpoint-3"))
    for rank in range(2):
        for a, b in zip(resumed[rank]["parameters"], whole[rank]["parameters"][3:], strict=True):
            assert torch.equal(a, b)
        assert resumed[rank]["state"] == whole[rank]["state"]
