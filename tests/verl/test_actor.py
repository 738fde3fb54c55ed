"""verl's trainer methods and workers with the objective's loss: FSDP2 on one and two CPU ranks, without Ray."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="needs the environment of verl")

import torch

from isentrope.control import EntropyGain

pytestmark = [pytest.mark.engine, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("actor.py")
ON_TWO = ("plain", "dapo", "padded", "entropy_bonus", "mini", "turns", "hooks", "steps")
# float32 sums in another order; measured below 3e-6
ROUNDING = 1e-5

Found = dict[str, dict[str, Any]]


def start(processes: int, names: list[str], out: Path) -> Found:
    """Run cases of actor.py on so many ranks."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launch if processes > 1 else []), str(SCRIPT), str(out), *names]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "VERL_USE_EXTERNAL_PLUGINS"):
        environment.pop(name, None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: torch.load(out / f"{name}.pt", weights_only=False) for name in names}


def names() -> list[str]:
    """All cases, read without importing the script (it sets up this process for verl on a CPU)."""
    lines = SCRIPT.read_text(encoding="utf-8").split("CASES = {")[1].split("\n}")[0]
    return [line.split('"')[1] for line in lines.splitlines() if line.strip().startswith('"')]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return start(1, names(), tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return start(2, list(ON_TWO), tmp_path_factory.mktemp("together"))


def distances(a: dict[str, Any], b: dict[str, Any]) -> list[float]:
    """|a - b| / |b| of the gradients of each update."""

    def norm(x: dict[str, torch.Tensor]) -> float:
        return float(sum(t.double().square().sum() for t in x.values()) ** 0.5)

    pairs = list(zip(a["gradients"], b["gradients"], strict=True))
    assert pairs
    return [norm({n: x[n] - y[n] for n in y}) / norm(y) for x, y in pairs]


def ours(found: dict[str, Any]) -> dict[str, float]:
    """The metrics that the objective's engine logs, of the last step."""
    kept = (
        "entropy/",
        "reward/",
        "clip/",
        "ratio/",
        "kl",
        "tokens/",
        "controller/",
        "actor/pg_loss",
        "actor/grad_norm",
    )
    return {name: float(x) for name, x in found["metrics"][-1].items() if name.startswith(kept)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("plain", "micro_1"),
        ("plain", "micro_8"),
        ("plain", "dynamic"),
        ("plain", "reordered"),
        ("plain", "packed"),
        ("dapo", "dapo_micro_1"),
        ("kl_cov", "kl_cov_micro_1"),
        ("entropy_bonus", "entropy_bonus_micro_1"),
        ("mini", "mini_micro_1"),
        ("hooks", "hooks_micro_1"),
    ],
)
def test_micro_batches_their_order_and_packing_leave_the_gradient(one, other, alone):
    assert max(distances(alone[one], alone[other])) < ROUNDING
    assert ours(alone[one]) == pytest.approx(ours(alone[other]), rel=1e-4, abs=1e-6)


def test_rows_that_verl_adds_to_fill_a_batch_change_nothing(alone):
    assert max(distances(alone["padded"], alone["plain"])) < ROUNDING
    assert ours(alone["padded"]) == pytest.approx(ours(alone["plain"]), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", ON_TWO)
def test_two_ranks_train_as_one(name, alone, together):
    steps = len(alone[name]["metrics"])
    assert distances(together[name], alone[name])[0] < ROUNDING
    bound = 1e-6 if steps == 1 else 1e-4  # later steps start from weights that already differ by rounding
    for parameter, weight in alone[name]["weights"].items():
        torch.testing.assert_close(together[name]["weights"][parameter], weight, rtol=0, atol=bound)
    assert together[name]["state"] == pytest.approx(alone[name]["state"], rel=1e-4)
    assert ours(together[name]) == pytest.approx(ours(alone[name]), rel=2e-2 if steps > 1 else 1e-4, abs=1e-4)


def test_the_objective_that_is_verls_loss_trains_as_verls_own_trainer_does(alone):
    assert max(distances(alone["same_as_verl"], alone["verl"])) < ROUNDING


def test_the_hooks_of_verls_own_trainer_give_the_gradient_of_ours(alone):
    assert max(distances(alone["hooks"], alone["same_as_hooks"])) < ROUNDING


def test_rows_of_one_session_have_one_advantage_and_count_once(alone):
    advantages = {key: x.abs().max() for key, x in alone["turns"]["advantages"].items()}
    for key, value in advantages.items():
        assert value == advantages[f"{key.rsplit('_', 1)[0]}_0"]
    scores = {key: float(x[0]) for key, x in alone["turns"]["advantages"].items() if key.endswith("_0")}
    for prompt in {key.split("_")[0] for key in scores}:
        of_prompt = [x for key, x in scores.items() if key.startswith(f"{prompt}_")]
        assert sum(of_prompt) == pytest.approx(0, abs=1e-5)
        assert any(abs(x) > 0.1 for x in of_prompt)


def test_a_controller_sees_each_rollout_batch_once_and_keeps_its_state(alone):
    gain, logged = EntropyGain(start=1.0, low=1e-3, high=10.0), alone["steps"]["metrics"]
    state = gain.init()
    assert len(logged) == 3
    for line in logged:
        state = gain.observe(state, measured_entropy=line["entropy/old_exact"])
        assert line["controller/shaping.0.zeta.value"] == state["value"]
        assert line["controller/shaping.0.zeta.target"] == pytest.approx(state["target"], rel=1e-6)
    assert state["value"] != 1.0


def test_the_entropy_bonus_moves_the_gradient_and_the_entropy_is_measured(alone):
    line = alone["entropy_bonus"]["metrics"][0]
    assert line["entropy/current_exact"] == pytest.approx(line["entropy/old_exact"], rel=1e-4)
    assert "entropy/current_exact" not in alone["dapo"]["metrics"][0]  # no rule reads it, so no graph through it


def test_every_update_reports_what_the_loss_did(alone):
    line = alone["steps"]["metrics"][-1]
    assert 0 < line["clip/low"] + line["clip/high"] == pytest.approx(line["actor/pg_clipfrac"])
    assert line["tokens/selected"] == 1.0
    assert line["tokens/excluded"] == 0.0
    assert line["kl_old"] > 0
    assert not [key for key in line if key.startswith("actor/isentrope")]
