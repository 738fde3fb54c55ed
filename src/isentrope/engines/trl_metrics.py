"""Numbers between two log lines: token means that are pooled over micro-batches and ranks, never means of means.

TRL's keys stay (`reward`, `completions/*`, `entropy`, `clip_ratio/*`, `kl`, ...). All that come from the loss, TRL's
and ours, are means over tokens (or rows) since the last log line, over the tokens that the policy wrote;
log-probabilities and entropies are those at the temperature at which the rollout batch is scored. Ours are those of
`metrics`, and:

| key | meaning |
| --- | --- |
| `controller/<slot>.<field>.<number>` | every number of the controllers' state, as it stands at the log line |
| `rollout/temperature` | of the rollout batch in use (with share < 1 of its tempered rows), if the objective sets it |
| `rollout/tempered_reward`, `rollout/untempered_reward` | mean reward of the rows sampled at it and of the others |
| `dynamic_sampling/*` | see `trl_resampling`; where the objective asks for rounds |
| `diagnostics/*`, `clip/numerical_*` | see `trl_diagnostics`; on diagnostic steps |
| `fp16/loss_scale`, `fp16/skipped_steps` | see `trl_fp16`; with `fp16=True` |
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isentrope import masked
from isentrope.engines import metrics
from isentrope.engines.metrics import log_rollout as log_rollout
from isentrope.objective import Objective

_TRL_NAMES = {"clip_low": "clip_ratio/low_mean", "clip_high": "clip_ratio/high_mean"}
_REDUCTIONS = {"min": torch.amin, "max": torch.amax}


class MetricPool:
    """Collects numerators and denominators, and extremes, until the next log line.

    `mean(name, numerator, denominator)` with scalars of this micro-batch; the logged value is sum(numerators) /
    sum(denominators) over all micro-batches since the last line and all ranks. A name whose denominators sum to 0 is
    left out. `extreme(name, value, "min" | "max")` keeps the smallest or largest value over the same set.
    Nothing waits for the device before `flush`.
    """

    def __init__(self) -> None:
        self._means: dict[str, Tensor] = {}
        self._extremes: dict[tuple[str, str], Tensor] = {}

    def mean(self, name: str, numerator: Tensor, denominator: Tensor | float) -> None:
        """Add to the two sums of `name`."""
        below = torch.as_tensor(denominator, dtype=numerator.dtype, device=numerator.device)
        pair = _wide(torch.stack([numerator.detach(), below.detach()]))
        self._means[name] = self._means[name] + pair if name in self._means else pair

    def extreme(self, name: str, values: Tensor, kind: str) -> None:
        """Take the smallest ("min") or largest ("max") of values [n] into account; an empty tensor changes nothing."""
        if values.numel() == 0:
            return
        key, found = (name, kind), _wide(values.detach())
        both = torch.cat([found, self._extremes[key][None]]) if key in self._extremes else found
        self._extremes[key] = _REDUCTIONS[kind](both)

    def flush(self, accelerator: Any) -> dict[str, float]:
        """The pooled values over all ranks (the same on each; every rank must call it), and an empty pool."""
        values = self._flush_means(accelerator) | self._flush_extremes(accelerator)
        self._means, self._extremes = {}, {}
        return values

    def _flush_means(self, accelerator: Any) -> dict[str, float]:
        names = _union(list(self._means), accelerator)
        if not names:
            return {}
        nothing = torch.zeros(2, device=accelerator.device)
        pairs = torch.stack([self._means.get(name, _wide(nothing)) for name in names])
        sums = accelerator.reduce(pairs, reduction="sum").tolist()
        return {name: above / below for name, (above, below) in zip(names, sums, strict=True) if below != 0.0}

    def _flush_extremes(self, accelerator: Any) -> dict[str, float]:
        values = {}
        for name, kind in _union(list(self._extremes), accelerator):
            missing = torch.tensor(torch.inf if kind == "min" else -torch.inf, device=accelerator.device)
            gathered = accelerator.gather(self._extremes.get((name, kind), _wide(missing))[None])
            values[name] = float(_REDUCTIONS[kind](gathered))
        return values

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this rank's pool."""
        extremes = [[name, kind, value.cpu()] for (name, kind), value in self._extremes.items()]
        return {"means": {name: pair.cpu() for name, pair in self._means.items()}, "extremes": extremes}

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """The inverse of `state`."""
        self._means = {name: pair.to(device) for name, pair in state["means"].items()}
        self._extremes = {(name, kind): value.to(device) for name, kind, value in state["extremes"]}


def log_update(pool: MetricPool, now: Objective, rows: Mapping[str, Tensor], tasks: list[str]) -> None:
    """What is known of a micro-batch: prepared rows with the current policy's columns, under our keys and TRL's."""
    sums, mask, counted = metrics.log_update(pool, now, rows, tasks), rows["mask"], rows["counted"].sum()
    for key in _TRL_NAMES.keys() & sums.keys():
        pool.mean(_TRL_NAMES[key], sums[key], counted)
    if "clip_low" in sums:
        pool.mean("clip_ratio/region_mean", sums["clip_low"] + sums["clip_high"], counted)
        _log_clipped_rows(pool, now, rows)
    pool.mean("entropy", masked.fill(rows["entropy"], mask).sum(), mask.sum())  # TRL's name


def _log_clipped_rows(pool: MetricPool, now: Objective, rows: Mapping[str, Tensor]) -> None:
    """TRL's extremes: the smallest share of a row's tokens beyond the lower, the largest beyond the upper bound."""
    sides, counted = now.clipped(rows), rows["counted"]
    assert sides is not None, "the surrogate clips"
    low, high = (masked.row_mean(side.float(), counted)[counted.any(-1)] for side in sides)
    pool.extreme("clip_ratio/low_min", low, "min")
    pool.extreme("clip_ratio/high_max", high, "max")


def _wide(x: Tensor) -> Tensor:
    """float64 where the device has it: a long window adds up millions of tokens."""
    return x.float() if x.device.type == "mps" else x.double()


def _union(names: list[Any], accelerator: Any) -> list[Any]:
    """The names that any rank holds, in the same order on all."""
    if accelerator.num_processes == 1:
        return names
    from accelerate.utils import gather_object

    return sorted(set(gather_object(names)))
