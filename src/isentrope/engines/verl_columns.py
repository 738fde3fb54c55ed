"""Between verl's padded batches and the columns of an objective: names, groups, pad rows, sessions of several rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isentrope import masked
from isentrope.columns import invoke
from isentrope.errors import IsentropeError

# our column -> verl's field; both [N,T], and verl's own path brings the field to the workers
CARRIED = {
    "old_logp": "old_log_probs",
    "old_entropy": "entropy",
    "rollout_logp": "rollout_log_probs",
    "ref_logp": "ref_log_prob",
    "value": "values",
    "rollout_is_weights": "rollout_is_weights",
}


def is_pad(uid: Any, mask: Tensor) -> bool:
    """Whether a row is one of those that verl adds to fill a batch: uid "pad...", and no token under the mask [T]."""
    return str(uid).startswith("pad") and not bool(mask.any())


def group_numbers(uids: Sequence[Any]) -> Tensor:
    """[n] int: equal for equal uids, numbered by first appearance."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(str(uid), len(numbers)) for uid in uids], dtype=torch.long)


@dataclass(frozen=True)
class Rollout:
    """A rollout batch of verl's: columns [n,...] of its real rows, and where these stand among the `num_rows` it has.

    final: [n], True at the last row of each session; session: [n] int. An agent loop may leave several rows a session.
    unscored: [num_rows], True at rows that no verifier could judge; they are not among the real ones.
    """

    columns: dict[str, Tensor]
    places: Tensor
    num_rows: int
    session: Tensor
    final: Tensor
    unscored: Tensor

    @property
    def has_long_sessions(self) -> bool:
        """Whether any session has more than one row."""
        return not bool(self.final.all())

    def whole(self, column: Tensor) -> Tensor:
        """A column of real rows as one of all rows: 0 or False in pad rows."""
        full = column.new_zeros((self.num_rows, *column.shape[1:]))
        full[self.places] = column
        return full


def rollout(
    fields: Mapping[str, Tensor],
    uids: Sequence[Any],
    keys: Sequence[str],
    tasks: Sequence[int] | None,
    response_lengths: Tensor,
    length_limit: float,
    unscored: Sequence[bool] | None = None,
) -> Rollout:
    """The columns of a rollout batch.

    fields: verl's, padded to [N,T]: response_mask, token_level_rewards, and whichever of `CARRIED` there are.
    uids: a prompt's. keys: verl's keys "<uid>_<session>_<index>". tasks: a number for each row. response_lengths: [N],
    tool output included; length_limit: the most tokens of a response. unscored: a bool for each row.
    """
    mask = fields["response_mask"].bool()
    left_out = torch.tensor(unscored if unscored is not None else [False] * len(mask), dtype=torch.bool)
    real = [i for i in range(len(mask)) if not (left_out[i] or is_pad(uids[i], mask[i]))]
    places = torch.tensor(real, dtype=torch.long)
    chosen = places.tolist()
    columns = {ours: fields[name][places].float() for ours, name in CARRIED.items() if name in fields}
    columns["mask"] = mask[places]
    columns["reward"] = fields["token_level_rewards"][places].float().sum(-1)
    columns["group"] = group_numbers([uids[i] for i in chosen])
    columns["length_limit"] = torch.full((len(places),), float(length_limit))
    columns["length_limit_hit"] = response_lengths[places] >= length_limit
    if tasks is not None:
        columns["task"] = torch.tensor([tasks[i] for i in chosen], dtype=torch.long)
    session, final = _sessions([keys[i] for i in chosen])
    return Rollout(columns, places, len(mask), session, final, left_out)


def _sessions(keys: Sequence[str]) -> tuple[Tensor, Tensor]:
    parts = [key.rsplit("_", 1) for key in keys]
    session = group_numbers([name for name, _ in parts])
    last: dict[str, tuple[int, int]] = {}
    for row, (name, index) in enumerate(parts):
        last[name] = max(last.get(name, (-1, -1)), (int(index), row))
    final = torch.zeros(len(keys), dtype=torch.bool)
    final[[row for _, row in last.values()]] = True
    return session, final


@dataclass(frozen=True)
class PerSession:
    """Around an advantage rule: it sees the last row of every session alone, and the session's other rows take its
    value.

    Rows of one session share the session's reward; counted as samples of their own they would weigh a prompt's mean
    towards sessions of many turns. session: [B] int; final: [B] bool. Returns [B].
    Raises IsentropeError for a rule that gives one advantage a token, which other rows cannot take.
    """

    advantage: Any
    wraps = ("advantage",)

    def __call__(self, *, session: Tensor, final: Tensor, **columns: Tensor) -> Tensor:
        found: Tensor = invoke(self.advantage, {name: x[final] for name, x in columns.items()})
        if found.ndim > 1:
            raise IsentropeError(
                f"{type(self.advantage).__name__} gives an advantage a token, and the agent loop left several rows a "
                "session: use an advantage rule that gives one a row"
            )
        g = masked.groups(session)
        of_session = found.new_zeros(g.count)
        of_session[g.index[final]] = found
        return of_session[g.index]
