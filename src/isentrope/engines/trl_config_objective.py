"""The objective that TRL's own keys describe: `loss_type`, `epsilon`, `beta` and their like, in our rules.

Gradients equal TRL's (tests/engines/test_trl_config.py) for the losses grpo, dapo, dr_grpo, cispo and sapo, with
advantages by group or batch and ratios by token or sequence. What no rule here reproduces is refused by name. Three
rules are the same idea and not quite the same numbers: TRL picks the tokens of high entropy in each micro-batch by the
current policy, means the entropy bonus over each micro-batch, and moves its adaptive coefficient at each update; here
they are those of the rollout batch, of the whole update, and of the rollout batch.
"""

from collections.abc import Mapping
from typing import Any

from isentrope import spec
from isentrope.advantage import GroupCentred, GroupRelative
from isentrope.aggregate import ConstantLength, SequenceMean, TokenMean
from isentrope.control import EntropyStep
from isentrope.engines.trl_options import REPLACED
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.penalty import EntropyBonus, ReferenceKL
from isentrope.ratio import SequenceRatio, TokenRatio
from isentrope.select import HighEntropyTokens
from isentrope.surrogate import ClippedWeight, PPOClip, SoftGate

KEYS = frozenset(REPLACED)
STD_EPS = 1e-4  # TRL adds it to a group's standard deviation

# What TRL takes where a file is silent.
DEFAULTS: dict[str, Any] = {
    "loss_type": "dapo",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "beta": 0.0,
    "use_bias_correction_kl": True,
    "importance_sampling_level": "token",
    "scale_rewards": "group",
    "multi_objective_aggregation": "sum_then_normalize",
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "entropy_coef_min": 0.0,
    "entropy_coef_max": 1.0,
    "entropy_coef_delta": 0.005,
    "entropy_target": 0.2,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "off_policy_mask_threshold": None,
}

# Values that no rule here reproduces, and what to do instead.
OWN = "leave it out, or write the objective in Python and name it as objective: file.py:name"
LOSSES = {
    "grpo": SequenceMean(),
    "sapo": SequenceMean(),
    "dapo": TokenMean(),
    "cispo": TokenMean(),
    "dr_grpo": ConstantLength(),
}
UNKNOWN_LOSSES = {
    "bnpo": "its scale depends on the micro-batch; dapo is the same loss over all tokens of an update",
    "luspo": OWN,
    "vespo": OWN,
}
ADVANTAGES = {
    "group": GroupRelative(eps=STD_EPS),
    "batch": GroupRelative(eps=STD_EPS, scale="batch"),
    "none": GroupCentred(),
}
RATIOS = {"token": TokenRatio(), "sequence": SequenceRatio()}
# Keys that act only where another has a value; TRL is silent about them elsewhere.
ONLY_WITH = {
    "delta": ("loss_type", ("grpo", "dapo", "dr_grpo")),
    "sapo_temperature_pos": ("loss_type", ("sapo",)),
    "sapo_temperature_neg": ("loss_type", ("sapo",)),
    "entropy_coef_min": ("use_adaptive_entropy", (True,)),
    "entropy_coef_max": ("use_adaptive_entropy", (True,)),
    "entropy_coef_delta": ("use_adaptive_entropy", (True,)),
    "entropy_target": ("use_adaptive_entropy", (True,)),
}


def objective_of(config: Mapping[str, Any], label: str) -> dict[str, Any]:
    """The specification of the objective that the keys of KEYS in `config` ask for, TRL's defaults for the others.

    Raises IsentropeError with the first key that has no rule here, or that has no effect next to the others.
    """
    given = DEFAULTS | {key: config[key] for key in sorted(KEYS & set(config))}
    _refuse(given, config, label)
    try:
        objective = Objective(
            advantage=ADVANTAGES[_scale(given)],
            ratio=RATIOS[given["importance_sampling_level"]],
            surrogate=_surrogate(given, label),
            select=()
            if given["top_entropy_quantile"] == 1
            else (HighEntropyTokens(rho=given["top_entropy_quantile"]),),
            penalties=(*_reference(given, label), *_bonus(given)),
            aggregate=LOSSES[given["loss_type"]],
        )
    except (ValueError, TypeError) as error:
        raise IsentropeError(f"{label}: the objective cannot be made of these keys: {error}") from error
    return spec.to_dict(objective)


def _scale(given: Mapping[str, Any]) -> str:
    """TRL takes True for "group" and False for "none"."""
    found = given["scale_rewards"]
    return {True: "group", False: "none"}[found] if isinstance(found, bool) else str(found)


def _refuse(given: Mapping[str, Any], config: Mapping[str, Any], label: str) -> None:
    for key, value in config.items():
        if key in KEYS and key not in DEFAULTS:  # VESPO's
            raise IsentropeError(f"{label}: {key} = {value!r} has no rule here: {OWN}")
        if key in ONLY_WITH and given[ONLY_WITH[key][0]] not in ONLY_WITH[key][1]:
            other, values = ONLY_WITH[key]
            raise IsentropeError(
                f"{label}: {key} acts only with {other} = {' or '.join(map(str, values))}; leave it out"
            )
    if given["loss_type"] not in LOSSES:
        why = UNKNOWN_LOSSES.get(given["loss_type"], f"there are {', '.join(LOSSES)}")
        raise IsentropeError(f"{label}: loss_type = {given['loss_type']!r} is not honoured here: {why}")
    choices = {"scale_rewards": (_scale(given), ADVANTAGES), "importance_sampling_level": ("", RATIOS)}
    for key, (value, known) in choices.items():
        if (value or given[key]) not in known:
            raise IsentropeError(f"{label}: {key} = {given[key]!r} is not honoured here; there are {', '.join(known)}")
    for key in ("entropy_coef", "use_adaptive_entropy"):
        if given[key] and given["loss_type"] not in ("dapo", "cispo"):
            raise IsentropeError(
                f"{label}: {key} with loss_type = {given['loss_type']} weighs the bonus by tokens, the loss otherwise;"
                " here both have one weight: set loss_type to dapo, or leave the bonus out"
            )
    for key in ("multi_objective_aggregation", "off_policy_mask_threshold"):
        if given[key] != DEFAULTS[key]:
            raise IsentropeError(f"{label}: {key} = {given[key]!r} has no rule here: {OWN}")


def _surrogate(given: Mapping[str, Any], label: str) -> Any:
    low, high = given["epsilon"], given["epsilon_high"]
    if given["loss_type"] == "sapo":
        return SoftGate(tau_pos=given["sapo_temperature_pos"], tau_neg=given["sapo_temperature_neg"])
    if given["loss_type"] == "cispo":
        if high is None or high <= 1:
            raise IsentropeError(
                f"{label}: with loss_type = cispo, epsilon_high is the cap on the ratio; set it above 1"
            )
        return ClippedWeight(low=None, high=high - 1)
    return PPOClip(low=low, high=low if high is None else high, dual=given["delta"])


def _reference(given: Mapping[str, Any], label: str) -> tuple[Any, ...]:
    if not given["beta"]:
        return ()
    if given["use_bias_correction_kl"]:
        raise IsentropeError(
            f"{label}: beta = {given['beta']} with use_bias_correction_kl, which is on by default, multiplies the KL"
            " term by the ratio; no rule here does: set use_bias_correction_kl to false, or beta to 0"
        )
    return (ReferenceKL(given["beta"], "k3"),)


def _bonus(given: Mapping[str, Any]) -> tuple[Any, ...]:
    start = given["entropy_coef"]
    if not given["use_adaptive_entropy"]:
        return (EntropyBonus(coef=start),) if start else ()
    coef = EntropyStep(
        start=start,
        step=given["entropy_coef_delta"],
        low=given["entropy_coef_min"],
        high=given["entropy_coef_max"],
        target=given["entropy_target"],
    )
    return (EntropyBonus(coef=coef, target=given["entropy_target"]),)
