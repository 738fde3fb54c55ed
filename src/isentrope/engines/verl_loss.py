"""The workers' part of a step: an objective as the loss function of verl's training workers, whatever their engine.

verl calls it once a micro-batch, `fn(model_output=..., data=..., dp_group=...)`, under FSDP, FSDP2 and Megatron
alike, adds up the micro-batches of a mini-batch and averages gradients over data-parallel ranks. So the loss is the
objective's share, divided by the totals that the driver counted, times the number of ranks: any split gives the same
gradient.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from isentrope import masked, spec
from isentrope.aggregate import Totals
from isentrope.engines import metrics
from isentrope.engines.verl_columns import CARRIED
from isentrope.engines.verl_keys import ConfigError
from isentrope.engines.verl_prepare import MESSAGE, PREFIX, Means, fingerprint
from isentrope.objective import Objective

SUM, COUNT = "/sum", "/count"


class PluginError(ConfigError):
    """The plug-in is not there, or not the same, in a process of the job that needs it."""


@dataclass
class ObjectiveLoss:
    """An objective as verl's loss function. text: its specification. expected: the driver's `fingerprint` of it.

    It is sent to the workers as text and read there: PluginError where the worker's library or a rule's file is
    another.
    """

    text: str
    expected: str
    _objective: Objective | None = field(default=None, repr=False)
    _told: tuple[str, "Told"] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, objective: Objective) -> "ObjectiveLoss":
        """The loss of an objective, with this process's fingerprint."""
        return cls(str(objective), fingerprint(objective), objective)

    def __getstate__(self) -> dict[str, str]:
        return {"text": self.text, "expected": self.expected}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.text, self.expected, self._told = state["text"], state["expected"], None
        self._objective = spec.load(self.text)
        found = fingerprint(self._objective)
        if found != self.expected:
            raise PluginError(
                f"the worker's objective has the fingerprint {found}, the driver's {self.expected}: install the same "
                "isentrope on every node, and put the same rule files at the same paths"
            )

    def __call__(
        self, model_output: dict[str, Any], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Metric]]:
        """The loss of one micro-batch, a scalar with a graph, and its metrics as sums and counts.

        model_output: `log_probs` and, where asked for, `entropy`, of whole sequences. data: verl's fields, nested or
        padded, with `dp_size` and the driver's message.
        """
        told = self._unpack(tu.get_non_tensor_data(data, MESSAGE, None))
        rows = _rows(told, model_output, data)
        loss = told.now.loss(rows, told.totals) * int(tu.get_non_tensor_data(data, "dp_size", 1))
        return loss, _metrics(told, rows, loss)

    def _unpack(self, text: Any) -> "Told":
        if not isinstance(text, str):
            raise PluginError(
                "the batch carries no state and totals of ours: train with trainer.v1.trainer_mode=isentrope"
            )
        if self._told is None or self._told[0] != text:
            assert self._objective is not None, "read when it was made"
            sent = json.loads(text)
            now, totals = self._objective.at(sent["state"]), Totals(*sent["totals"])
            self._told = (text, Told(now, totals, sent["tasks"], sent["rows"]))
        return self._told[1]


@dataclass(frozen=True)
class Told:
    """The driver's message: the objective with numbers for controllers, the totals of one update, the names of tasks,
    and the number of dimensions of fields that have no value a token.
    """

    now: Objective
    totals: Totals
    tasks: list[str]
    row_fields: dict[str, int]


def _rows(told: Told, model_output: dict[str, Any], data: TensorDict) -> dict[str, Tensor]:
    """The prepared rows of a micro-batch with the current policy's columns."""
    logp = no_padding_2_padding(model_output["log_probs"], data).float()
    width, keys = logp.shape[1], {str(key) for key in data.keys()}  # noqa: SIM118  (a TensorDict iterates over rows)
    rows = {"logp": logp, "advantage": _padded(data["advantages"], width).float()}
    if model_output.get("entropy") is not None:
        entropy = no_padding_2_padding(model_output["entropy"], data).float()
        rows["entropy"] = entropy if "entropy" in told.now.columns().gradient else entropy.detach()
    rows |= {ours: _padded(data[name], width).float() for ours, name in CARRIED.items() if name in keys}
    for name in sorted(key for key in keys if key.startswith(PREFIX)):
        whole = name not in told.row_fields
        rows[name.removeprefix(PREFIX)] = (
            _padded(data[name], width) if whole else _of_rows(data[name], told.row_fields[name])
        )
    mask = _padded(data["response_mask"], width).bool()
    excluded = rows.get("excluded", torch.zeros_like(mask))
    mask = mask & ~excluded
    return {"selected": mask, "counted": mask} | rows | {"mask": mask, "excluded": excluded}


@torch.no_grad()
def _metrics(told: Told, rows: dict[str, Tensor], loss: Tensor) -> dict[str, Metric]:
    """Sums and counts of a micro-batch, and verl's `pg_loss`."""
    pool = Means()
    detached = {name: x.detach() for name, x in rows.items()}
    sums = metrics.log_update(pool, told.now, detached, told.tasks)
    counted, clean = rows["counted"].sum(), told.now.cleaned(detached)
    gap = masked.fill(clean["old_logp"] - clean["logp"], clean["mask"])
    pool.mean("actor/ppo_kl", gap.sum(), clean["mask"].sum())
    if "clip_low" in sums:
        pool.mean("actor/pg_clipfrac", sums["clip_low"] + sums["clip_high"], counted)
    found = {"pg_loss": Metric(AggregationType.SUM, loss.detach())}
    for name, (above, below) in pool.sums.items():
        found[f"{PREFIX}{name}{SUM}"] = Metric(AggregationType.SUM, above)
        found[f"{PREFIX}{name}{COUNT}"] = Metric(AggregationType.SUM, below)
    return found


def _padded(column: Tensor, width: int) -> Tensor:
    """A field of the response, [B,T] with T = width and 0 behind each row's end."""
    if not column.is_nested:
        return column
    filled = column.to_padded_tensor(0) if column.dtype != torch.bool else column.int().to_padded_tensor(0).bool()
    missing = width - filled.shape[1]
    return torch.nn.functional.pad(filled, (0, missing)) if missing > 0 else filled[:, :width]


def _of_rows(column: Tensor, ndim: int) -> Tensor:
    """A column [B] or [B,k], whichever it was before verl carried it here."""
    dense = column.to_padded_tensor(0) if column.is_nested else column
    return dense.reshape(len(dense), *([-1] if ndim > 1 else []))


def pooled(found: dict[str, Any], prefix: str) -> dict[str, float]:
    """Take our sums and counts out of verl's metrics; returns their quotients by the names of `engines.metrics`."""
    start = f"{prefix}{PREFIX}"
    names = [key[len(start) : -len(SUM)] for key in found if key.startswith(start) and key.endswith(SUM)]
    sums = {name: (found.pop(f"{start}{name}{SUM}"), found.pop(f"{start}{name}{COUNT}")) for name in names}
    return {name: float(above) / float(below) for name, (above, below) in sums.items() if below}
