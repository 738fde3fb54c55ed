"""The gradient weight of an objective over the ratio, measured on a synthetic batch by the objective's own code.

A row is one token. Of the plotted rows, one in two has advantage +1, the other -1, and every pair has another ratio
logp - old_logp. Controllers stand at their start. The advantage is given, so an objective's own advantage rule does not
enter; shaping, selection, ratio, surrogate, penalties, correction and aggregation all act.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from isentrope.columns import GLOSSARY
from isentrope.errors import IsentropeError, IsentropeWarning
from isentrope.objective import Objective
from isentrope.surrogate import PolicyGradient

OLD_PROBABILITY = 0.05  # of every token under the old policy; the current one has that times the ratio, at most .5
ENTROPY = 2.0  # nats, of every position and both policies
BACKGROUND = 19  # rows for each plotted row: a rule that picks the top twentieth by entropy picks the plotted ones

# By a rule that is wrong, or that takes a column of its own for [B] where it is given as [B,T], or the reverse.
_RAISED_BY_RULES = (RuntimeError, ValueError, IndexError, TypeError, KeyError)


@dataclass(frozen=True)
class Given:
    """A success has advantage +1, a failure -1."""

    def __call__(self, *, reward: Tensor) -> Tensor:
        return 2 * reward - 1


@dataclass(frozen=True)
class Gradient:
    """dJ/dlogp of a token over its ratio, in units of the plain policy gradient's: A at ratio 1 without any rule.

    positive, negative: at A = +1 and A = -1, as long as `ratios`. entropy: dJ/dentropy in the same unit, of a token at
    the first of the ratios. assumed: columns outside the glossary, and what was put in them.
    """

    ratios: tuple[float, ...]
    positive: tuple[float, ...]
    negative: tuple[float, ...]
    entropy: float
    assumed: tuple[str, ...]


def spaced(count: int, low: float = 0.1, high: float = 10.0) -> tuple[float, ...]:
    """Ratios in equal steps of their logarithm; for an odd count and a symmetric range 1 is one of them, exactly."""
    start, step = math.log(low), (math.log(high) - math.log(low)) / (count - 1)
    return tuple(1.0 if 2 * i == count - 1 and low * high == 1 else math.exp(start + i * step) for i in range(count))


def measure(objective: Objective, ratios: Sequence[float]) -> Gradient:
    """The gradient weights of an objective; IsentropeError where its rules cannot run on the synthetic batch."""
    now = replace(objective.at(objective.init()), advantage=Given())
    return _measure(now, ratios, _shapes(now))


def _shapes(now: Objective) -> dict[str, str]:
    """The shape in which the rules take each column outside the glossary, found by trying on a small batch.

    Small, because a rule that takes a column for another shape may broadcast to B x B x T before it fails.
    """
    own = sorted(_names(now) - GLOSSARY.keys())
    failure: Exception | None = None
    for shapes in product(("B", "BT"), repeat=len(own)):
        found = dict(zip(own, shapes, strict=True))
        try:
            _measure(now, (1.0,), found)
        except _RAISED_BY_RULES as error:
            failure = failure or error
        else:
            return found
    what = failure if isinstance(failure, IsentropeError) else f"{type(failure).__name__}: {failure}"
    raise IsentropeError(f"the gradient weight cannot be measured on a synthetic batch: {what}") from failure


def _names(now: Objective) -> frozenset[str]:
    needs = now.columns()
    return needs.prepare | needs.loss


def _measure(now: Objective, ratios: Sequence[float], own: Mapping[str, str]) -> Gradient:
    batch, logp = _batch(ratios, own)
    plain = Objective(advantage=now.advantage, surrogate=PolicyGradient(), aggregate=now.aggregate, select=now.select)
    unit = float(_weights(plain, batch, logp)[0].abs().max()) or 1.0  # 0 where the rules select nothing
    weights, entropy = _weights(now, batch, logp)
    shown = (weights[-2 * len(ratios) :] / unit + 0.0).tolist()  # no -0
    assumed = tuple(f"{name} = 1" for name in own)
    return Gradient(
        tuple(ratios), tuple(shown[::2]), tuple(shown[1::2]), float(entropy[-2 * len(ratios)]) / unit, assumed
    )


def _weights(now: Objective, batch: Mapping[str, Tensor], logp: Tensor) -> tuple[Tensor, Tensor]:
    """dJ/dlogp and dJ/dentropy of the tokens, [B] each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IsentropeWarning)  # the batch is synthetic: what it lacks is no news
        rows, _ = now.prepare(batch)
    rows |= {"logp": logp, "entropy": batch["old_entropy"]}
    totals = now.count(rows)
    return now.weights(rows, totals)[:, 0], now.entropy_weights(rows, totals)[:, 0]


def _batch(ratios: Sequence[float], own: Mapping[str, str]) -> tuple[dict[str, Tensor], Tensor]:
    """Rollout batch and current logp: the background at ratio 1 and of lower entropy, then a pair of rows a ratio.

    The second position is padding: it tells a column of shape [B] from one of shape [B,T], since a rule that takes one
    for the other cannot compute.
    """
    pairs = (1 + BACKGROUND) * len(ratios)
    log_ratio = torch.zeros(2 * pairs, dtype=torch.float64)
    log_ratio[-2 * len(ratios) :] = torch.tensor(ratios, dtype=torch.float64).log().repeat_interleave(2)
    old_logp = torch.full_like(log_ratio, math.log(OLD_PROBABILITY))
    entropy = torch.full_like(log_ratio, ENTROPY / 2)
    entropy[-2 * len(ratios) :] = ENTROPY
    reward = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(pairs)
    rows = {
        "reward": reward,
        "group": torch.arange(pairs).repeat_interleave(2),  # a success and a failure each: no group is filtered
        "task": torch.zeros(2 * pairs, dtype=torch.int64),
        "length_limit": torch.ones_like(reward),
        "length_limit_hit": torch.zeros_like(reward, dtype=torch.bool),
        "tempered": torch.zeros_like(reward, dtype=torch.bool),
    }
    wide = {"old_logp": old_logp, "rollout_logp": old_logp, "ref_logp": old_logp, "old_entropy": entropy}
    wide |= {"value": torch.zeros_like(reward)} | {name: torch.ones_like(reward) for name in own if own[name] == "BT"}
    rows |= {name: torch.ones_like(reward) for name in own if own[name] == "B"}
    mask = torch.tensor([[True, False]]).expand(2 * pairs, 2)
    return rows | {"mask": mask} | {name: _padded(x) for name, x in wide.items()}, _padded(old_logp + log_ratio)


def _padded(x: Tensor) -> Tensor:
    return torch.stack([x, torch.zeros_like(x)], 1)


def notes(objective: Objective, found: Gradient) -> Iterator[str]:
    """What a reader of the plot must know, in sentences."""
    yield (
        "dJ/dlogp of one token in units of the plain policy gradient, at a given advantage A. The token had"
        f" probability {OLD_PROBABILITY:g} under the old policy, its position {ENTROPY:g} nats of entropy."
    )
    if objective.controllers():
        held = ", ".join(f"{path} = {value:g}" for path, value in starts(objective).items())
        yield f"Controllers at their start: {held}." if held else "Controllers act from the first batch on."
    if found.entropy:
        yield f"Besides, dJ/dentropy = {found.entropy:g}."
    if found.assumed:
        yield f"Columns of its own, assumed: {', '.join(found.assumed)}."


def starts(objective: Objective) -> dict[str, float]:
    """The number of every controller before the first batch; those that have none yet are left out."""
    state = objective.init()
    values: dict[str, Any] = {
        path: controller.value({k.removeprefix(f"{path}."): x for k, x in state.items() if k.startswith(f"{path}.")})
        for path, controller in objective.controllers().items()
    }
    return {path: x for path, x in values.items() if isinstance(x, int | float) and not math.isnan(x)}
