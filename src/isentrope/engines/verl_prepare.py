"""The driver's part of a step: `prepare` on a whole rollout batch of verl's, and what the workers must be sent of it.

Nothing here needs Ray. `prepare` maps a rollout batch to `Prepared`: the fields that go beside verl's own
(`advantages`, `returns`; the rest only where an objective needs it), and the message that travels with the batch: the
controllers' state and the totals of one update.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope import masked, spec
from isentrope.advantage import GeneralizedAdvantage
from isentrope.aggregate import Totals
from isentrope.columns import clean
from isentrope.control import State
from isentrope.engines import metrics
from isentrope.engines.verl_columns import CARRIED, PerSession, Rollout
from isentrope.engines.verl_state import Progress
from isentrope.objective import ROW_ADVANTAGE, Objective

PREFIX = "isentrope/"  # before the name of a column among verl's fields
MESSAGE = "isentrope"  # the key of the message among verl's batch information
_BOOLEANS = ("selected", "counted", "excluded")


@dataclass(frozen=True)
class Prepared:
    """fields: [N,T], [N] and [N,k], of all rows of verl's batch. totals: of the rollout batch. rows: prepared ones."""

    fields: dict[str, Tensor]
    totals: Totals
    progress: Progress
    rows: dict[str, Tensor]

    def is_token_wise(self, name: str) -> bool:
        """Whether a field has a value a token."""
        return self.fields[name].shape == self.fields["advantages"].shape


def prepare(objective: Objective, batch: Rollout, progress: Progress) -> Prepared:
    """Controllers observe, then advantages, shaping, selection and statistics, over the real rows alone."""
    rows, state = _prepared(objective, batch, progress.state)
    now = objective.at(state)
    fields = {"advantages": rows["advantage"], "returns": _returns(now, rows)}
    fields |= {PREFIX + name: rows[name] for name in _sent(objective, rows)}
    fields |= {PREFIX + name: rows[name] for name in _BOOLEANS if _differs(name, rows)}
    if len(progress.tasks) > 1 and "task" in rows:
        fields[f"{PREFIX}task"] = rows["task"]
    whole = {name: batch.whole(column) for name, column in fields.items()}
    if batch.unscored.any():  # to the workers their tokens are as if they were masked
        excluded = whole.get(f"{PREFIX}excluded", torch.zeros_like(whole["advantages"], dtype=torch.bool))
        whole[f"{PREFIX}excluded"] = excluded | batch.unscored[:, None]
    return Prepared(whole, now.count(rows), replace(progress, state=state), rows)


def _prepared(objective: Objective, batch: Rollout, state: State) -> tuple[dict[str, Tensor], State]:
    if not len(batch.columns["mask"]):
        return _nothing(batch), state
    if not batch.has_long_sessions:
        return objective.prepare(batch.columns, state)
    needs = objective.columns()
    state = objective.observe(clean(batch.columns, needs.prepare | needs.loss | needs.optional), state)
    now = objective.at(state)
    now = replace(now, advantage=PerSession(now.advantage))
    rows, _ = now.prepare(batch.columns | {"session": batch.session, "final": batch.final}, {})
    return rows, state


def _nothing(batch: Rollout) -> dict[str, Tensor]:
    mask = batch.columns["mask"]
    return batch.columns | dict.fromkeys(_BOOLEANS, mask) | {"advantage": mask.float()}


def _returns(now: Objective, rows: Mapping[str, Tensor]) -> Tensor:
    """The critic's targets [n,T]: unwhitened advantage plus value; the advantage where there is no critic."""
    rule = critic_rule(now)
    if rule is None:
        return rows["advantage"]
    plain = replace(rule, whiten=False)
    advantage = plain(reward=rows["reward"], value=rows["value"], mask=rows["mask"])
    return masked.fill(advantage + rows["value"], rows["mask"])


def critic_rule(objective: Objective) -> GeneralizedAdvantage | None:
    """The rule whose critic verl trains; None for an objective without one."""
    return objective.advantage if isinstance(objective.advantage, GeneralizedAdvantage) else None


def _sent(objective: Objective, rows: Mapping[str, Tensor]) -> list[str]:
    """The columns that rules of the loss read and verl does not bring to the workers: theirs, and values of rows."""
    own = [name for name in rows if "/" in name and name != ROW_ADVANTAGE]  # `advantage` says the same
    read = objective.columns().loss | objective.columns().optional
    known = {*CARRIED, *_BOOLEANS, "advantage", "mask"}
    return own + sorted(name for name in read & rows.keys() if name not in known)


def _differs(name: str, rows: Mapping[str, Tensor]) -> bool:
    """Whether a boolean column says more than the mask does."""
    if name == "excluded":
        return bool(rows[name].any())
    return not torch.equal(rows[name], rows["mask"])


# -- what the workers are told


def fingerprint(objective: Objective) -> str:
    """The objective's specification, the files of its rules and this library's version, as 16 hex digits.

    Driver and workers compare it: another machine may hold another version, or another content of a rule's file.
    """
    digest = sha256(f"{version('isentrope')}\n{objective}".encode())
    for file in sorted(_files(spec.to_dict(objective))):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:16]


def _files(node: Any) -> set[str]:
    """The files that a specification names rules in."""
    if isinstance(node, Mapping):
        return set().union(*(_files(held) for held in node.values()), _files(node.get("rule", "")))
    if isinstance(node, list):
        return set().union(*map(_files, node)) if node else set()
    return {node.rpartition(":")[0]} if isinstance(node, str) and node.rpartition(":")[0].endswith(".py") else set()


def message(prepared: Prepared, num_updates: int) -> str:
    """What travels with the batch to every worker, as JSON. num_updates: how many updates verl makes of the batch."""
    share = prepared.totals.scaled(1 / num_updates)
    return json.dumps(
        {
            "state": prepared.progress.state,
            "totals": [share.tokens, share.rows, share.groups],
            "tasks": prepared.progress.tasks,
            "rows": {n: x.ndim for n, x in prepared.fields.items() if not prepared.is_token_wise(n)},
        }
    )


class Means:
    """A pool for one part: sums of numerators and denominators by name."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float]] = {}

    def mean(self, name: str, numerator: Tensor, denominator: Tensor | float) -> None:
        """Add to the two sums of `name`."""
        above, below = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = above + float(numerator), below + float(denominator)

    def values(self) -> dict[str, float]:
        """The means; a name whose denominators sum to 0 is left out."""
        return {name: above / below for name, (above, below) in self.sums.items() if below}


def rollout_metrics(prepared: Prepared) -> dict[str, float]:
    """What is logged of a rollout batch: `engines.metrics`, and `controller/<slot>.<field>.<number>`."""
    pool = Means()
    if len(prepared.rows["mask"]):
        metrics.log_rollout(pool, prepared.rows, prepared.progress.tasks)
    return pool.values() | {f"controller/{name}": x for name, x in prepared.progress.state.items()}
