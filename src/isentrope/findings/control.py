"""Controllers that can do no more: at the bound of their number, with the entropy away from its target."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from isentrope.findings import robust
from isentrope.findings.base import Finding
from isentrope.findings.knobs import knob
from isentrope.run import Run, Series

LATE = 1 / 3  # of the run: as long as that a number must have stood still
UNMET = 0.2  # of the target: nearer is met, and wider than the dead bands that people set
ONE_SIDED = 0.95  # share of the entropies that lie on one side of the target
VALUE, TARGET = ".value", ".target"
UNKNOWN_UPDATES = 4  # steps that one observation may serve, where nobody says


@dataclass(frozen=True)
class Pinned:
    """name: of the controller. since: the first step at its last value. entropy: its median from there on, nats."""

    name: str
    value: float
    target: float
    entropy: float
    since: float

    @property
    def is_short(self) -> bool:
        """Whether entropy lies below the target: what a controller is there to prevent."""
        return self.entropy < self.target


def pinned_controller(run: Run) -> Finding | None:
    """A controller whose number stands at the end of its course while the entropy stays on one side of its target."""
    found = [one for name in _names(run) if (one := pinned(run, name)) is not None]
    if not found:
        return None
    worst = min(found, key=lambda one: (not one.is_short, one.entropy / one.target))
    side = "below" if worst.is_short else "above"
    return Finding(
        name="pinned_controller",
        severity="warning" if worst.is_short else "note",
        confidence="high" if worst.is_short else "medium",
        title=f"a controller is at its bound and entropy {side} its target",
        evidence=tuple(
            f"controller/{one.name} is {one.value:.3g} since step {one.since:g}; entropy {one.entropy:.3g} nats, target"
            f" {one.target:.3g}"
            for one in found
        ),
        rests_on="a number that no longer moves, and entropy on one side of the target",
        turn=knob(run.engine, "bound"),
        steps=(worst.since, run.series[f"controller/{worst.name}{VALUE}"].steps[-1]),
        numbers={"value": worst.value, "target": worst.target, "entropy": worst.entropy},
    )


def _names(run: Run) -> list[str]:
    """Controllers of which value and target are known."""
    values = (
        name.removesuffix(VALUE) for name in run.series if name.startswith("controller/") and name.endswith(VALUE)
    )
    return [name.removeprefix("controller/") for name in values if f"{name}{TARGET}" in run.series]


def pinned(run: Run, name: str) -> Pinned | None:
    """The controller of that name, where it has come to a bound and stands there with its target unmet.

    It is at a bound where its number has moved, and then stood for the last third of the run and at least 8 rollout
    batches, at the largest or the smallest value of the run: every controller with a target takes a step at each
    entropy off target, but at its bound and within a dead band.
    """
    value, target = run.get(f"controller/{name}{VALUE}"), run.get(f"controller/{name}{TARGET}")
    entropy = run.get("entropy", "surprisal")
    if value is None or target is None or entropy is None or target.values[-1] <= 0:
        return None
    last, extremes = value.values[-1], (min(value.values), max(value.values))
    since = _still_since(value)
    still = value.since(since)
    least = robust.MIN_POINTS * (run.facts.updates_per_rollout or UNKNOWN_UPDATES)
    if last not in extremes or extremes[0] == extremes[1] or len(still) < max(least, LATE * len(value)):
        return None
    return _unmet(name, last, target.values[-1], entropy.since(since), since)


def _still_since(value: Series) -> float:
    """The step from which on a curve has its last value."""
    first = len(value) - 1
    while first and value.values[first - 1] == value.values[-1]:
        first -= 1
    return value.steps[first]


def _unmet(name: str, value: float, target: float, entropy: Series, since: float) -> Pinned | None:
    if not len(entropy):
        return None
    level = median(entropy.values)
    same_side = sum((x < target) == (level < target) for x in entropy.values)
    if abs(level - target) < UNMET * target or same_side < ONE_SIDED * len(entropy):
        return None
    return Pinned(name, value, target, level, since)
