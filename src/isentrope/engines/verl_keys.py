"""Where an objective is named in verl's configuration, and how a key is looked up. Needs nothing of verl."""

from collections.abc import Mapping
from typing import Any

from isentrope import spec
from isentrope.errors import IsentropeError
from isentrope.objective import Objective

Config = Mapping[str, Any]

TRAINER_MODES = {
    "isentrope": "sync",
    "isentrope_colocate_async": "colocate_async",
    "isentrope_separate_async": "separate_async",
}
ACTOR = "actor_rollout_ref.actor"
OBJECTIVE = f"{ACTOR}.policy_loss.objective"
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"
ESTIMATOR = "algorithm.adv_estimator"
TARGET = "isentrope.engines.verl.PolicyLossConfig"


class ConfigError(IsentropeError, ValueError):
    """A configuration of verl that cannot be honoured; the message lists every key at fault."""


def lookup(config: Config, path: str, default: Any = None) -> Any:
    """The value of a dotted path in a nested mapping (a dict or a DictConfig); `default` where a part is missing."""
    here: Any = config
    for key in path.split("."):
        if not isinstance(here, Mapping) or key not in here:
            return default
        here = here[key]
    return here


def trainer_mode(config: Config) -> str:
    """`trainer.v1.trainer_mode`, verl's default where it is not set."""
    return str(lookup(config, "trainer.v1.trainer_mode", "sync"))


def named(value: Any) -> str:
    """NAME of "isentrope/NAME"; "" for anything else."""
    return str(value).removeprefix("isentrope/") if str(value).startswith("isentrope/") else ""


def objective_source(config: Config) -> str:
    """What names the objective: a preset, "file.py:name" or TOML text, from whichever of the keys holds it.

    Keys: actor.policy_loss.objective, trainer.v1.<mode>.objective, NAME of isentrope/NAME in
    actor.policy_loss.loss_mode and algorithm.adv_estimator. ConfigError where there is none, or where two differ.
    """
    own = f"trainer.v1.{trainer_mode(config)}.objective"
    found = {key: lookup(config, key) for key in (OBJECTIVE, own)}
    found |= {key: named(lookup(config, key, "")) for key in (LOSS_MODE, ESTIMATOR)}
    given = {key: str(value) for key, value in found.items() if value}
    if not given:
        raise ConfigError(
            f"no objective is named: set +{own}=NAME with trainer.v1.trainer_mode=isentrope,"
            f" or {LOSS_MODE}=isentrope/NAME"
        )
    if len(set(given.values())) > 1:
        raise ConfigError(
            f"two objectives are named: {', '.join(f'{k}={v!r}' for k, v in given.items())}; leave one of the keys"
        )
    return next(iter(given.values()))


def objective_of(config: Config) -> Objective:
    """The objective that a configuration names; IsentropeError for a name that is not known."""
    return spec.load(objective_source(config))
