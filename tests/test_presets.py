"""Presets: the names of the specification, and what each one differs in."""

from dataclasses import fields

import pytest

from isentrope import Objective, presets, spec

NAMES = [
    *("ppo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "nsr", "psr", "w_reinforce", "gppo"),
    *("ce_gppo", "repo_d", "repo_r", "adapo", "gepo", "clip_cov", "kl_cov", "aepo", "entropy_bonus"),
    *("adaptive_entropy", "high_entropy", "gmpo", "sapo", "erc", "half_drift_bonus"),
]

# preset: {slot: fields that its rule must hold}; what is not named is GRPO's advantage, PPO clip .2/.2, token mean
DIFFERS = {
    "grpo": {"aggregate": {"rule": "SequenceMean"}},
    "dr_grpo": {"advantage": {"rule": "GroupCentred"}, "aggregate": {"rule": "ConstantLength"}},
    "dapo": {"surrogate": {"low": 0.2, "high": 0.28}, "select": [{"rule": "VaryingReward", "count": "kept"}]},
    "repo_d": {"surrogate": {"low": 0.2, "high": 0.28}, "shaping": [{"rule": "Decorrelate", "normalise": False}]},
    "repo_r": {"surrogate": {"low": 0.2, "high": 0.28}, "shaping": [{"rule": "RescaleBySurprisal", "centre": "none"}]},
    "adapo": {
        "surrogate": {
            "low": 0.2,
            "high": {"rule": "EntropyServo", "start": 0.28, "rate": 1.1, "low": 0.05, "high": 1.0, "target": "initial"},
        }
    },
    "gspo": {
        "ratio": {"rule": "SequenceRatio"},
        "surrogate": {"low": 3e-4, "high": 4e-4},
        "aggregate": {"rule": "SequenceMean"},
    },
    "cispo": {"surrogate": {"rule": "ClippedWeight", "high": 0.2}},
    "rloo": {"advantage": {"rule": "LeaveOneOut"}, "surrogate": {"rule": "PolicyGradient"}},
    "reinforce_pp": {"advantage": {"rule": "BatchWhitened"}},
    "nsr": {"advantage": {"rule": "Signed", "lambda_pos": 0.0, "lambda_neg": 1.0, "threshold": 0.5}},
    "psr": {"advantage": {"rule": "Signed", "lambda_pos": 1.0, "lambda_neg": 0.0, "threshold": 0.5}},
    "w_reinforce": {"advantage": {"rule": "Signed", "lambda_pos": 0.1, "lambda_neg": 1.0, "threshold": 0.5}},
    "gppo": {
        "surrogate": {"rule": "GradientPreservingClip", "low": 0.2, "high": 0.2, "keep_low": 1.0, "keep_high": 1.0}
    },
    "ce_gppo": {
        "surrogate": {"rule": "GradientPreservingClip", "low": 0.2, "high": 0.2, "keep_low": 0.5, "keep_high": 1.0}
    },
    "gmpo": {"surrogate": {"rule": "GeometricClip", "clip": 0.4}, "aggregate": {"rule": "SequenceMean"}},
    "sapo": {"surrogate": {"rule": "SoftGate", "tau_pos": 1.0, "tau_neg": 1.05}, "aggregate": {"rule": "SequenceMean"}},
    "kl_cov": {"surrogate": {"rule": "KLCov", "k": 2e-3, "coef": 1.0, "scope": "batch"}},
    "clip_cov": {"surrogate": {"rule": "ClipCov", "cov_low": 1.0, "cov_high": 5.0, "ratio": 2e-4, "scope": "batch"}},
    "gepo": {"shaping": [{"rule": "GroupEntropyGate", "alpha_low": 0.5, "alpha_high": 0.2}]},
    "aepo": {"select": [{"rule": "NegativeGate", "count": "kept"}]},
    "high_entropy": {"select": [{"rule": "HighEntropyTokens", "rho": 0.2, "count": "kept"}]},
    "erc": {"surrogate": {"rule": "EntropyRatioClip", "low": 0.95, "high": 1.05}},
    "entropy_bonus": {"penalties": [{"rule": "EntropyBonus"}]},
    "adaptive_entropy": {"penalties": [{"rule": "EntropyBonus", "target": 0.2}]},
    "half_drift_bonus": {
        "shaping": [{"rule": "Decorrelate", "zeta": 0.5, "normalise": True}],
        "penalties": [{"rule": "EntropyBonus", "coef": 0.05}],
    },
    "ppo": {"advantage": {"rule": "GeneralizedAdvantage", "gamma": 1.0, "lam": 1.0, "whiten": True}},
}
BASE = {
    "advantage": {"rule": "GroupRelative", "eps": 1e-6, "ddof": 1},
    "select": [],
    "shaping": [],
    "ratio": {"rule": "TokenRatio"},
    "surrogate": {"rule": "PPOClip", "low": 0.2, "high": 0.2},
    "penalties": [],
    "aggregate": {"rule": "TokenMean"},
}


def holds(found, wanted):
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(holds, found, wanted))
    if isinstance(wanted, dict):
        return all(key in found and holds(found[key], x) for key, x in wanted.items())
    return found == wanted


def test_every_name_of_the_specification_is_a_preset():
    assert set(NAMES) - set(presets.names()) == set()
    assert set(NAMES) == set(DIFFERS)


def test_names_are_those_of_objectives_in_their_order():
    assert all(isinstance(getattr(presets, name), Objective) for name in presets.names())
    assert len(set(presets.names())) == len(presets.names())
    assert presets.names()[0] == "ppo"
    assert not any(name.startswith("_") for name in presets.names())


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_differs_from_grpo_in_what_the_specification_says(name):
    table = spec.to_dict(getattr(presets, name))
    for slot, base in BASE.items():
        wanted = DIFFERS[name].get(slot, base)
        assert holds(table.get(slot, []), wanted), (slot, table.get(slot), wanted)
    assert "correction" not in table
    assert "rollout" not in table


def test_no_two_presets_are_the_same():
    found = [
        (a, b) for a in presets.names() for b in presets.names() if a < b and getattr(presets, a) == getattr(presets, b)
    ]
    assert found == []


def test_gepos_thresholds_are_the_papers():
    gate = presets.gepo.shaping[0]
    assert (gate.low.offset, gate.high.offset, gate.low.gamma, gate.high.gamma) == (-0.2, 0.3, 0.01, 0.01)


def test_adaptive_entropys_coefficient_is_skyworks():
    coef = presets.adaptive_entropy.penalties[0].coef
    assert (coef.start, coef.step, coef.low, coef.high, coef.target) == (0.0, 1e-4, 0.0, 0.005, 0.2)


def test_every_slot_is_filled_by_some_preset_or_is_for_corrections():
    filled = {path.split(".")[0] for name in presets.names() for path, _ in getattr(presets, name).rules()}
    assert filled == {f.name for f in fields(Objective)} - {"rollout", "correction"}
