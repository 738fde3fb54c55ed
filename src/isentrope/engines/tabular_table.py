"""The table `[tabular]` of a recipe: the shape of the tabular policy, and how it is trained.

[tabular]
length = 1             # most symbols in a completion; 1 is a bandit
vocabulary = 32        # symbols; with length above 1 the symbol 0 ends a completion
precision = "fp32"     # fp32, bf16 or fp16: the format to which log-probabilities are rounded
optimizer = "adam"     # or sgd
prior = 0              # seed of the initial policies
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.recipe import suggestion

MAX_SEQUENCES = 65_536  # vocabulary ** length; all of them are enumerated, float64
PRECISIONS = ("fp32", "bf16", "fp16")
OPTIMIZERS = ("adam", "sgd")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The table `[tabular]`, checked.

    length: most symbols of a completion, from 1. vocabulary: symbols, from 2; vocabulary ** length at most 65,536.
    precision: log-probabilities of both policies are rounded to this format before the objective sees them, as an
    engine does whose head or cast is in that format; the policy itself stays in float64. optimizer: "adam" (betas .9
    and .999) or "sgd" (plain: the step is the learning rate times the gradient, as first-order theory has it). prior:
    seed of the initial policies, from 0.
    Raises ValueError with the key, the value and the allowed range.
    """

    length: int = 1
    vocabulary: int = 32
    precision: str = "fp32"
    optimizer: str = "adam"
    prior: int = 0

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("vocabulary", 2), ("prior", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be a whole number, at least {least}; found {value!r}")
        for name, allowed in (("precision", PRECISIONS), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}; found {getattr(self, name)!r}")
        if self.vocabulary**self.length > MAX_SEQUENCES:
            raise ValueError(
                f"vocabulary ** length must be at most {MAX_SEQUENCES}, so that completions can be enumerated; found"
                f" {self.vocabulary} ** {self.length}"
            )

    @property
    def ends(self) -> bool:
        """Whether symbol 0 ends a completion."""
        return self.length > 1


def settings(table: Mapping[str, Any], label: str = "recipe") -> Settings:
    """The settings that a table holds. IsentropeError for a key that does not exist or a value out of range."""
    known = [field.name for field in fields(Settings)]
    for key in table:
        if key not in known:
            raise IsentropeError(f"{label}: [tabular] has no key {key!r}{suggestion(key, known)}")
    try:
        return Settings(**table)
    except ValueError as error:
        raise IsentropeError(f"{label}: [tabular] {error}") from error


def check_table(table: Mapping[str, Any], label: str) -> None:
    """Refuse keys and values that `Settings` has not."""
    settings(table, label)
