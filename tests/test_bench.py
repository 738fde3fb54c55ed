"""The benchmark of the objectives compares equal work, and refuses to time what is not. Nothing here is timed."""

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from isentrope import presets
from isentrope.surrogate import PPOClip

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def objectives(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("objectives")


def plain_clip(objectives: ModuleType, low: float):
    """A host in three lines: PPO's clip with a token mean, on the advantages of our own `prepare`."""

    def build(batch):
        prepared, _ = presets.dr_grpo.prepare({n: x for n, x in batch.items() if n not in ("logp", "entropy")})
        a, mask = prepared["advantage"], batch["mask"]

        def loss(logp):
            r = (logp - batch["old_logp"]).exp()
            return -torch.minimum(r * a, r.clamp(1 - low, 1.2) * a)[mask].mean()

        return objectives.Host(loss, loss)

    ours = replace(presets.gppo, advantage=presets.dr_grpo.advantage, surrogate=PPOClip(0.2, 0.2))
    return objectives.Pair("clip", "plain", ours, build)


def test_equal_work_passes_the_check(objectives: ModuleType) -> None:
    assert objectives.require_equal(plain_clip(objectives, low=0.2), objectives.draw(16, 32, seed=0)) < 1e-6


def test_unequal_work_is_not_timed(objectives: ModuleType) -> None:
    with pytest.raises(SystemExit, match="loss or gradient differ"):
        objectives.require_equal(plain_clip(objectives, low=0.1), objectives.draw(16, 32, seed=0))


def test_a_line_holds_medians_ratios_and_peaks(objectives: ModuleType) -> None:
    pair, batch, threads = plain_clip(objectives, low=0.2), objectives.draw(16, 32, seed=0), torch.get_num_threads()
    try:
        cells = objectives.line(pair, batch, threads=1, repeats=2, peaks=(2_000_000, 1_000_000)).split(" | ")
    finally:
        torch.set_num_threads(threads)
    assert len(cells) == 11
    assert cells[1:3] == ["plain", "clip"]
    assert float(cells[3]) > 0
    assert cells[-2] == "2.0"


def test_the_peak_counts_what_is_held_at_once(objectives: ModuleType) -> None:
    from _paired import peak_bytes

    x = torch.zeros(1000, dtype=torch.float32)
    peak = peak_bytes(lambda: ((x + 1) + 1) + 1)
    assert 8000 <= peak < 8100  # an operand and its result; the first sum is released, and the ones are 8 bytes each


def test_interleaving_gives_every_side_its_turn(objectives: ModuleType) -> None:
    from _paired import interleaved

    turns: list[str] = []
    found = interleaved({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, repeats=2, warm_up=0)
    assert "".join(turns) == "abba"
    assert {name: len(timing.wall) for name, timing in found.items()} == {"a": 2, "b": 2}


@pytest.mark.slow
@pytest.mark.engine
def test_the_script_agrees_with_trl_on_every_preset_that_it_has() -> None:
    size = ["--rows", "16", "--tokens", "32", "--repeats", "2", "--threads", "1"]
    done = subprocess.run([sys.executable, BENCH / "objectives.py", *size], capture_output=True, text=True, check=True)
    equal = [line for line in done.stdout.splitlines() if line.startswith("equal to") and ": TRL" in line]
    timed = [line for line in done.stdout.splitlines() if line.startswith("| 1 | TRL")]
    assert len(equal) == len(timed) == 6
