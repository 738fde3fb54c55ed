"""Papers compose: several papers' rules and a controller are one expression, one TOML file, one state."""

import json
from dataclasses import replace

import pytest
import torch

from isentrope import presets, spec
from isentrope.control import EntropyPI
from isentrope.rollout import Rollout
from isentrope.shaping import GroupEntropyGate, RescaleBySurprisal
from isentrope.surrogate import GradientPreservingClip

MINE = replace(
    presets.ce_gppo,
    shaping=(GroupEntropyGate(), RescaleBySurprisal()),
    surrogate=GradientPreservingClip(
        keep_low=0.5,
        keep_high=EntropyPI(start=1.0, kp=0.5, ki=0.1, low=0.0, high=2.0, dead_band=0.02, target=1.4),
    ),
)
HEATED = replace(
    MINE, rollout=Rollout(temperature=EntropyPI(start=1.0, kp=0.3, ki=0.05, low=0.7, high=1.3, target="initial"))
)


def batch(seed, rows=16, tokens=6):
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, tokens, generator=g, dtype=torch.float64) * 3
    return {
        "reward": torch.randint(2, (rows,), generator=g).double(),
        "group": torch.arange(rows) // 4,
        "mask": torch.arange(tokens) < torch.randint(2, tokens + 1, (rows, 1), generator=g),
        "old_logp": old,
        "logp": old + torch.randn(rows, tokens, generator=g, dtype=torch.float64) * 0.4,
    }


def step(objective, state, seed):
    """One rollout batch: the new state, the loss of one update on it, and every token's weight."""
    columns = batch(seed)
    prepared, state = objective.prepare({k: x for k, x in columns.items() if k != "logp"}, state)
    now = objective.at(state)
    rows, totals = prepared | {"logp": columns["logp"]}, now.count(prepared)
    return state, now.loss(rows, totals).item(), now.weights(rows, totals)


@pytest.mark.parametrize("objective", [MINE, HEATED], ids=["mine", "heated"])
def test_it_prints_itself_and_reads_back_equal(objective, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(str(objective))
    assert spec.load(path) == objective
    assert str(spec.load(path)) == str(objective)
    assert spec.difference(objective, spec.load(path)) == {}


def test_it_is_one_change_of_a_preset_in_toml():
    text = """
        preset = "ce_gppo"
        shaping = [{ rule = "GroupEntropyGate" }, { rule = "RescaleBySurprisal" }]

        [surrogate.keep_high]
        rule = "EntropyPI"
        start = 1.0
        kp = 0.5
        ki = 0.1
        low = 0.0
        high = 2.0
        dead_band = 0.02
        target = 1.4
    """
    assert spec.load(text) == MINE


def test_what_differs_from_ce_gppo_is_what_was_put_in():
    changed = spec.difference(presets.ce_gppo, MINE)
    assert {path.split(".")[0] for path in changed} == {"shaping", "surrogate"}
    assert changed["shaping.0.rule"] == (None, "GroupEntropyGate")
    assert changed["shaping.1.rule"] == (None, "RescaleBySurprisal")
    assert changed["surrogate.keep_high.rule"] == (None, "EntropyPI")
    assert changed["surrogate.keep_high"] == (1.0, None)
    assert {path for path in changed if path.startswith("surrogate")} == {
        "surrogate.keep_high",
        *(f"surrogate.keep_high.{f}" for f in ("rule", "start", "low", "high", "target", "kp", "ki", "dead_band")),
    }


def test_every_controller_has_its_own_state():
    assert list(HEATED.controllers()) == [
        "shaping.0.low",
        "shaping.0.high",
        "shaping.1.zeta",
        "surrogate.keep_high",
        "rollout.temperature",
    ]
    state, _, _ = step(HEATED, HEATED.init(), seed=0)
    for path in HEATED.controllers():
        assert f"{path}.value" in state


def test_every_part_acts():
    """Leaving any of the four out changes the weights of the second batch."""
    state, _, _ = step(MINE, MINE.init(), seed=0)
    _, _, weights = step(MINE, state, seed=1)
    gate, rescale = MINE.shaping
    without = [
        replace(MINE, shaping=(rescale,)),
        replace(MINE, shaping=(gate,)),
        replace(MINE, surrogate=presets.grpo.surrogate),
        replace(MINE, surrogate=presets.ce_gppo.surrogate),
    ]
    for other in without:
        state, _, _ = step(other, other.init(), seed=0)
        _, _, found = step(other, state, seed=1)
        assert not torch.equal(found, weights)


@pytest.mark.parametrize("objective", [MINE, HEATED], ids=["mine", "heated"])
def test_a_run_that_is_saved_and_restored_goes_on_identically(objective, tmp_path):
    straight = []
    state = objective.init()
    for seed in range(8):
        if seed == 4:
            (tmp_path / "state.json").write_text(json.dumps(state))
            (tmp_path / "objective.toml").write_text(str(objective))
        state, loss, weights = step(objective, state, seed)
        straight.append((dict(state), loss, weights))
    assert len({s["surrogate.keep_high.value"] for s, _, _ in straight}) > 4, "the controller moved"

    restored = spec.load(tmp_path / "objective.toml")
    state = json.loads((tmp_path / "state.json").read_text())
    for seed in range(4, 8):
        state, loss, weights = step(restored, state, seed)
        expected_state, expected_loss, expected_weights = straight[seed]
        assert state == expected_state
        assert loss == expected_loss
        assert torch.equal(weights, expected_weights)
