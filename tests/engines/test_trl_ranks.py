"""One process, two and four under DDP and under FSDP2: the same loss, gradients and controllers, in numbers.

    python -m pytest tests/engines/test_trl_ranks.py -s

prints the largest differences, which docs/guarantees.md gives.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from isentrope import presets
from isentrope.control import EntropyPI

from .harness import MARKS, relative_distance

pytestmark = [*MARKS, pytest.mark.slow]
SCRIPT = Path(__file__).parent / "rank_processes.py"
PI = EntropyPI(start=1.0, kp=2.0, ki=1.0, low=0.0, high=4.0, target=2.0)
OBJECTIVES = {
    "ce_gppo with PI": str(replace(presets.ce_gppo, surrogate=replace(presets.ce_gppo.surrogate, keep_high=PI))),
    "gepo on a mix": "gepo",
    "repo_d": "repo_d",
}
LAYOUTS = {"2 DDP": (2, "ddp"), "4 DDP": (4, "ddp"), "2 FSDP2": (2, "fsdp2"), "4 FSDP2": (4, "fsdp2")}
FLOAT32 = 1.2e-7  # the distance of two neighbours at 1

Results = list[list[dict[str, Any]]]  # by rank, by objective


@pytest.fixture(scope="module")
def trained(tiny_path: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], Results]:
    """(processes, layout) -> what each rank found of each objective, trained once."""

    @cache
    def found(processes: int, layout: str) -> Results:
        out = tmp_path_factory.mktemp(f"{processes}-{layout}")
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        script = [str(SCRIPT), tiny_path, str(out), layout, *OBJECTIVES.values()]
        command = [sys.executable, *(launch if processes > 1 else []), *script]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr[-4000:]
        return [torch.load(out / f"result{rank}.pt", weights_only=False) for rank in range(processes)]

    return found


def differences(one: dict[str, Any], several: dict[str, Any]) -> dict[str, float]:
    """The largest relative differences: of the loss, of gradients on the first rollout batch and on all, of states."""
    gradients = [relative_distance(a, b) for a, b in zip(several["gradients"], one["gradients"], strict=True)]
    losses = [[line["loss"] for line in run["history"] if "loss" in line] for run in (several, one)]
    size = max(map(abs, losses[1]))
    states = [abs(several["state"][name] - x) / max(abs(x), 1e-30) for name, x in one["state"].items() if x]
    return {
        "loss": max(abs(a - b) / size for a, b in zip(*losses, strict=True)),
        "gradient": max(gradients[:2]),
        "gradients": max(gradients),
        "parameters": relative_distance(several["parameters"][-1], one["parameters"][-1]),
        "state": max(states, default=0.0),
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", range(len(OBJECTIVES)), ids=list(OBJECTIVES))
def test_every_layout_trains_as_one_process(
    number: int, layout: str, trained: Callable[[int, str], Results], capsys: pytest.CaptureFixture[str]
) -> None:
    one, (first, *others) = trained(1, "ddp")[0][number], [ranks[number] for ranks in trained(*LAYOUTS[layout])]
    assert first["world"] == LAYOUTS[layout][0] == 1 + len(others)
    assert first["type"] == ("FSDP" if "FSDP2" in layout else "MULTI_CPU")
    assert first["sharded"] == ["FSDP2" in layout] * 6
    for other in others:
        assert other["state"] == first["state"]
        assert all(torch.equal(a, b) for a, b in zip(other["parameters"], first["parameters"], strict=True))
    assert min(float(g.abs().max()) for g in one["gradients"]) > 1e-3
    assert set(first["state"]) == set(one["state"])
    found = differences(one, first)
    with capsys.disabled():
        print("\n" + " ".join([list(OBJECTIVES)[number], layout, *(f"{k} {x:.1e}" for k, x in found.items())]))
    assert found["gradient"] < 40 * FLOAT32
    assert found["loss"] < 1e-4  # rounding grows about tenfold in two updates of this size, and there are six
    assert found["gradients"] < 1e-3
    assert found["parameters"] < 1e-4
    assert found["state"] < 1e-5


def test_the_controllers_that_are_compared_have_moved(trained: Callable[[int, str], Results]) -> None:
    pi, gepo, _ = trained(1, "ddp")[0]
    assert pi["state"]["surrogate.keep_high.value"] != PI.start
    assert len(gepo["state"]) > 1
