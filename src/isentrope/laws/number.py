"""Laws on numbers: extremes, precision, and batches that hold nothing."""

import torch

from isentrope.columns import CURRENT_POLICY, Batch
from isentrope.control import State
from isentrope.laws._trial import (
    EXTREME,
    NUDGE,
    RTOL_SINGLE,
    Differs,
    DoesNotApply,
    Outcome,
    close,
    close_loss,
    differentiate,
    generator,
    law,
    outcome,
    require,
    require_bits,
    require_finite,
    to,
    token_columns,
    used_state,
)
from isentrope.objective import Objective


@law
def extreme_ratios_stay_finite(objective: Objective, batch: Batch) -> None:
    """Log-ratios of -300 and 300 nats, in every pair of policies, give finite loss and weights in float32."""
    state, g = used_state(objective, batch), generator(batch)
    wild = dict(batch)
    for name in ("logp", "old_logp", "rollout_logp", "ref_logp"):
        far = torch.rand(batch["mask"].shape, generator=g) < 0.4
        wild[name] = batch[name].clamp(min=-12) - EXTREME * far
    found = outcome(objective, to(wild, torch.float32), state)
    require_finite(found.loss, found.weights, found.entropy_weights)


@law
def float32_agrees_with_float64(objective: Objective, batch: Batch) -> None:
    """float32 gives what float64 gives, except at tokens so near to a threshold that either side is right."""
    state = used_state(objective, batch)
    wide, narrow = outcome(objective, batch, state), outcome(objective, to(batch, torch.float32), state)
    require(narrow.loss.dtype.itemsize >= 4, "a loss in float32 or wider", narrow.loss.dtype)
    require_finite(narrow.loss, narrow.weights, narrow.entropy_weights)
    try:
        close_loss(wide, narrow.loss, RTOL_SINGLE)
        close("weights", narrow.weights, wide.weights, RTOL_SINGLE)
        close("entropy weights", narrow.entropy_weights, wide.entropy_weights, RTOL_SINGLE)
    except Differs:
        if _is_near_a_threshold(objective, batch, state, wide):
            raise DoesNotApply("a token of this batch stands on a threshold") from None
        raise


def _is_near_a_threshold(objective: Objective, batch: Batch, state: State, exact: Outcome) -> bool:
    """True where nudging the columns by some units in float32's last place moves a weight of the float64 result."""
    g = generator(batch)
    for _ in range(32):
        nudge = {n: 1 + NUDGE * torch.randn(batch["mask"].shape, generator=g).double() for n in token_columns(batch)}
        moved = outcome(objective, dict(batch) | {n: batch[n] * f for n, f in nudge.items()}, state)
        try:
            close("", moved.weights, exact.weights, RTOL_SINGLE / 2)
        except Differs:
            return True
    return False


@law
def half_precision_is_widened(objective: Objective, batch: Batch) -> None:
    """Columns in bfloat16 give what the same values in float32 give: no arithmetic in half precision."""
    state, half = used_state(objective, batch), to(batch, torch.bfloat16)
    narrow, wide = outcome(objective, half, state), outcome(objective, to(half, torch.float32), state)
    require_bits(wide, narrow)
    now = narrow.now
    rows = narrow.prepared | {name: half[name] for name in CURRENT_POLICY}
    loss, weights, _ = differentiate(now, rows, now.count(narrow.prepared))
    require(loss.dtype.itemsize >= 4, "a loss in float32 or wider", loss.dtype)
    require(torch.equal(loss, wide.loss), wide.loss, loss)
    close("weights", weights, wide.weights, 2**-7)  # a gradient has the column's own type


@law
def a_masked_batch_gives_zero(objective: Objective, batch: Batch) -> None:
    """A batch without a token has loss 0 and gradient 0, with a graph."""
    _gives_zero(objective, batch, dict(batch) | {"mask": torch.zeros_like(batch["mask"])})


@law
def an_empty_batch_gives_zero(objective: Objective, batch: Batch) -> None:
    """A batch without a row has loss 0, with a graph, and so has a slice without a row."""
    _gives_zero(objective, batch, {name: x[:0] for name, x in batch.items()})
    whole = outcome(objective, batch, used_state(objective, batch))
    now = whole.now
    loss, *_ = differentiate(now, {n: x[:0] for n, x in whole.prepared.items()}, now.count(whole.prepared))
    require(float(loss) == 0, "loss 0 of no rows", float(loss))


def _gives_zero(objective: Objective, batch: Batch, void: Batch) -> None:
    for state in (objective.init(), used_state(objective, batch)):
        found = outcome(objective, void, state)
        require(float(found.loss) == 0, "loss 0", float(found.loss))
        require(not found.weights.any() and not found.entropy_weights.any(), "gradient 0", "another")


@law
def odd_groups_stay_finite(objective: Objective, batch: Batch) -> None:
    """Groups of one row, one group of all, equal rewards: nothing becomes NaN."""
    state = used_state(objective, batch)
    lone = torch.arange(len(batch["group"]))
    for changed in ({"group": lone}, {"group": lone * 0}, {"reward": torch.full_like(batch["reward"], 0.1)}):
        found = outcome(objective, dict(batch) | changed, state)
        require_finite(found.loss, found.weights, found.prepared["advantage"])
