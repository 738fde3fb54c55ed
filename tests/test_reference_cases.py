"""Every reference case: advantage, loss and gradient weights agree with an independent implementation.

tests/cases/README.md says what the fields mean.
"""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope import Objective, presets
from isentrope.advantage import BatchWhitened, GroupCentred, GroupRelative, LeaveOneOut, Signed
from isentrope.aggregate import ConstantLength, PromptMean, SequenceMean, TokenMean
from isentrope.control import EntropyGain, EntropyServo, EntropyStep, GroupEntropyThreshold, Hysteresis
from isentrope.correction import IcePop, SequenceMask, TruncatedImportance
from isentrope.errors import IsentropeWarning
from isentrope.penalty import ReferenceKL
from isentrope.select import HighEntropyTokens, NegativeGate, VaryingReward
from isentrope.shaping import Decorrelate, GroupEntropyGate, RescaleBySurprisal
from isentrope.surrogate import (
    ClipCov,
    ClippedWeight,
    EntropyRatioClip,
    GeometricClip,
    GradientPreservingClip,
    KLCov,
    PPOClip,
    SoftGate,
    covariance,
)

CASES = Path(__file__).parent / "cases"
Parameters = dict[str, Any]


def read(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return found


BATCH_CASES = [
    pytest.param(case, id=case["id"])
    for path in sorted(CASES.glob("*.json"))
    if path.stem not in ("controllers", "theory", "clip_cov")
    for case in read(path.stem)
]

SURROGATES = {
    "gppo": lambda p: GradientPreservingClip(p["low"], p["high"], p["keep_low"], p["keep_high"]),
    "ce_gppo": lambda p: GradientPreservingClip(p["low"], p["high"], p["keep_low"], p["keep_high"]),
    "cispo": lambda p: ClippedWeight(p["low"], p["high"]),
    "sapo": lambda p: SoftGate(p["tau_pos"], p["tau_neg"]),
    "gmpo": lambda p: GeometricClip(p["clip"]),
    "kl_cov": lambda p: KLCov(p["k"], p["coef"]),
    "erc": lambda p: EntropyRatioClip(PPOClip(p["low"], p["high"]), p["band_low"], p["band_high"]),
    "rloo": lambda p: presets.rloo.surrogate,
}
ADVANTAGES = {
    "group_relative": lambda p: GroupRelative(eps=p["eps"]),
    "group_centred": lambda p: GroupCentred(),
    "leave_one_out": lambda p: LeaveOneOut(),
    "batch_whitened": lambda p: BatchWhitened(),
    "signed": lambda p: Signed(p["lambda_pos"], p["lambda_neg"], p["threshold"]),
}
AGGREGATES = {
    "token_mean": lambda p: TokenMean(),
    "sequence_mean": lambda p: SequenceMean(),
    "constant_length": lambda p: ConstantLength(p["l_max"]),
    "prompt_mean": lambda p: PromptMean(),
}
CORRECTIONS = {
    "truncated": lambda p: TruncatedImportance(p["cap"]),
    "icepop": lambda p: IcePop(p["low"], p["high"]),
    "sequence_mask": lambda p: SequenceMask(p["low"], p["high"]),
}


def objective_of(case: dict[str, Any]) -> Objective:
    """The preset with every number that the case writes out."""
    p, numbers, name = case["parameters"], case["controller_numbers"], case["preset"]
    objective = replace(
        getattr(presets, name),
        advantage=ADVANTAGES[p["advantage"]](p),
        aggregate=AGGREGATES[p["aggregation"]](p),
        surrogate=SURROGATES.get(name, ppo_clip)(p | numbers),
    )
    changes: dict[str, Any] = {}
    if name == "dapo":
        changes["select"] = (VaryingReward(),) if p["filter_zero_variance"] else ()
    if name == "high_entropy":
        changes["select"] = (HighEntropyTokens(p["rho"], p["count"]),)
    if name == "aepo":
        changes["select"] = (NegativeGate(Hysteresis(low=p["factor_low"], high=p["factor_high"]), p["count"]),)
    if name == "repo_d":
        changes["shaping"] = (Decorrelate(numbers["zeta"], p["normalise"]),)
    if name == "repo_r":
        changes["shaping"] = (RescaleBySurprisal(numbers["zeta"], p["centre"]),)
    if name == "gepo":
        changes["shaping"] = (gepo_gate(p),)
    if "kl" in p:
        changes["penalties"] = (ReferenceKL(p["kl_coef"], p["kl"]),)
    if "rollout_correction" in p:
        changes["correction"] = CORRECTIONS[p["rollout_correction"]["kind"]](p["rollout_correction"])
    return replace(objective, **changes)


def ppo_clip(p: Parameters) -> PPOClip:
    return PPOClip(p["low"], p.get("eps_high", p.get("high")), p.get("dual_clip"))


def gepo_gate(p: Parameters) -> GroupEntropyGate:
    low = GroupEntropyThreshold(offset=-p["beta_low"], gamma=p["gamma"])
    high = GroupEntropyThreshold(offset=p["beta_high"], gamma=p["gamma"])
    return GroupEntropyGate(p["alpha_low"], p["alpha_high"], low, high)


def state_before(case: dict[str, Any], objective: Objective) -> dict[str, float]:
    """The controllers' state before the batch, in the words of this library."""
    before = case.get("controller_before", {})
    if None in before.values() or not before:
        return objective.init()
    if case["preset"] == "gepo":
        return {"shaping.0.low.value": before["h_low"], "shaping.0.high.value": before["h_high"]}
    return {"select.0.on.value": float(before["gate"]), "select.0.on.reference": before["initial_entropy"]}


def batch_of(case: dict[str, Any], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    kinds = {"group": torch.int64, "task": torch.int64, "mask": torch.bool}
    return {
        name: torch.tensor(numbers(column), dtype=kinds.get(name, dtype))
        for name, column in case["batch"].items()
        if column is not None
    }


def numbers(column: Any) -> Any:
    if isinstance(column, list):
        return [numbers(x) for x in column]
    return float(column) if isinstance(column, str) else column


def agrees(found: Tensor, expected: Any, mask: Tensor | None = None) -> None:
    want = torch.tensor(numbers(expected), dtype=torch.float64)
    where = torch.ones_like(want, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(found[where].double(), want[where], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", BATCH_CASES)
def test_case_agrees_with_the_reference(case: dict[str, Any]) -> None:
    objective, batch = objective_of(case), batch_of(case)
    with warnings.catch_warnings():
        warnings.simplefilter("error", IsentropeWarning)
        prepared, state = objective.prepare(batch, state_before(case, objective))
    now = objective.at(state)
    totals = now.count(prepared)
    agrees(now.loss(prepared, totals), case["expect"]["loss"])
    agrees(now.weights(prepared, totals), case["expect"]["weights"], batch["mask"])
    agrees(now.shaped(prepared), case["expect"]["advantage"], batch["mask"])


@pytest.mark.parametrize("case", [c for c in BATCH_CASES if c.values[0]["preset"] in ("gepo", "aepo")])
def test_controller_numbers_in_force_agree(case: dict[str, Any]) -> None:
    objective = objective_of(case)
    _, state = objective.prepare(batch_of(case), state_before(case, objective))
    expected = case["controller_numbers"]
    if case["preset"] == "gepo":
        assert state["shaping.0.low.value"] == pytest.approx(expected["h_low"], rel=1e-9)
        assert state["shaping.0.high.value"] == pytest.approx(expected["h_high"], rel=1e-9)
    else:
        assert state["select.0.on.value"] == expected["gate"]
        threshold = state["select.0.on.reference"] * objective.select[0].on.high
        assert threshold == pytest.approx(expected["h_high"], rel=1e-9)


@pytest.mark.parametrize("case", [c for c in BATCH_CASES if c.values[0].get("exact_zero_rows")])
def test_equal_rewards_give_exactly_zero_in_float32(case: dict[str, Any]) -> None:
    batch = batch_of(case, torch.float32)
    base = replace(objective_of(case), shaping=(), select=())
    prepared, _ = base.prepare(batch)
    rows = prepared["advantage"][case["exact_zero_rows"]]
    assert torch.equal(rows, torch.zeros_like(rows))


def test_some_cases_have_rows_of_exact_zero() -> None:
    assert sum(bool(c.values[0].get("exact_zero_rows")) for c in BATCH_CASES) > 50


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for c in read("clip_cov")])
def test_clip_cov_draws_from_the_eligible_tokens(case: dict[str, Any]) -> None:
    p, batch = case["parameters"], batch_of(case)
    rule = ClipCov(p["low"], p["high"], p["cov_low"], p["cov_high"], p["ratio"])
    prepared, _ = replace(presets.clip_cov, surrogate=rule).prepare(batch)
    agrees(prepared["advantage"], case["expect"]["advantage"], batch["mask"])
    mask, old = prepared["mask"], prepared["old_logp"]
    logp = torch.where(mask, batch["logp"], 0)
    low, high = rule.clipped(logp - old, prepared["advantage"])
    cov = covariance(old, prepared["advantage"], mask)
    eligible = rule.eligible(cov, mask & ~(low | high))
    assert sorted(eligible.nonzero().tolist()) == sorted(case["expect"]["eligible"])
    assert int(rule.draw(eligible, old, mask).sum()) == case["expect"]["count"]


CONTROLLERS = {
    "gain_sign_flip": (EntropyGain, {}),
    "multiplicative": (EntropyServo, {}),
    "additive": (EntropyStep, {}),
    "hysteresis_gate": (Hysteresis, {"factor_low": "low", "factor_high": "high"}),
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c["id"]) for c in read("controllers") if c["type"] != "ema_thresholds"]
)
@pytest.mark.filterwarnings("ignore:.*measured entropy is (nan|inf|-inf)")
def test_controller_follows_the_reference_trace(case: dict[str, Any]) -> None:
    kind, renamed = CONTROLLERS[case["type"]]
    controller = kind(**{renamed.get(name, name): value for name, value in case["parameters"].items()})
    state, trace = controller.init(), []
    for entropy in case["observations"]:
        state = controller.observe(state, measured_entropy=float(entropy))
        trace.append(controller.value(state))
    expected = case["expect"].get("trace", case["expect"].get("gate"))
    assert trace == pytest.approx(numbers(expected), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c["id"]) for c in read("controllers") if c["type"] == "ema_thresholds"]
)
def test_group_threshold_follows_the_reference_trace(case: dict[str, Any]) -> None:
    p = case["parameters"]
    for offset, key in ((-p["beta_low"], "h_low"), (p["beta_high"], "h_high")):
        threshold = GroupEntropyThreshold(offset=offset, gamma=p["gamma"])
        state, trace = threshold.init(), []
        for entropies in case["observations"]:
            column = -torch.tensor(entropies, dtype=torch.float64)[:, None]
            state = threshold.observe(
                state, old_logp=column, mask=torch.ones_like(column, dtype=torch.bool), group=torch.arange(len(column))
            )
            trace.append(threshold.value(state))
        assert trace == pytest.approx(case["expect"][key], rel=1e-9)


def test_every_file_of_cases_is_read() -> None:
    read_here = {c.values[0]["id"].split("/")[0] for c in BATCH_CASES} | {"clip_cov", "controllers", "theory"}
    files = {path.stem for path in CASES.glob("*.json")}
    assert files == read_here
