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

from isentrope import spec
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
    _now: tuple[str, Objective, Totals, list[str]] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, objective: Objective) -> "ObjectiveLoss":
        """The loss of an objective, with this process's fingerprint."""
        return cls(str(objective), fingerprint(objective), objective)

    def __getstate__(self) -> dict[str, str]:
        return {"text": self.text, "expected": self.expected}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.text, self.expected, self._now = state["text"], state["expected"], None
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
        now, totals, tasks = self._unpack(tu.get_non_tensor_data(data, MESSAGE, None))
        rows = self._rows(now, model_output, data)
        loss = now.loss(rows, totals) * int(tu.get_non_tensor_data(data, "dp_size", 1))
        return loss, self._metrics(now, rows, loss, tasks)

    def _unpack(self, text: Any) -> tuple[Objective, Totals, list[str]]:
        if not isinstance(text, str):
            raise PluginError(
                "the batch carries no state and totals of ours: train with trainer.v1.trainer_mode=isentrope"
            )
        if self._now is None or self._now[0] != text:
            assert self._objective is not None, "read when it was made"
            sent = json.loads(text)
            self._now = (text, self._objective.at(sent["state"]), Totals(*sent["totals"]), sent["tasks"])
        return self._now[1:]

    def _rows(self, now: Objective, model_output: dict[str, Any], data: TensorDict) -> dict[str, Tensor]:
        logp = no_padding_2_padding(model_output["log_probs"], data).float()
        width, keys = logp.shape[1], {str(key) for key in data.keys()}  # noqa: SIM118  (a TensorDict iterates over rows)
        mask = _padded(data["response_mask"], width).bool()
        rows = {"logp": logp, "advantage": _padded(data["advantages"], width).float()}
        if model_output.get("entropy") is not None:
            entropy = no_padding_2_padding(model_output["entropy"], data).float()
            rows["entropy"] = entropy if "entropy" in now.columns().gradient else entropy.detach()
        rows |= {ours: _padded(data[name], width).float() for ours, name in CARRIED.items() if name in keys}
        ours = [name for name in keys if name.startswith(PREFIX)]
        rows |= {name.removeprefix(PREFIX): _own(data[name], width, len(mask)) for name in ours}
        excluded = rows.get("excluded", torch.zeros_like(mask))
        mask = mask & ~excluded
        return {"selected": mask, "counted": mask} | rows | {"mask": mask, "excluded": excluded}

    @torch.no_grad()
    def _metrics(self, now: Objective, rows: dict[str, Tensor], loss: Tensor, tasks: list[str]) -> dict[str, Metric]:
        pool = Means()
        detached = {name: x.detach() for name, x in rows.items()}
        sums = metrics.log_update(pool, now, detached, tasks)
        counted, clean = rows["counted"].sum(), now.cleaned(detached)
        pool.mean("actor/ppo_kl", ((clean["old_logp"] - clean["logp"]) * clean["mask"]).sum(), clean["mask"].sum())
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


def _own(column: Tensor, width: int, num_rows: int) -> Tensor:
    """A column of ours: a value a token, or a value a row, which may come back as [B,1]."""
    if column.is_nested or (column.ndim == 2 and column.shape[1] == width):
        return _padded(column, width)
    return column.reshape(num_rows)


def pooled(found: dict[str, Any], prefix: str) -> dict[str, float]:
    """Take our sums and counts out of verl's metrics; returns their quotients by the names of `engines.metrics`."""
    start = f"{prefix}{PREFIX}"
    names = [key[len(start) : -len(SUM)] for key in found if key.startswith(start) and key.endswith(SUM)]
    sums = {name: (found.pop(f"{start}{name}{SUM}"), found.pop(f"{start}{name}{COUNT}")) for name in names}
    return {name: float(above) / float(below) for name, (above, below) in sums.items() if below}
