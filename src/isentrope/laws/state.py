"""Laws on state and specification: what goes out comes back, and nothing else moves."""

import json

import torch

from isentrope import spec
from isentrope.columns import Batch
from isentrope.laws._trial import (
    differentiate,
    law,
    outcome,
    prepare,
    require,
    require_bits,
    used_state,
)
from isentrope.objective import Objective


@law
def state_survives_json(objective: Objective, batch: Batch) -> None:
    """State goes through JSON bit for bit, and what follows is the same to the last bit."""
    for state in (objective.init(), used_state(objective, batch)):
        back = json.loads(json.dumps(state, allow_nan=False))
        require(back == state, state, back)
        a, b = outcome(objective, batch, state), outcome(objective, batch, back)
        require_bits(a, b)


@law
def the_returned_state_is_in_force(objective: Objective, batch: Batch) -> None:
    """Controllers observe a batch before it is shaped: what `prepare` did is what the state it returns says."""
    prepared, after = prepare(objective, batch, used_state(objective, batch))
    again, _ = prepare(objective.at(after), batch, {})
    for name, x in prepared.items():
        alike = name in again and torch.equal(x.nan_to_num(7.0), again[name].nan_to_num(7.0))
        require(alike, f"column {name} as by {after}", "another")


@law
def the_same_twice(objective: Objective, batch: Batch) -> None:
    """The same input gives the same bits, whatever torch's global generator holds, and leaves that alone."""
    state, before = used_state(objective, batch), torch.get_rng_state()
    try:
        first = outcome(objective, batch, state)
        require(torch.equal(torch.get_rng_state(), before), "an untouched global generator", "draws from it")
        torch.manual_seed(17)
        second = outcome(objective, batch, state)
    finally:
        torch.set_rng_state(before)
    require_bits(first, second)


@law
def inputs_stay_as_they_are(objective: Objective, batch: Batch) -> None:
    """Neither `prepare` nor `loss` writes into the columns or the state it is given."""
    given, state = {name: x.clone() for name, x in batch.items()}, used_state(objective, batch)
    kept = dict(state)
    prepared, after = prepare(objective, given, state)
    require(state == kept, f"state {kept}", state)
    _require_untouched(batch, given)
    rows, now = {name: x.clone() for name, x in prepared.items()}, objective.at(after)
    differentiate(now, rows, now.count(rows))
    _require_untouched(prepared, rows)


def _require_untouched(before: Batch, after: Batch) -> None:
    require(before.keys() == after.keys(), sorted(before), sorted(after))
    for name, x in before.items():
        same = x.dtype == after[name].dtype and torch.equal(x.nan_to_num(7.0), after[name].nan_to_num(7.0))
        require(same, f"column {name} as it was", "it changed")


@law
def specification_reads_back(objective: Objective, batch: Batch) -> None:  # noqa: ARG001
    """The printed specification reads back as an equal objective."""
    back = spec.load(str(objective))
    require(back == objective, objective, back)
