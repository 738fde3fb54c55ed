"""Where each rule of an objective runs in a job of verl: on the driver, or in the loss of the workers.

With our trainer, `prepare` runs on the driver with all columns, and `loss` in the workers. In verl's own trainers
there are two narrow places instead: the advantage estimator (driver; rewards, groups, masks) and the policy loss
(worker; log-probabilities and the advantage). `driver_part` is what the first one can run; `hook_refusals` names what
neither can.
"""

from typing import Any

import torch
from torch import Tensor

from isentrope.aggregate import ConstantLength, TokenMean
from isentrope.columns import CURRENT_POLICY, GLOSSARY, Reads, name_of, reads
from isentrope.objective import Objective
from isentrope.rollout import Rollout
from isentrope.surrogate import PolicyGradient

ON_DRIVER = frozenset({"reward", "group", "mask"})  # what an advantage estimator of verl's is given
IN_LOSS = frozenset({"logp", "old_logp", "mask", "advantage", "selected", "counted", "excluded"})
USE_TRAINER = "set trainer.v1.trainer_mode=isentrope"


def no_ratio(*, logp: Tensor) -> Tensor:
    """Stands in the slot `ratio` where no loss will be taken."""
    return logp


def driver_part(objective: Objective) -> Objective:
    """What of an objective runs in an advantage estimator: its advantage, and shaping that reads no current policy."""
    early = tuple(rule for rule in objective.shaping if not reads(rule) & CURRENT_POLICY)
    return Objective(
        advantage=objective.advantage, shaping=early, ratio=no_ratio, surrogate=PolicyGradient(), aggregate=TokenMean()
    )


def hook_refusals(objective: Objective, loss_scale_factor: float | None = None) -> list[str]:
    """What an objective asks for that verl's own trainers pass neither to the estimator nor to the loss; a sentence
    each.

    loss_scale_factor: verl's key of that name; where set, it is the length of `ConstantLength`.
    """
    if objective.controllers():
        return [f"controllers at {', '.join(objective.controllers())} keep a state on the driver: {USE_TRAINER}"]
    found = [
        f"{path}: {name_of(rule)} drops rows or tokens, which verl's loss is not told: {USE_TRAINER}"
        for path, rule in objective.rules()
        if path.startswith("select")
    ]
    found += [
        f"{path}: {name_of(rule)} takes statistics of the whole batch for the loss, which verl does not pass on:"
        f' {USE_TRAINER} (or scope="micro_batch" where the rule has it)'
        for path, rule in objective.rules()
        if prepares(rule)
    ]
    found += [_missing(name, "its advantage estimator") for name in sorted(_early(objective) - ON_DRIVER)]
    supplied = IN_LOSS | ({"rollout_is_weights"} if objective.correction is not None else set())
    found += [_missing(name, "its policy loss") for name in sorted(objective.columns().loss - supplied)]
    if needs_length(objective) and loss_scale_factor is None:
        found.append(
            "aggregate: ConstantLength needs a length: set actor.loss_scale_factor, or ConstantLength(length=...)"
        )
    return found + rollout_refusal(objective.rollout)


def needs_length(objective: Objective) -> bool:
    """Whether the aggregation divides by a length that the engine must supply."""
    return isinstance(objective.aggregate, ConstantLength) and objective.aggregate.length is None


def rollout_refusal(rollout: Rollout) -> list[str]:
    """A temperature or rounds that the objective asks for: verl's agent loops sample as its configuration says."""
    if rollout == Rollout():
        return []
    return [
        f"the objective asks for {rollout!r}: verl's agent loops take their sampling from its configuration, once; set "
        "rollout.temperature or algorithm.filter_groups there, and leave the slot `rollout` out"
    ]


def _early(objective: Objective) -> frozenset[str]:
    return driver_part(objective).columns().prepare


def _missing(name: str, place: str) -> str:
    meaning = f" ({GLOSSARY[name].meaning})" if name in GLOSSARY else ""
    return f"column `{name}`{meaning} is missing: verl passes it neither to {place} nor on to ours: {USE_TRAINER}"


def prepares(rule: Any) -> bool:
    """Whether a rule's `prepare` makes columns, tried on two rows of made-up numbers; one that fails there does."""
    if not hasattr(rule, "prepare"):
        return False
    try:
        return bool(rule.prepare(**_example(reads(rule, "prepare"))))
    except Exception:  # a user's rule may do anything with made-up numbers; that it tries is the answer
        return True


def _example(wanted: Reads) -> dict[str, Any]:
    made: dict[str, Any] = {"measured_entropy": 0.5}
    for name, entry in GLOSSARY.items():
        shape = (2,) if entry.shape == "B" else (2, 3)
        made[name] = torch.ones(shape, dtype={"bool": torch.bool, "int": torch.long}.get(entry.kind, torch.float32))
    return {name: made.get(name, torch.ones(2, 3)) for name in wanted.required}
