"""Laws on columns: which are read, and what becomes of missing and of bad ones."""

import torch
from torch import Tensor

from isentrope.columns import Batch
from isentrope.control import State
from isentrope.errors import ColumnError
from isentrope.laws._trial import (
    DoesNotApply,
    Outcome,
    differentiate,
    law,
    outcome,
    prepare,
    require,
    require_bits,
    same,
    used_state,
)
from isentrope.objective import Objective


@law
def only_named_columns_are_read(objective: Objective, batch: Batch) -> None:
    """Without the columns that no rule names, or with garbage in them, all stays the same to the last bit."""
    state, needs = used_state(objective, batch), objective.columns()
    named = needs.prepare | needs.loss | needs.optional
    exact = {name: x for name, x in batch.items() if name in named}
    spoilt = {n: x if n in named else _spoil(x) for n, x in batch.items()} | {"unrelated": _spoil(batch["logp"])}
    require_bits(outcome(objective, exact, state), outcome(objective, spoilt, state))


def _spoil(x: Tensor) -> Tensor:
    return torch.full_like(x, torch.nan) if x.is_floating_point() else ~x if x.dtype == torch.bool else x * 0 - 5


@law
def missing_columns_are_named(objective: Objective, batch: Batch) -> None:
    """Without a column that it needs, an objective raises an error with its name; an optional one may be missing."""
    needs, state = objective.columns(), used_state(objective, batch)
    for name in sorted(needs.prepare | needs.loss):
        _require_named(objective, batch, name, state, optional=False)
    for name in sorted(needs.optional & batch.keys()):
        _require_named(objective, batch, name, state, optional=True)


def _require_named(objective: Objective, batch: Batch, name: str, state: State, optional: bool) -> None:
    try:
        outcome(objective, {n: x for n, x in batch.items() if n != name}, state)
    except (ColumnError, ValueError) as error:
        require(f"`{name}`" in str(error), f"an error that names `{name}`", error)
    except Exception as error:  # whatever a rule raises on None
        require(False, f"a ColumnError that names `{name}`", repr(error))
    else:
        require(optional, f"an error without `{name}`", "none")


@law
def bad_rewards_are_refused(objective: Objective, batch: Batch) -> None:
    """A reward that is NaN or infinite raises ColumnError that names the row."""
    if "reward" not in objective.columns().prepare:
        raise DoesNotApply("the objective reads no reward")
    for bad in (torch.nan, torch.inf, -torch.inf):
        reward = batch["reward"].clone()
        reward[-1] = bad
        try:
            prepare(objective, dict(batch) | {"reward": reward}, objective.init())
        except ColumnError as error:
            require(f"row {len(reward) - 1}" in str(error), "the row in the message", error)
        else:
            require(False, f"ColumnError for a reward of {bad}", "none")


@law
def bad_tokens_count_as_masked(objective: Objective, batch: Batch) -> None:
    """A token at which a column of another policy is not finite is as if it were masked, and `excluded` marks it."""
    b, t = _some_token(batch)
    state, needs = used_state(objective, batch), objective.columns()
    expected = outcome(objective, dict(batch) | {"mask": _with(batch["mask"], b, t, False)}, state)
    for name in sorted(
        {"old_logp", "old_entropy", "ref_logp", "value"} & (needs.prepare | needs.loss | needs.optional)
    ):
        for bad in (torch.nan, -torch.inf):
            found = outcome(objective, dict(batch) | {name: _with(batch[name], b, t, bad)}, state)
            same(expected, found)
            require(bool(found.prepared["excluded"][b, t]), f"excluded where {name} is {bad}", "not")


@law
def bad_logp_counts_as_dropped(objective: Objective, batch: Batch) -> None:
    """A token at which the current `logp` is not finite has no gradient, and the others are as if it were not there."""
    b, t = _some_token(batch)
    o = outcome(objective, batch, used_state(objective, batch))
    now, totals = o.now, o.now.count(o.prepared)
    without = {name: _with(o.prepared[name], b, t, False) for name in ("mask", "selected")}
    expected = Outcome(now, o.prepared, o.state, *differentiate(now, o.prepared | without, totals))
    for bad in (torch.nan, -torch.inf):
        spoilt = o.prepared | {"logp": _with(o.prepared["logp"], b, t, bad)}
        same(expected, Outcome(now, o.prepared, o.state, *differentiate(now, spoilt, totals)))


def _some_token(batch: Batch) -> tuple[int, int]:
    if not batch["mask"].any():
        raise DoesNotApply("the batch has no token")
    b, t = batch["mask"].nonzero()[int(batch["mask"].sum()) // 2].tolist()
    return b, t


def _with(x: Tensor, b: int, t: int, value: float | bool) -> Tensor:
    changed = x.clone()
    changed[b, t] = value
    return changed
