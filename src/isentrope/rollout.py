"""Rollout knobs: numbers that an engine reads before it samples a rollout batch, or refuses."""

from dataclasses import dataclass

from isentrope.control import Number, require, require_number

__all__ = ["Rollout"]


@dataclass(frozen=True)
class Rollout:
    """How the engine samples.

    temperature: None leaves the engine's. A controller observes a rollout batch and sets the temperature of the next.
    share: of the prompts, those sampled at `temperature`; the others at the engine's. At 1 the tempered policy is the
        policy: log-probabilities, entropies and ratios are taken at this temperature. Below 1 they are taken at the
        engine's, and the column `tempered` marks the rows that were sampled off the policy.
    rounds: dynamic sampling: groups without reward variance are replaced by groups of further prompts, sampled in at
        most so many further rounds (DAPO, arXiv:2503.14476, sec. 3.2; its scripts allow 10 in all). What still lacks
        variance then stays.
    """

    temperature: Number | None = None
    share: float = 1.0
    rounds: int = 0

    def __post_init__(self) -> None:
        if self.temperature is not None:
            require_number(self, "temperature", low=0)
            require(self, "temperature", self.temperature != 0, "above 0")
        require(self, "share", 0 < self.share <= 1, "in (0, 1]")
        whole = self.rounds == int(self.rounds)
        require(self, "rounds", whole and self.rounds >= 0, "a whole number, at least 0")
        require(self, "share", self.share == 1 or self.temperature is not None, "1 where no temperature is set")
