"""What becomes of verl's keys when an objective takes over the loss, and what of an objective verl cannot serve.

`refusals` reads a configuration and an objective and returns a sentence for each key that would be ignored or would do
the same thing twice, and for each column that nothing would supply. Needs nothing of verl, so a dry run can ask.

* A key in `REPLACED` belongs to a slot of the objective: anything but verl's default is refused, naming the slot.
* A key in `ADDED` is a term that verl's own trainers add after our loss; with our trainer it is a slot's, and refused.
* `algorithm.adv_estimator` is not used with our trainer: gae (verl's default), grpo and isentrope are taken, others
  refused.
"""

from collections.abc import Iterator
from importlib import metadata

from isentrope.aggregate import ConstantLength, SequenceMean, TokenMean
from isentrope.columns import GLOSSARY, reads
from isentrope.engines.verl_keys import (
    ACTOR,
    ESTIMATOR,
    LOSS_MODE,
    TARGET,
    TRAINER_MODES,
    Config,
    ConfigError,
    lookup,
    named,
    objective_source,
    trainer_mode,
)
from isentrope.engines.verl_placement import hook_refusals
from isentrope.engines.verl_prepare import critic_rule
from isentrope.errors import IsentropeError
from isentrope.objective import Objective

TESTED = ((0, 9), (0, 10))  # verl's internals, which the trainer overrides, change between minor releases

# key -> (verl's default, slot, what to write there)
REPLACED = {
    f"{ACTOR}.clip_ratio": (0.2, "surrogate", "PPOClip(low=..., high=...)"),
    f"{ACTOR}.clip_ratio_low": (0.2, "surrogate", "PPOClip(low=...)"),
    f"{ACTOR}.clip_ratio_high": (0.2, "surrogate", "PPOClip(high=...)"),
    f"{ACTOR}.clip_ratio_c": (3.0, "surrogate", "PPOClip(dual=...)"),
    f"{ACTOR}.tau_pos": (1.0, "surrogate", "SoftGate(tau_pos=...)"),
    f"{ACTOR}.tau_neg": (1.05, "surrogate", "SoftGate(tau_neg=...)"),
    f"{ACTOR}.policy_loss.clip_cov_ratio": (0.0002, "surrogate", "ClipCov(ratio=...)"),
    f"{ACTOR}.policy_loss.clip_cov_lb": (1.0, "surrogate", "ClipCov(cov_low=...)"),
    f"{ACTOR}.policy_loss.clip_cov_ub": (5.0, "surrogate", "ClipCov(cov_high=...)"),
    f"{ACTOR}.policy_loss.kl_cov_ratio": (0.0002, "surrogate", "KLCov(k=...)"),
    f"{ACTOR}.policy_loss.ppo_kl_coef": (0.1, "surrogate", "KLCov(coef=...)"),
    f"{ACTOR}.policy_loss.dro_beta": (None, "surrogate", "a surrogate of your own"),
    "algorithm.gamma": (1.0, "advantage", "GeneralizedAdvantage(gamma=...)"),
    "algorithm.lam": (1.0, "advantage", "GeneralizedAdvantage(lam=...)"),
    "algorithm.norm_adv_by_std_in_grpo": (True, "advantage", "GroupCentred() for False"),
    "algorithm.use_pf_ppo": (False, "advantage", "an advantage rule of your own"),
}
ADDED = {
    f"{ACTOR}.entropy_coeff": (0, "penalties", "EntropyBonus(coef=...)"),
    f"{ACTOR}.use_kl_loss": (False, "penalties", "ReferenceKL(coef=...)"),
    f"{ACTOR}.loss_scale_factor": (None, "aggregate", "ConstantLength(length=...)"),
}
AGGREGATES = {TokenMean: "token-mean", SequenceMean: "seq-mean-token-mean", ConstantLength: "seq-mean-token-sum-norm"}
ESTIMATORS = ("gae", "grpo", "isentrope")
ALWAYS = frozenset(
    {"reward", "group", "mask", "task", "logp", "old_logp", "entropy", "length_limit", "length_limit_hit"}
)
# a column that verl has in some configurations: what brings it
BROUGHT_BY = {
    "old_entropy": "algorithm.rollout_correction.bypass_mode=False, so that verl scores rollouts itself",
    "rollout_logp": "actor_rollout_ref.rollout.calculate_log_probs=True",
    "value": "critic.enable=True (or leave it null), and GeneralizedAdvantage in the slot `advantage`",
    "tempered": "nothing in verl: its agent loops sample all rows at one temperature",
}


def refusals(config: Config, objective: Objective, verl_version: str | None = None) -> list[str]:
    """A sentence for everything that cannot be honoured; empty where all can.

    config: verl's whole configuration, a dict or a DictConfig; a key that is not there counts as verl's default.
    verl_version: the installed one if None; where verl is not installed, its version is not looked at.
    """
    with_trainer = trainer_mode(config) in TRAINER_MODES
    found = [*_version(verl_version), *_names(config), *_options(config, objective, with_trainer)]
    found += _columns(config, objective) if with_trainer else _hooks(config, objective)
    return found + list(_correction(config, objective)) + list(_rollout(config, objective))


def check(config: Config, objective: Objective) -> None:
    """ConfigError with all refusals, one a line, if there are any."""
    found = refusals(config, objective)
    if found:
        raise ConfigError("verl's configuration cannot be honoured with this objective:\n- " + "\n- ".join(found))


def _version(found: str | None) -> Iterator[str]:
    if found is None:
        try:
            found = metadata.version("verl")
        except metadata.PackageNotFoundError:
            return
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if not TESTED[0] <= numbers < TESTED[1]:
        yield f"verl {found} is installed; this engine is written for verl >=0.9,<0.10: pip install 'verl>=0.9,<0.10'"


def _names(config: Config) -> Iterator[str]:
    """The keys that say which loss, estimator and class of configuration verl takes."""
    try:
        objective_source(config)
    except IsentropeError as error:
        yield str(error)
    mode = str(lookup(config, LOSS_MODE, "vanilla"))
    if mode not in ("vanilla", "isentrope") and not named(mode):
        yield f"{LOSS_MODE}={mode}: the objective is the loss; set isentrope, or leave it out"
    if lookup(config, f"{ACTOR}.policy_loss.objective") and lookup(config, f"{ACTOR}.policy_loss._target_") != TARGET:
        yield f"{ACTOR}.policy_loss.objective needs {ACTOR}.policy_loss._target_={TARGET}"
    if bool(lookup(config, "distillation.enabled", False)):
        yield "distillation.enabled=True: verl's distillation loss and the objective's exclude each other"
    if lookup(config, "trainer.use_v1", True) is False:
        yield "trainer.use_v1=False: the legacy trainer has no place for an objective"


def _options(config: Config, objective: Objective, with_trainer: bool) -> Iterator[str]:
    for key, (default, slot, advice) in (REPLACED | (ADDED if with_trainer else {})).items():
        value = lookup(config, key, default)
        if value != default:
            yield f"{key}={value}: the objective's slot `{slot}` does this; leave it at {default}, set {advice} there"
    yield from _aggregation(config, objective, with_trainer)
    estimator = str(lookup(config, ESTIMATOR, "gae"))
    taken = ESTIMATORS if with_trainer else ("isentrope",)
    if estimator not in taken and not named(estimator):
        yield f"{ESTIMATOR}={estimator}: the objective's slot `advantage` does this; set isentrope"


def _aggregation(config: Config, objective: Objective, with_trainer: bool) -> Iterator[str]:
    """verl's aggregation divides what verl adds to the loss, and its own metric `actor/entropy`."""
    key, ours = f"{ACTOR}.loss_agg_mode", AGGREGATES.get(type(objective.aggregate))
    mode = lookup(config, key, "token-mean")
    adds = not with_trainer and any(lookup(config, name, default) != default for name, (default, *_) in ADDED.items())
    if mode != ours and (mode != "token-mean" or adds):
        does = f"the objective's slot `aggregate` ({objective.aggregate!r}) does this"
        yield f"{key}={mode}: {does}; set {ours or 'token-mean'}"


def _columns(config: Config, objective: Objective) -> Iterator[str]:
    """Columns that our trainer would not have, each with what would bring it."""
    needs, supplied = objective.columns(), supplied_columns(config, objective)
    for name in sorted((needs.prepare | needs.loss) - supplied):
        meaning = f" ({GLOSSARY[name].meaning})" if name in GLOSSARY else ""
        yield f"the objective needs the column `{name}`{meaning}; to have it: {BROUGHT_BY.get(name, 'nothing in verl')}"
    critic = lookup(config, "critic.enable")
    if critic and "value" not in needs.prepare | needs.loss | needs.optional:
        yield "critic.enable=True trains a critic that the objective does not read: leave it null or set it to False"


def supplied_columns(config: Config, objective: Objective) -> frozenset[str]:
    """What our trainer's `prepare` and `loss` get with a configuration; a reference model starts where it is read."""
    found = {
        "ref_logp": True,
        "old_entropy": not lookup(config, "algorithm.rollout_correction.bypass_mode", False),
        "rollout_logp": bool(lookup(config, "actor_rollout_ref.rollout.calculate_log_probs", False)),
        "value": critic_rule(objective) is not None and lookup(config, "critic.enable") is not False,
    }
    return ALWAYS | {name for name, there in found.items() if there}


def _hooks(config: Config, objective: Objective) -> list[str]:
    return hook_refusals(objective, lookup(config, f"{ACTOR}.loss_scale_factor"))


def _correction(config: Config, objective: Objective) -> Iterator[str]:
    section = "algorithm.rollout_correction"
    verls = [key for key in ("rollout_is", "rollout_rs") if lookup(config, f"{section}.{key}")]
    if objective.correction is not None and verls:
        yield (
            f"the sampler would be corrected twice: by {objective.correction!r} in the slot `correction` and by "
            f"{section}.{verls[0]}={lookup(config, f'{section}.{verls[0]}')}; leave one of them"
        )
    reports = lookup(config, "actor_rollout_ref.rollout.calculate_log_probs", False)
    if not reports and verls:
        yield f"{section}.{verls[0]} corrects nothing without actor_rollout_ref.rollout.calculate_log_probs=True"
    reading = objective.correction is not None and "rollout_logp" in reads(objective.correction)
    if reading and not reports:
        yield (
            f"the slot `correction` ({objective.correction!r}) corrects nothing without the sampler's"
            f" log-probabilities: set {BROUGHT_BY['rollout_logp']}"
        )
    if lookup(config, f"{section}.bypass_mode", False) and lookup(config, f"{section}.loss_type") == "reinforce":
        yield f"{section}.loss_type=reinforce: the objective is the loss; set PolicyGradient() in its slot `surrogate`"


def _rollout(config: Config, objective: Objective) -> Iterator[str]:
    """A way of sampling that the objective asks for: it must be the one that verl's configuration says."""
    wanted, section = objective.rollout, "actor_rollout_ref.rollout"
    found = lookup(config, f"{section}.temperature", 1.0)
    if wanted.temperature is not None and (wanted.share != 1 or wanted.temperature != found):
        yield (
            f"the objective asks for {wanted!r}, and verl's agent loops take {section}.temperature={found} for all "
            "rows: set that key to a number, and leave temperature and share out of the slot `rollout`"
        )
    if wanted.rounds and not lookup(config, "algorithm.filter_groups.enable", False):
        yield (
            f"the objective asks for {wanted!r}: set algorithm.filter_groups.enable=True, by which verl replaces "
            "groups without variance, or rounds=0"
        )
