"""Laws on what a batch is: its rows, groups, padding, splits and masks."""

from dataclasses import replace

import torch
from torch import Tensor

from isentrope.columns import Batch
from isentrope.laws._trial import (
    at_rows,
    differentiate,
    generator,
    law,
    outcome,
    require,
    require_bits,
    same,
    token_columns,
    used_state,
)
from isentrope.objective import ROW_ADVANTAGE, Objective


@law
def rows_in_any_order(objective: Objective, batch: Batch) -> None:
    """Permuting the rows permutes the weights and changes nothing else."""
    state = used_state(objective, batch)
    order = torch.randperm(len(batch["mask"]), generator=generator(batch))
    permuted = outcome(objective, {name: x[order] for name, x in batch.items()}, state)
    same(at_rows(outcome(objective, batch, state), lambda x: x[order]), permuted)


@law
def groups_by_any_name(objective: Objective, batch: Batch) -> None:
    """Other numbers for the groups change nothing."""
    state = used_state(objective, batch)
    renamed = dict(batch) | {"group": -1_000_003 * batch["group"] + 17}
    same(outcome(objective, batch, state), outcome(objective, renamed, state))


@law
def padded_longer(objective: Objective, batch: Batch) -> None:
    """Padding on the left and on the right, whatever it holds, changes nothing."""
    state, width = used_state(objective, batch), batch["mask"].shape[1]
    wide = {n: _pad(x) if x.ndim > 1 and x.shape[1] == width else x for n, x in batch.items()}
    found = outcome(objective, wide, state)
    require(not found.weights[:, :2].any() and not found.weights[:, 2 + width :].any(), "0 in padding", "more")
    same(outcome(objective, batch, state), at_rows(found, lambda x: x[:, 2 : 2 + width]))


def _pad(x: Tensor) -> Tensor:
    fill = torch.nan if x.is_floating_point() else 0
    left, right = (x.new_full((len(x), n, *x.shape[2:]), fill) for n in (2, 3))
    return torch.cat([left, x, right], 1)


@law
def split_into_micro_batches(objective: Objective, batch: Batch) -> None:
    """Any split of the rows over ranks and micro-batches adds up to the same loss and gradient."""
    whole = outcome(objective, batch, used_state(objective, batch))
    now, size = whole.now, len(batch["mask"])
    for name, x in whole.prepared.items():
        require(len(x) == size, f"prepared column {name} with {size} rows", len(x))
    totals, g = now.count(whole.prepared), generator(batch)
    slot = torch.randint(6, (size,), generator=g)  # two ranks of three micro-batches, some of them empty
    loss, weights, entropy_weights = torch.zeros_like(whole.loss), *(torch.zeros_like(whole.weights) for _ in range(2))
    for i in range(6):
        rows = (slot == i).nonzero().flatten()
        part = differentiate(now, {n: x[rows] for n, x in whole.prepared.items()}, totals)
        loss += part[0]
        weights[rows], entropy_weights[rows] = part[1], part[2]
    same(whole, replace(whole, loss=loss, weights=weights, entropy_weights=entropy_weights))
    ranks = [now.count({n: x[(slot // 3) == r] for n, x in whole.prepared.items()}) for r in range(2)]
    together = ranks[0] + ranks[1]
    require((together.tokens, together.rows) == (totals.tokens, totals.rows), totals, together)


@law
def masked_positions_never_matter(objective: Objective, batch: Batch) -> None:
    """NaN, infinities and huge numbers at masked positions change nothing, to the last bit."""
    state, g = used_state(objective, batch), generator(batch)
    poison = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -1e30], dtype=torch.float64)
    dirty, clean = dict(batch), dict(batch)
    for name in list(token_columns(batch)):
        bad = poison[torch.randint(len(poison), batch["mask"].shape, generator=g)]
        dirty[name] = torch.where(batch["mask"], batch[name], bad)
        clean[name] = torch.where(batch["mask"], batch[name], 0.0)
    a, b = outcome(objective, clean, state), outcome(objective, dirty, state)
    require_bits(a, b)
    require(not a.weights[~batch["mask"]].any(), "weight 0 at masked positions", a.weights.tolist())


@law
def by_row_as_by_token(objective: Objective, batch: Batch) -> None:
    """An advantage given once a row, where all tokens of the row share it, changes nothing: what `elementwise` of a
    surrogate and `of_rows` of a ratio promise.
    """
    o = outcome(objective, batch, used_state(objective, batch))
    spread = {name: x for name, x in o.prepared.items() if name != ROW_ADVANTAGE}
    loss, weights, entropy_weights = differentiate(o.now, spread, o.now.count(spread))
    same(o, replace(o, loss=loss, weights=weights, entropy_weights=entropy_weights))
