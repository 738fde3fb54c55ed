"""verl's `actor.policy_loss` with one key more: `objective`."""

import os
from dataclasses import dataclass

from verl.workers import config as verl_config

from isentrope import spec
from isentrope.engines.verl_keys import ConfigError, named
from isentrope.engines.verl_placement import hook_refusals


@dataclass
class PolicyLossConfig(verl_config.PolicyLossConfig):
    """verl's configuration of the policy loss with `objective`: a preset's name, "file.py:name" or TOML text.

    driver: set by our trainer, whose driver does what the loss alone cannot.
    Instantiated by verl once in the process that starts the job (so a wrong name ends there, before Ray starts), and
    once in every actor worker, where what the loss alone cannot host is refused before the first rollout unless
    `driver` is set.
    """

    objective: str = ""
    driver: bool = False

    def __post_init__(self) -> None:
        source = self.objective or named(self.loss_mode)
        if not source:
            return
        objective = spec.load(source)
        in_worker = os.environ.get("WG_BACKEND") == "ray"  # verl sets it where a worker group starts a worker
        found = hook_refusals(objective) if in_worker and not self.driver else []
        if found:
            raise ConfigError("; ".join(found))
