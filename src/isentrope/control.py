"""Controllers: values that stand where a number goes, and move it once per rollout batch.

A controller has `init() -> State`, `observe(state, *, <columns>) -> State` and `value(state) -> float`. Its state is
a flat dict of floats that the caller keeps, logs and checkpoints. `observe` asks for columns by name as a rule does,
or for `measured_entropy`: the token mean of
`old_entropy`, or of `-old_logp` where that is missing (nats, over the whole rollout batch).

H is the measured entropy, H* the target: a number, or "initial" for the first finite observation. H == H* changes
nothing. A non-finite observation leaves the state as it was and warns.
"""

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from isentrope import masked
from isentrope.errors import IsentropeWarning

State = dict[str, float]
Target = float | str
ByTask = tuple[tuple[int, float], ...]


class Controller(Protocol):
    """What `Objective` takes for a controller: any object with these three methods."""

    def init(self) -> State:
        """The state before any observation."""

    def value(self, state: State) -> Any:
        """The number in force."""

    @property
    def observe(self) -> Callable[..., State]:
        """observe(state, *, columns) -> the state after one rollout batch."""


@cache
def _controls(kind: type) -> bool:
    return all(hasattr(kind, name) for name in ("init", "value", "observe"))


def is_controller(x: object) -> TypeGuard[Controller]:
    """True for an object with a controller's methods. Asked of every field at every update, so once a type."""
    kind: Any = type(x)
    return _controls(kind)


# float | Controller; Any, since Objective.at has put a number in place before a rule computes
Number = Any
MAX_FLOAT = sys.float_info.max


def require(holder: object, field: str, allowed: bool, expected: str) -> None:
    """Raise ValueError with class, field, value and the allowed range unless `allowed`."""
    if not allowed:
        raise ValueError(f"{type(holder).__name__}.{field} must be {expected}; found {getattr(holder, field)!r}")


def is_number(x: object) -> bool:
    """True for an int or float that is not NaN; False for a controller, an int beyond all floats, anything else."""
    if not isinstance(x, int | float) or isinstance(x, bool):
        return False
    return abs(x) <= MAX_FLOAT or (isinstance(x, float) and math.isinf(x))


def span(x: Any) -> tuple[float, float] | None:
    """The least and the greatest value of a number or a controller; None for a controller that does not say."""
    return (x, x) if is_number(x) else getattr(x, "span", None)


def require_number(holder: object, field: str, low: float = -math.inf, high: float = math.inf) -> None:
    """The field holds a number in [low, high], or a controller that stays there as far as it says (its `span`)."""
    x = getattr(holder, field)
    reach = span(x)
    inside = reach is not None and low <= reach[0] and reach[1] <= high
    allowed = inside or (reach is None and is_controller(x))
    require(holder, field, allowed, f"a number, or a controller that stays, in [{low:g}, {high:g}]")


def _is_usable(controller: object, entropy: float) -> bool:
    """Whether a measured entropy is finite; warns where it is not, and the controller keeps its state."""
    if math.isfinite(entropy):
        return True
    name = type(controller).__name__
    warnings.warn(f"{name}: measured entropy is {entropy}; state kept", IsentropeWarning, stacklevel=3)
    return False


def _clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


@dataclass(frozen=True, kw_only=True)
class _Servo:
    """Shared frame of the entropy servos: start, bounds, target, and one `_step` for an observation off target."""

    start: float
    low: float
    high: float
    target: Target = "initial"

    def __post_init__(self) -> None:
        require(self, "high", self.low <= self.high, f"at least low = {self.low}")
        require(self, "target", is_number(self.target) or self.target == "initial", 'a number of nats or "initial"')

    @property
    def span(self) -> tuple[float, float]:
        """The values it can take."""
        return min(self.low, self.start), max(self.high, self.start)

    def init(self) -> State:
        state = {"value": float(self.start)}
        return state | ({} if isinstance(self.target, str) else {"target": float(self.target)})

    def observe(self, state: State, *, measured_entropy: float) -> State:
        if not _is_usable(self, measured_entropy):
            return state
        state = {"target": measured_entropy} | state
        return state if measured_entropy == state["target"] else self._step(state, measured_entropy)

    def value(self, state: State) -> float:
        return state["value"]

    def _step(self, state: State, entropy: float) -> State:
        return state | {"value": self._next(state["value"], entropy > state["target"])}

    def _next(self, x: float, above: bool) -> float:
        raise TypeError(f"{type(self).__name__} defines neither _step nor _next")


@dataclass(frozen=True, kw_only=True)
class EntropyGain(_Servo):
    """REPO's gain zeta with sign flip: halved or doubled, and through zero by way of the lower bound.

    H > H*: zeta >= 0 -> zeta/2, and if that is < low then -low; zeta < 0 -> max(-high, 2 zeta).
    H < H*: zeta > 0 -> min(high, 2 zeta); 0 -> low; zeta < 0 -> zeta/2, and if that is > -low then +low.
    low, high: bounds of |zeta|, 0 < low <= high.
    Source: REPO, arXiv:2603.11682. `target="initial"` by default is ours.

    >>> gain = EntropyGain(start=1e-3, low=1e-4, high=0.05, target=1.0)
    >>> state = gain.init()
    >>> [state := gain.observe(state, measured_entropy=h) for h in (0.5, 0.5)][-1]["value"]
    0.004
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "low", self.low > 0, "positive")

    @property
    def span(self) -> tuple[float, float]:
        """Both signs."""
        bound = max(self.high, abs(self.start))
        return -bound, bound

    def _next(self, x: float, above: bool) -> float:
        return -self._towards_more(-x) if above else self._towards_more(x)

    def _towards_more(self, x: float) -> float:
        if x > 0:
            return min(self.high, 2 * x)
        return x / 2 if x / 2 <= -self.low else self.low


@dataclass(frozen=True, kw_only=True)
class EntropyServo(_Servo):
    """Multiplicative servo (ADAPO's epsilon_high): x * rate below the target, x / rate above it, clipped to [low,
    high].

    rate: > 0; above 1 for a number that raises entropy, below 1 for one that lowers it.
    Source: ADAPO in arXiv:2603.11682; its constants are unpublished: start .28, rate 1.1, bounds [.05, 1], target
    "initial" are ours.
    """

    start: float = 0.28
    rate: float = 1.1
    low: float = 0.05
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "rate", self.rate > 0 and self.rate != 1, "positive and not 1")

    def _next(self, x: float, above: bool) -> float:
        return _clip(x / self.rate if above else x * self.rate, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class EntropyStep(_Servo):
    """Additive servo (Skywork-OR1's coefficient): x + step below the target, x - step above it, clipped to [low, high].

    step: negative for a number that lowers entropy when it grows.
    Source: Skywork-OR1, arXiv:2505.22312: start 0, step 1e-4, bounds [0, .005], target .2 nats.
    """

    start: float = 0.0
    step: float = 1e-4
    low: float = 0.0
    high: float = 0.005
    target: Target = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "step", self.step != 0, "other than 0")

    def _next(self, x: float, above: bool) -> float:
        return _clip(x - self.step if above else x + self.step, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class EntropyPI(_Servo):
    """Proportional-integral control of any number (ours).

    e = H* - H, 0 inside the dead band (|e| <= dead_band); I <- clip(I + ki e, low - start, high - start), so that the
    integral alone never leaves the bounds (anti-windup); x = clip(start + kp e + I, low, high).
    kp, ki: per nat; negative where raising the number lowers entropy.
    """

    kp: float = 0.0
    ki: float = 0.0
    dead_band: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "ki", self.kp != 0 or self.ki != 0, "other than 0 where kp is 0: the number would never move")
        require(self, "dead_band", self.dead_band >= 0, "at least 0 nats")

    def init(self) -> State:
        return super().init() | {"integral": 0.0}

    def _step(self, state: State, entropy: float) -> State:
        error = state["target"] - entropy
        error = error if abs(error) > self.dead_band else 0.0
        integral = _clip(state["integral"] + self.ki * error, self.low - self.start, self.high - self.start)
        return state | {
            "integral": integral,
            "value": _clip(self.start + self.kp * error + integral, self.low, self.high),
        }


@dataclass(frozen=True, kw_only=True)
class EntropySwitch:
    """One of two numbers: `below` while H < H*, `above` while H > H*, `start` before any observation.

    AEPO's sampling temperature: 1.2 below the target, .8 above it (arXiv:2510.08141; the numbers are those of its
    code).
    """

    below: float
    above: float
    start: float
    target: Target = "initial"

    def __post_init__(self) -> None:
        require(self, "target", is_number(self.target) or self.target == "initial", 'a number of nats or "initial"')

    @property
    def span(self) -> tuple[float, float]:
        """The values it can take."""
        return min(self.below, self.above, self.start), max(self.below, self.above, self.start)

    def init(self) -> State:
        return {"value": float(self.start)} | ({} if isinstance(self.target, str) else {"target": float(self.target)})

    def observe(self, state: State, *, measured_entropy: float) -> State:
        if not _is_usable(self, measured_entropy):
            return state
        state = {"target": measured_entropy} | state
        if measured_entropy == state["target"]:
            return state
        return state | {"value": float(self.below if measured_entropy < state["target"] else self.above)}

    def value(self, state: State) -> float:
        return state["value"]


@dataclass(frozen=True, kw_only=True)
class Hysteresis:
    """A switch, 0 or 1, that closes at one entropy and opens at another (AEPO's negative gate).

    Becomes 1 when H > high * H_ref, 0 again when H < low * H_ref, stays as it is between. H_ref: `reference` in nats,
    or the initial entropy.
    Source: AEPO in QwenLong-L1.5, arXiv:2512.12967; the thresholds are unpublished, .8 and 1.2 of the initial entropy
    are ours.
    """

    low: float = 0.8
    high: float = 1.2
    reference: Target = "initial"

    def __post_init__(self) -> None:
        require(self, "high", 0 < self.low <= self.high, f"at least low = {self.low}, both positive")
        require(
            self, "reference", is_number(self.reference) or self.reference == "initial", 'a number of nats or "initial"'
        )

    def init(self) -> State:
        return {"value": 0.0} | ({} if isinstance(self.reference, str) else {"reference": float(self.reference)})

    def observe(self, state: State, *, measured_entropy: float) -> State:
        if not _is_usable(self, measured_entropy):
            return state
        state = {"reference": measured_entropy} | state
        if measured_entropy > self.high * state["reference"]:
            return state | {"value": 1.0}
        return state | ({"value": 0.0} if measured_entropy < self.low * state["reference"] else {})

    def value(self, state: State) -> float:
        return state["value"]


@dataclass(frozen=True, kw_only=True)
class GroupEntropyThreshold:
    """GEPO's moving threshold on the entropy of a prompt's group: mu + offset * sigma over the groups of a batch,
    smoothed.

    H_g = -(sum of old_logp over all tokens of the group) / (number of those tokens); mu, sigma: mean and population
    standard deviation over groups, before any filter; H <- (1 - gamma) H + gamma H^. The first batch seeds the
    average; NaN before it, which switches nothing.
    by_task: a threshold for each task, over that task's groups (ours).
    Source: GEPO, arXiv:2607.16850.
    """

    offset: float
    gamma: float = 0.01
    by_task: bool = False

    def __post_init__(self) -> None:
        require(self, "gamma", 0 < self.gamma <= 1, "in (0, 1]")

    def init(self) -> State:
        return {}

    def observe(
        self, state: State, *, old_logp: Tensor, mask: Tensor, group: Tensor, task: Tensor | None = None
    ) -> State:
        entropy, g = masked.group_token_mean(-old_logp, mask, group)
        if not self.by_task:
            return self._smooth(state, "value", entropy)
        if task is None:
            raise ValueError("GroupEntropyThreshold(by_task=True) needs the column `task`")
        task_of_group = torch.zeros(g.count, dtype=task.dtype, device=task.device).index_copy_(0, g.index, task)
        for t in torch.unique(task).tolist():
            state = self._smooth(state, f"value/{t}", entropy[task_of_group == t])
        return state

    def _smooth(self, state: State, key: str, entropy: Tensor) -> State:
        entropy = entropy[~entropy.isnan()]  # groups without a token have none
        if not len(entropy):
            return state
        found = float(entropy.mean() + self.offset * entropy.std(correction=0))
        if not math.isfinite(found):
            warnings.warn(f"GroupEntropyThreshold: threshold is {found}; state kept", IsentropeWarning, stacklevel=3)
            return state
        return state | {key: (1 - self.gamma) * state[key] + self.gamma * found if key in state else found}

    def value(self, state: State) -> float | ByTask:
        if not self.by_task:
            return state.get("value", math.nan)
        return tuple(sorted((int(key.split("/")[1]), x) for key, x in state.items()))


def own_state(state: State, path: str) -> State:
    """The state of the controller at a path, under its own names."""
    return {key.removeprefix(f"{path}."): x for key, x in state.items() if key.startswith(f"{path}.")}


def find_controllers(node: Any, path: str) -> Iterator[tuple[str, Controller]]:
    """(path, controller) of every controller in a rule's fields, or in those of a rule or a tuple of rules in them."""
    if is_controller(node):
        yield path, node
    elif isinstance(node, tuple):
        for i, item in enumerate(node):
            yield from find_controllers(item, f"{path}.{i}")
    elif is_dataclass(node) and not isinstance(node, type):
        for f in fields(node):
            yield from find_controllers(getattr(node, f.name), f"{path}.{f.name}" if path else f.name)


def put_numbers(node: Any, state: State, path: str) -> Any:
    """The same tree with every controller replaced by its value; what holds none is returned as it is."""
    if is_controller(node):
        return node.value(own_state(state, path))
    if not any(True for _ in find_controllers(node, path)):
        return node
    if isinstance(node, tuple):
        return tuple(put_numbers(item, state, f"{path}.{i}") for i, item in enumerate(node))
    changed = {
        f.name: put_numbers(getattr(node, f.name), state, f"{path}.{f.name}" if path else f.name) for f in fields(node)
    }
    return replace(node, **changed)
