"""Schedules: controllers that count rollout batches and observe nothing else."""

import math
from dataclasses import dataclass
from itertools import pairwise

from isentrope.control import State, require

__all__ = ["Constant", "Cosine", "Linear", "Piecewise"]

_FOREVER = 10**12  # rollout batches; every schedule has ended by then


@dataclass(frozen=True)
class _Schedule:
    """Shared frame of the schedules: counts rollout batches, the first is number 0."""

    @property
    def span(self) -> tuple[float, float]:
        """The values it can take, where they lie between the first and the last."""
        first, last = self.at(0), self.at(_FOREVER)
        return min(first, last), max(first, last)

    def init(self) -> State:
        return {"value": self.at(0), "batches": 0.0}

    def observe(self, state: State) -> State:
        return {"value": self.at(int(state["batches"])), "batches": state["batches"] + 1}

    def value(self, state: State) -> float:
        return state["value"]

    def at(self, batch: int) -> float:
        raise TypeError(f"{type(self).__name__} does not define at")


@dataclass(frozen=True)
class Constant(_Schedule):
    """The same number for every rollout batch: a plain number with a trace in the log."""

    number: float

    def at(self, batch: int) -> float:
        return float(self.number)


@dataclass(frozen=True)
class Linear(_Schedule):
    """From start to end in equal steps over `batches` rollout batches, then constant.

    >>> [Linear(0.0, 1.0, batches=2).at(i) for i in range(4)]
    [0.0, 0.5, 1.0, 1.0]
    """

    start: float
    end: float
    batches: int

    def __post_init__(self) -> None:
        require(self, "batches", self.batches > 0, "a positive number of rollout batches")

    def at(self, batch: int) -> float:
        return self.start + (self.end - self.start) * min(1.0, batch / self.batches)


@dataclass(frozen=True)
class Cosine(Linear):
    """From start to end along half a cosine over `batches` rollout batches, then constant."""

    def at(self, batch: int) -> float:
        progress = min(1.0, batch / self.batches)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class Piecewise(_Schedule):
    """Constant pieces: ((batch, number), ...), each number in force from its rollout batch on (CE-GPPO's staged
    beta1: 0, then .5).

    >>> [Piecewise(((0, 0.0), (2, 0.5))).at(i) for i in range(4)]
    [0.0, 0.0, 0.5, 0.5]
    """

    pieces: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.pieces]
        allowed = bool(starts) and starts[0] == 0 and all(a < b for a, b in pairwise(starts))
        require(self, "pieces", allowed, "pairs (batch, number) with rising batches, the first of them 0")

    def at(self, batch: int) -> float:
        return float(next(number for start, number in reversed(self.pieces) if batch >= start))

    @property
    def span(self) -> tuple[float, float]:
        """The least and the greatest piece."""
        numbers = [float(number) for _, number in self.pieces]
        return min(numbers), max(numbers)
