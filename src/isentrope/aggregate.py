"""Aggregation: the weight of each token's J in the batch's J. A rule returns weights in float64 that broadcast to
[B,T].

`totals` counts the whole batch, over all micro-batches and ranks, so that sums over slices are the batch's. Rows
without counted tokens are no rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope import masked
from isentrope.control import require

__all__ = ["ConstantLength", "PromptMean", "SequenceMean", "TokenMean", "Totals"]


@dataclass(frozen=True)
class Totals:
    """What the whole batch holds: counted tokens, rows with at least one, groups with at least one."""

    tokens: float
    rows: float
    groups: float

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(self.tokens + other.tokens, self.rows + other.rows, self.groups + other.groups)

    def scaled(self, factor: float) -> "Totals":
        """The totals of a share of the batch: for one of several optimizer steps on a rollout batch."""
        return Totals(self.tokens * factor, self.rows * factor, self.groups * factor)


@dataclass(frozen=True)
class TokenMean:
    """1 / (tokens of the batch): every token weighs the same.  Source: DAPO, arXiv:2503.14476, eq. 8."""

    def __call__(self, totals: Totals, *, counted: Tensor) -> Tensor:
        return counted.new_full((1, 1), masked.reciprocal(totals.tokens), dtype=torch.float64)


@dataclass(frozen=True)
class SequenceMean:
    """1 / (rows of the batch * tokens of the row): every row weighs the same.  Source: GRPO, arXiv:2402.03300, eq.
    3.
    """

    def __call__(self, totals: Totals, *, counted: Tensor) -> Tensor:
        return masked.reciprocal(totals.rows) / _column(masked.row_count(counted)).clamp(min=1)


@dataclass(frozen=True)
class ConstantLength:
    """1 / (rows of the batch * length): a token's weight does not depend on its row's length.

    length: in tokens; None takes the column `length_limit` (the generation limit, which engines supply).
    Source: Dr. GRPO, arXiv:2503.20783.
    """

    length: float | None = None

    def __post_init__(self) -> None:
        require(self, "length", self.length is None or self.length > 0, "None or a positive number of tokens")

    def __call__(self, totals: Totals, *, counted: Tensor, length_limit: Tensor | None = None) -> Tensor:
        if self.length is not None:
            length_limit = counted.new_full((1,), self.length, dtype=torch.float64)
        if length_limit is None:
            raise ValueError(
                "ConstantLength needs the most tokens a row may have: set length=... or supply `length_limit`"
            )
        return masked.reciprocal(totals.rows) / _column(length_limit)


@dataclass(frozen=True)
class PromptMean:
    """1 / (groups of the batch * tokens of the group): every prompt weighs the same."""

    def prepare(self, *, group: Tensor, counted: Tensor) -> dict[str, Tensor]:
        """The counted tokens of each row's group, over the whole rollout batch."""
        g = masked.groups(group)
        return {"group_tokens": masked.group_sum(masked.row_count(counted), g)[g.index]}

    def __call__(self, totals: Totals, *, counted: Tensor, group_tokens: Tensor) -> Tensor:
        return masked.reciprocal(totals.groups) / _column(group_tokens).clamp(min=1)


def _column(rows: Tensor) -> Tensor:
    return rows.double()[:, None]
