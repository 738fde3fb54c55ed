"""The experiments of the study: which conditions are trained, on which worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from isentrope import presets
from isentrope.advantage import GroupCentred, GroupRelative
from isentrope.aggregate import TokenMean
from isentrope.control import EntropyGain, EntropyPI, EntropyServo
from isentrope.objective import Objective
from isentrope.penalty import EntropyBonus
from isentrope.shaping import Decorrelate, RescaleBySurprisal
from isentrope.study.runs import Condition, every_update, first_update
from isentrope.surrogate import (
    ClipCov,
    ClippedWeight,
    GradientPreservingClip,
    ImportanceWeighted,
    KLCov,
    PolicyGradient,
    PPOClip,
)

Conditions = dict[str, Condition]

# PPO's clip on group-relative advantages with a token mean: what all compositions differ from.
BASE = Objective(advantage=GroupRelative(), surrogate=PPOClip(), aggregate=TokenMean())
EQUAL = {"trainer.minibatches": 1, "trainer.passes": 1, "trainer.prompts": 8}  # on-policy with the same rows an update
SGD = {"tabular.optimizer": "sgd", "trainer.learning_rate": 10.0, "trainer.max_grad_norm": 0.0}
TARGET = 1.0  # nats, of the bandits' 1.76 at the start


def pi(start: float, low: float, high: float, kp: float, target: Any = "initial") -> EntropyPI:
    """A controller whose integral goes a tenth as fast as its proportional part."""
    return EntropyPI(start=start, low=low, high=high, kp=kp, ki=kp / 10, target=target)


# Compositions that no paper has.
OURS: dict[str, Objective] = {
    "gepo + ce_gppo": replace(presets.ce_gppo, shaping=presets.gepo.shaping),
    "ce_gppo, PI on keep_high": replace(
        presets.ce_gppo, surrogate=GradientPreservingClip(keep_low=0.5, keep_high=pi(1.0, 0.0, 4.0, 2.0))
    ),
    "ce_gppo, PI on keep_low": replace(
        presets.ce_gppo, surrogate=GradientPreservingClip(keep_low=pi(0.5, 0.0, 2.0, -2.0), keep_high=1.0)
    ),
    "neutral drift": replace(BASE, shaping=(Decorrelate(zeta=1.0, normalise=True),)),
    "neutral drift + gepo": replace(BASE, shaping=(*presets.gepo.shaping, Decorrelate(zeta=1.0, normalise=True))),
    "half neutral drift": replace(BASE, shaping=(Decorrelate(zeta=0.5, normalise=True),)),
    "bonus by PI": replace(BASE, penalties=(EntropyBonus(coef=pi(0.0, 0.0, 0.2, 0.05, target=TARGET)),)),
}
PUBLISHED = (
    *("grpo", "dapo", "ce_gppo", "gppo", "cispo", "gepo", "repo_d", "repo_r", "adapo", "clip_cov", "kl_cov"),
    *("entropy_bonus", "aepo", "gspo", "w_reinforce"),
)


def _compared(world: str) -> Conditions:
    found = {name: Condition(getattr(presets, name), world) for name in PUBLISHED}
    found["rloo, on-policy"] = Condition(presets.rloo, world, EQUAL)
    return found | {name: Condition(objective, world) for name, objective in OURS.items()}


def objectives() -> Conditions:
    """Published objectives and compositions on bandits."""
    return _compared("tabular")


def chains() -> Conditions:
    """The same on chains."""
    return _compared("chains")


EVEN = {f"task.{i}.options": {"entropy": e} for i, e in enumerate((0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.85, 0.95))}


def even() -> Conditions:
    """Bandits whose good actions are accepted equally often: looking further does not pay."""
    names = ("grpo", "dapo", "ce_gppo", "gppo", "cispo", "gepo", "repo_d", "repo_r", "adapo")
    return {name: Condition(getattr(presets, name), "tabular", EVEN) for name in names}


def keep() -> Conditions:
    """CE-GPPO's two factors, one at a time."""
    low = {f"keep_low {x:g}": GradientPreservingClip(keep_low=x, keep_high=1.0) for x in (0.0, 0.25, 0.5, 0.75, 1.0)}
    high = {f"keep_high {x:g}": GradientPreservingClip(keep_low=0.5, keep_high=x) for x in (0.0, 0.5, 1.0, 1.5, 2.0)}
    return {name: Condition(replace(presets.ce_gppo, surrogate=rule)) for name, rule in (low | high).items()}


def stability() -> Conditions:
    """Distance and gradients of rules that keep clipped tokens, against the clip that drops them."""
    rules = {
        "PPO's clip": PPOClip(),
        "ce_gppo": presets.ce_gppo.surrogate,
        "cispo, upper bound alone": presets.cispo.surrogate,
        "cispo, bounds .2 and .2": ClippedWeight(low=0.2, high=0.2),
        "cispo, bounds .05 and .05": ClippedWeight(low=0.05, high=0.05),
    }
    return {name: Condition(replace(BASE, surrogate=rule)) for name, rule in rules.items()}


def target() -> Conditions:
    """Controllers told to bring entropy to a target and hold it there, and what happens without."""
    zeta = {"repo_d": (1.0, 1e-3, 10.0), "repo_r": (1e-3, 1e-4, 0.05)}
    gains = {name: EntropyGain(start=s, low=low, high=high, target=TARGET) for name, (s, low, high) in zeta.items()}
    servo = EntropyServo(start=0.28, rate=1.1, low=0.05, high=1.0, target=TARGET)
    found = {
        "no controller (dapo's clip)": replace(BASE, surrogate=PPOClip(low=0.2, high=0.28)),
        "repo_d": replace(presets.repo_d, shaping=(Decorrelate(zeta=gains["repo_d"]),)),
        "repo_r": replace(presets.repo_r, shaping=(RescaleBySurprisal(zeta=gains["repo_r"]),)),
        "adapo": replace(presets.adapo, surrogate=PPOClip(low=0.2, high=servo)),
        "bonus by PI": OURS["bonus by PI"],
    }
    return {name: Condition(objective) for name, objective in found.items()}


def prediction() -> Conditions:
    """Every update measured, under plain gradient steps and under Adam, on bandits and chains."""
    return {
        "bandits, sgd": Condition(BASE, "tabular", SGD),
        "bandits, adam": Condition(BASE, "tabular"),
        "chains, sgd": Condition(BASE, "chains", SGD),
    }


def neutral() -> Conditions:
    """One plain gradient step of many samples of one problem, in three regimes: what REPO-D at gain 1 leaves of it."""
    rules: dict[str, tuple[Any, ...]] = {
        "no shaping": (),
        "gain 1, normalised": (Decorrelate(zeta=1.0, normalise=True),),
        "gain 1, as published": (Decorrelate(zeta=1.0),),
    }
    plain = replace(BASE, advantage=GroupCentred(), surrogate=PolicyGradient())
    once: dict[str, Any] = {"trainer.problems": 1, "trainer.prompts": 1, "trainer.minibatches": 1, "trainer.passes": 1}
    once |= {"tabular.optimizer": "sgd", "trainer.learning_rate": 0.1, "trainer.group_size": 8192}
    return {
        f"{name}, entropy {share:g}": Condition(
            replace(plain, shaping=shaping),
            "tabular",
            once | {"task": [{"name": "one", "options": {"entropy": share, "spread": 0.0}}]},
        )
        for share in (0.15, 0.45, 0.85)
        for name, shaping in rules.items()
    }


def stages() -> Conditions:
    """One task after another on one table of the policy."""
    found = {name: getattr(presets, name) for name in ("grpo", "dapo", "ce_gppo", "gppo", "cispo", "repo_d", "repo_r")}
    found |= {"adapo": presets.adapo, "neutral drift": OURS["neutral drift"]}
    found |= {f"bonus {c:g}": replace(BASE, penalties=(EntropyBonus(coef=c),)) for c in (0.01, 0.03)}
    return {name: Condition(objective, "stages") for name, objective in found.items()}


def precision() -> Conditions:
    """Log-probabilities in three number formats, with a clip and without, each against the same in float32."""
    wide = {"tabular.vocabulary": 256}  # rare actions, whose log-probabilities are large and rounded most
    rules = {"clip": BASE, "no clip": replace(BASE, surrogate=ImportanceWeighted())}
    return {
        f"{rule}, {precision}": Condition(objective, "tabular", wide | {"tabular.precision": precision})
        for rule, objective in rules.items()
        for precision in ("fp32", "fp16", "bf16")
    }


def mix() -> Conditions:
    """Which tasks of a mix move, under plain gradient steps."""
    rules = {
        "group-relative": BASE,
        "group-centred": replace(BASE, advantage=GroupCentred()),
        "gepo": presets.gepo,
    }
    return {name: Condition(objective, "tabular", SGD) for name, objective in rules.items()}


COEFFICIENTS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
GAINS = (0.02, 0.05, 0.2, 0.5)


def bonus() -> Conditions:
    """A fixed entropy bonus over two decades of its coefficient, and a controlled one over one of its gain."""
    fixed = {f"coefficient {c:g}": EntropyBonus(coef=c) for c in COEFFICIENTS}
    moved = {f"PI, gain {k:g}": EntropyBonus(coef=pi(0.0, 0.0, 0.2, k, target=TARGET)) for k in GAINS}
    return {name: Condition(replace(BASE, penalties=(rule,))) for name, rule in (fixed | moved).items()}


def covariance() -> Conditions:
    """Clip-Cov and KL-Cov at their papers' shares, and at shares that reach some tokens of so small a batch."""
    rules = {
        "PPO's clip": PPOClip(),
        "no clip": ImportanceWeighted(),
        "clip_cov, 2e-4": ClipCov(),
        "clip_cov, 2e-2": ClipCov(ratio=0.02),
        "kl_cov, 2e-3": KLCov(),
        "kl_cov, 2e-2": KLCov(k=0.02),
    }
    return {name: Condition(replace(BASE, surrogate=rule)) for name, rule in rules.items()}


EXPERIMENTS: Mapping[str, Callable[[], Conditions]] = {
    "objectives": objectives,
    "keep": keep,
    "stability": stability,
    "target": target,
    "prediction": prediction,
    "neutral": neutral,
    "stages": stages,
    "precision": precision,
    "mix": mix,
    "bonus": bonus,
    "covariance": covariance,
    "even": even,
    "chains": chains,
}
STEPS = {"prediction": 160, "neutral": 1, "stages": 960} | dict.fromkeys(
    ("stability", "precision", "mix", "covariance"), 320
)  # updates of a run, where not the study's own number
READ = {"prediction": every_update, "neutral": first_update}  # figures other than those of a whole run
