"""What a law is made of: running an objective on a batch, and saying what differs."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from isentrope import masked
from isentrope.aggregate import Totals
from isentrope.columns import Batch, invoke
from isentrope.control import State
from isentrope.errors import IsentropeWarning
from isentrope.objective import Objective

Law = Callable[[Objective, Batch], None]  # raises what breaks it

RTOL = 1e-9  # float64: reordered sums
RTOL_SINGLE = 1e-4  # float32: 6e-8 a step, times the steps and what dividing by a small deviation amplifies
NUDGE = 1e-6  # relative; some units in the last place of float32
EXTREME = 300.0  # nats; exp overflows float32 at 88.7


class LawBroken(AssertionError):
    """An objective does not obey a law; the message names the law, what was expected, what was found, and the batch."""


class DoesNotApply(Exception):
    """The objective does not promise this law, or the batch cannot show it; the message says which and why."""


class Differs(Exception):
    """What was expected, what was found."""


LAWS: dict[str, Law] = {}  # by name, in the order in which they are shown


def law(function: Law) -> Law:
    """Put a law into the table; whatever it finds, a rule that crashes included, becomes LawBroken."""

    @wraps(function)
    def run(objective: Objective, batch: Batch) -> None:
        try:
            function(objective, batch)
        except DoesNotApply:
            raise
        except Exception as error:
            said = str(error) if isinstance(error, Differs) else f"expected a result; found {error!r}"
            rows, tokens = batch["mask"].shape
            where = getattr(batch, "recipe", "") or "a batch of your own"
            raise LawBroken(f"{function.__name__}: {said} ({rows} rows, {tokens} tokens: {where})") from error

    LAWS[function.__name__] = run
    return run


@dataclass(frozen=True)
class Outcome:
    """What one update makes of a batch: prepared rows, controllers' state, loss, dJ/dlogp and dJ/dentropy [B,T]."""

    now: Objective
    prepared: dict[str, Tensor]
    state: State
    loss: Tensor
    weights: Tensor
    entropy_weights: Tensor


def outcome(objective: Objective, batch: Batch, state: State) -> Outcome:
    """Prepare and differentiate a batch on all its rows."""
    prepared, after = prepare(objective, batch, state)
    now = objective.at(after)
    return Outcome(now, prepared, after, *differentiate(now, prepared, now.count(prepared)))


def prepare(objective: Objective, batch: Batch, state: State) -> tuple[dict[str, Tensor], State]:
    with quiet():
        return objective.prepare(batch, state)


def differentiate(now: Objective, rows: Batch, totals: Totals) -> tuple[Tensor, Tensor, Tensor]:
    leaves = {n: rows[n].detach().clone().requires_grad_() for n in ("logp", "entropy") if n in rows}
    loss = now.loss(dict(rows) | leaves, totals)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    gradients = dict(zip(leaves, found, strict=True))
    nothing = torch.zeros_like(rows["mask"], dtype=loss.dtype)
    return loss.detach(), -gradients["logp"], -gradients.get("entropy", nothing)


@contextmanager
def quiet() -> Iterator[None]:
    """Batches of one row a group or without tokens are meant here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IsentropeWarning)
        yield


def used_state(objective: Objective, batch: Batch) -> State:
    """A state in which controllers have moved: after five rollout batches of more entropy than this one, or of less."""
    state = objective.init()
    if not objective.controllers():
        return state
    clean = dict(batch) | {n: masked.fill(batch[n], batch["mask"]) for n in token_columns(batch)}
    factor = 1.5 if int(batch["mask"].sum()) % 2 else 0.7
    for i in range(1, 6):  # from 1: this batch itself must not stand on the target
        scale = 1 + (factor - 1) * i / 5
        with quiet():
            state = objective.observe(clean | {n: clean[n] * scale for n in ("old_logp", "old_entropy")}, state)
    return state


def to(batch: Batch, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in batch.items()}


def generator(batch: Batch) -> torch.Generator:
    return torch.Generator().manual_seed(int(batch["mask"].sum()) + 1000 * batch["mask"].numel())


def token_columns(batch: Batch) -> Iterator[str]:
    """The names of the floating-point columns of shape [B,T]."""
    return (n for n, x in batch.items() if x.is_floating_point() and x.shape == batch["mask"].shape)


def call(path: str, rule: Any, rows: Batch, *arguments: Any) -> Any:
    own = {key.removeprefix(f"{path}/"): x for key, x in rows.items() if key.startswith(f"{path}/")}
    return invoke(rule, dict(rows) | own, *arguments)


# -- saying what differs -----------------------------------------------------------------------------------------------


def require(holds: bool, expected: object, found: object) -> None:
    if not holds:
        raise Differs(f"expected {expected}; found {found}")


def close(what: str, found: Tensor, expected: Tensor, rtol: float = RTOL, scale: float | None = None) -> None:
    """found equals expected within rtol of each value and rtol / 10 of `scale`, by default the largest value: terms
    may cancel. NaN is never right.
    """
    require(found.shape == expected.shape, f"{what} {list(expected.shape)}", list(found.shape))
    if not expected.numel():
        return
    found, expected = found.double(), expected.double()
    size = expected.abs()
    bad = ~((found - expected).abs() <= rtol * size + rtol / 10 * (size.max() if scale is None else scale) + 1e-12)
    if bad.any():
        at = tuple(bad.nonzero()[0].tolist())
        require(False, f"{what}{list(at) or ''} = {float(expected[at])!r}", repr(float(found[at])))


def close_loss(expected: Outcome, found: Tensor, rtol: float = RTOL) -> None:
    """The losses agree within rtol of the size of their terms, |A| (1 + |logp|) under the aggregation's weights."""
    now, rows = expected.now, expected.prepared
    shaped, logp = (masked.fill(x, rows["mask"]) for x in (now.shaped(rows), rows["logp"]))
    terms = shaped.abs() * (1 + logp.abs())
    weight = call("aggregate", now.aggregate, rows, now.count(rows))
    close("loss", found, expected.loss, rtol, float((terms * weight).sum() + expected.loss.abs()))


def same(expected: Outcome, found: Outcome) -> None:
    close_loss(expected, found.loss)
    close("weights", found.weights, expected.weights)
    close("entropy weights", found.entropy_weights, expected.entropy_weights)
    require(found.state.keys() == expected.state.keys(), f"state {expected.state}", found.state)
    for key, value in expected.state.items():
        alike = math.isclose(found.state[key], value, rel_tol=RTOL, abs_tol=1e-12)
        require(alike, f"state {key} = {value!r}", repr(found.state[key]))


def require_bits(expected: Outcome, found: Outcome) -> None:
    """Loss, weights and state are the same to the last bit."""
    require(torch.equal(found.loss, expected.loss), f"loss {float(expected.loss)!r}", float(found.loss))
    for name in ("weights", "entropy_weights"):
        a, b = getattr(expected, name), getattr(found, name)
        require(torch.equal(a, b), f"{name} {a.tolist()}", b.tolist())
    require(found.state == expected.state, f"state {expected.state}", found.state)


def at_rows(o: Outcome, place: Callable[[Tensor], Tensor]) -> Outcome:
    return replace(o, weights=place(o.weights), entropy_weights=place(o.entropy_weights))


def require_finite(*found: Tensor) -> None:
    for x in found:
        require(bool(torch.isfinite(x).all()), "finite loss and weights", x.flatten().tolist()[:8])
