"""Live diagnostics: who moves the entropy, measured on every n-th optimizer step while it trains.

On a diagnostic step everything of `isentrope.diagnostics.update` is tallied over the micro-batches and ranks, and
logged as `diagnostics/<name>` at the next log line (the latest step's, where several fall on one line). And:

| key | meaning |
| --- | --- |
| `diagnostics/measured_change` | mean of entropy - old_entropy at the step's tokens: what the updates before it on the same rollout batch did, nats |
| `diagnostics/predicted_change` | what was predicted of those updates: the sum over them of learning rate times first-order change |
| `diagnostics/change_correlation` | of the two over the run; from three such steps on |
| `diagnostics/cumulative_entropy` | area under the entropy of the diagnostic steps, nats times steps |
| `diagnostics/heterogeneity` | share of the variance of group entropies that lies between tasks, on the rollout batch |
| `diagnostics/gradient_noise` | gradient noise scale in rows, averaged over about ten diagnostic steps |
| `clip/numerical_low`, `clip/numerical_high` | share of tokens beyond the ratio's bounds in the first update after every rollout, where old_logp is of a pass of its own with the same weights and every ratio should be 1 |

The first update after a rollout has no measured change, so steps that always fall on it give no correlation; nor does
one update per rollout batch, or a number of micro-batches that optimizer steps do not divide. The noise needs two
micro-batches or more per optimizer step, and gradients that each rank holds whole and unscaled.
"""  # noqa: E501  (the table)

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from isentrope import diagnostics, theory
from isentrope.aggregate import Totals
from isentrope.curves import correlation, cumulative_entropy
from isentrope.objective import Objective
from isentrope.ratio import TokenRatio
from isentrope.surrogate import ClipCov, ClippedWeight, GradientPreservingClip, PPOClip
from isentrope.tally import Tally, merge

_DECAY = 0.9  # of the averages behind the noise scale: about ten diagnostic steps
_CLIPS = (PPOClip, GradientPreservingClip, ClippedWeight, ClipCov)  # low and high are offsets of the ratio from 1
_SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")


@dataclass(frozen=True)
class Place:
    """Where a micro-batch stands: step, the optimizer step it belongs to (1 = the first of the run); update, 1 = the
    first of `updates` on its rollout batch (0, 0 where optimizer steps straddle rollout batches).
    """

    step: int
    update: int
    updates: int

    @classmethod
    def of(cls, trainer: Any) -> "Place":
        """Of the micro-batch that a trainer is about to use."""
        reuse = trainer.args.steps_per_generation * trainer.num_iterations
        accumulation = trainer.args.gradient_accumulation_steps
        step = trainer.state.global_step + 1
        if accumulation % reuse == 0:
            return cls(step, 1, 1)
        if reuse % accumulation:
            return cls(step, 0, 0)
        return cls(step, trainer._step % reuse // accumulation + 1, reuse // accumulation)

    def is_due(self, interval: int) -> bool:
        """Whether this is a diagnostic step."""
        return bool(interval) and self.step % interval == 0

    def is_before_one(self, interval: int) -> bool:
        """Whether a later update on the same rollout batch is a diagnostic step."""
        last = self.step + self.updates - self.update
        return bool(interval) and last // interval > self.step // interval


class LiveDiagnostics:
    """What is measured on diagnostic steps, between them, and over the run.

    interval: in optimizer steps; 0 measures nothing.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._tally = Tally()  # of the diagnostic step under way, this rank's
        self._learning_rate = 0.0  # of that step
        self._predicted = 0.0  # of the updates so far on this rollout batch, this rank's share
        self._first_norm: float | None = None  # squared norm of the first micro-batch's gradient, this rank's
        self._place: Place | None = None  # of the latest micro-batch
        self._pending: dict[str, float] = {}  # to be logged
        self._pairs: list[list[float]] = []  # [predicted, measured]
        self._entropy: list[float] = []  # [latest step, its entropy, area so far]
        self._norms: list[float] = []  # averages of squared norms: [of micro-batches, of optimizer steps]

    # -- once per rollout batch

    def rollout(self, place: Place, prepared: Mapping[str, Tensor]) -> None:
        """A rollout batch begins: prepared rows of all ranks, measured if a diagnostic step falls on it."""
        self._predicted = 0.0
        if not (place.is_due(self.interval) or place.is_before_one(self.interval)):
            return
        if "task" in prepared and "old_entropy" in prepared:  # else old_logp may be a stand-in
            entropies, task = diagnostics.group_entropy(prepared)
            assert task is not None, "the rows have tasks"
            found = diagnostics.heterogeneity(entropies, task)
            self._pending |= {} if math.isnan(found) else {"diagnostics/heterogeneity": found}

    # -- once per micro-batch

    @torch.no_grad()
    def micro_batch(
        self, place: Place, now: Objective, rows: Mapping[str, Tensor], totals: Totals, learning_rate: float
    ) -> None:
        """Measure rows with the current policy's columns, before their backward pass."""
        self._place = place
        if place.is_due(self.interval):
            self._tally = self._tally + diagnostics.update(now, rows, totals)
            self._learning_rate = learning_rate
        elif place.is_before_one(self.interval):
            self._predicted += learning_rate * _predicted(now, rows, totals)

    def first_update(self, pool: Any, place: Place, now: Objective, rows: Mapping[str, Tensor]) -> None:
        """Put what number formats alone clip into the pool. rows: with an old_logp that is of a pass of its own."""
        if self.interval and place.update == 1:
            found = diagnostics.numerical_clipping(rows, *ratio_bounds(now))
            pairs = zip(found.sums["clipped_numerically"], found.counts["clipped_numerically"], strict=True)
            for side, (number, count) in zip(("low", "high"), pairs, strict=True):
                pool.mean(f"clip/numerical_{side}", number, count)

    def after_backward(self, trainer: Any) -> None:
        """Measure the gradient, and conclude a diagnostic step once all of its micro-batches went by."""
        if self._place is None or not self._place.is_due(self.interval):
            return
        if trainer.accelerator.sync_gradients:
            self._conclude(trainer, self._place)
        elif self._first_norm is None and _holds_gradients(trainer):
            self._first_norm = _squared_norm(trainer.model)

    # -- once per diagnostic step

    def _conclude(self, trainer: Any, place: Place) -> None:
        own: list[Any] = [self._tally.state(), self._predicted, self._first_norm]
        everyone = gather_object([own]) if trainer.accelerator.num_processes > 1 else [own]
        numbers = diagnostics.summary(merge(Tally.of(state) for state, _, _ in everyone), trainer._tasks.names)
        numbers |= self._compare(place, numbers, sum(predicted for _, predicted, _ in everyone))
        numbers |= self._accumulate(place, numbers)
        if self._first_norm is not None:
            numbers |= self._noise(trainer, [norm for _, _, norm in everyone])
        if place.update == 1:
            numbers.pop("measured_change", None)
        if place.is_before_one(self.interval) and "change/all" in self._tally:
            self._predicted += self._learning_rate * self._tally.total("change/all")
        self._pending |= {f"diagnostics/{name}": x for name, x in numbers.items()}
        self._tally, self._first_norm = Tally(), None

    def _compare(self, place: Place, numbers: Mapping[str, float], predicted: float) -> dict[str, float]:
        """Predicted and measured change of the updates on this rollout batch so far, and their correlation."""
        if place.update < 2 or "measured_change" not in numbers:
            return {}
        self._pairs.append([predicted, numbers["measured_change"]])
        along = correlation(*zip(*self._pairs, strict=True))
        found = {"predicted_change": predicted}
        return found if math.isnan(along) else found | {"change_correlation": along}

    def _accumulate(self, place: Place, numbers: Mapping[str, float]) -> dict[str, float]:
        """The area under the entropy curve so far."""
        if "entropy" not in numbers:
            return {}
        step, entropy, area = self._entropy or [place.step, numbers["entropy"], 0.0]
        area += cumulative_entropy([entropy, numbers["entropy"]], [step, place.step])
        self._entropy = [place.step, numbers["entropy"], area]
        return {"cumulative_entropy": area}

    def _noise(self, trainer: Any, first_norms: list[float]) -> dict[str, float]:
        """The noise scale, from the first micro-batch of every rank against the whole optimizer step."""
        num_small = trainer.args.per_device_train_batch_size
        num_parts = trainer.current_gradient_accumulation_steps * trainer.accelerator.num_processes
        # a rank's first gradient is that of its share of the batch's loss, times the number of ranks
        small = trainer.current_gradient_accumulation_steps**2 * sum(first_norms) / len(first_norms)
        norms = [small, _squared_norm(trainer.model)]
        before = self._norms or norms
        self._norms = [_DECAY * old + (1 - _DECAY) * new for old, new in zip(before, norms, strict=True)]
        scale = diagnostics.noise_scale(self._norms[0], self._norms[1], num_small, num_small * num_parts)
        return {} if math.isnan(scale) else {"gradient_noise": scale}

    # -- logs and checkpoints

    def pop(self) -> dict[str, float]:
        """What was measured since the last call, to be logged."""
        pending, self._pending = self._pending, {}
        return pending

    def shared(self) -> dict[str, Any]:
        """What a checkpoint keeps that is the same on all ranks."""
        return {"pending": self._pending, "pairs": self._pairs, "entropy": self._entropy, "norms": self._norms}

    def own(self) -> float:
        """What a checkpoint keeps of this rank."""
        return self._predicted

    def load(self, shared: Mapping[str, Any], own: float) -> None:
        """The inverse of `shared` and `own`."""
        self._pending, self._pairs = dict(shared["pending"]), list(shared["pairs"])
        self._entropy, self._norms, self._predicted = list(shared["entropy"]), list(shared["norms"]), own


def _predicted(now: Objective, rows: Mapping[str, Tensor], totals: Totals) -> float:
    """The first-order entropy change of these rows per unit step, as `diagnostics.entropy_change` sums it."""
    clean = now.cleaned(rows)
    weights = now.weights(rows, totals)
    return float(theory.predicted_change(weights, clean["mask"], clean["logp"], clean["entropy"]).double().sum())


def ratio_bounds(now: Objective) -> tuple[float, float]:
    """The offsets from 1 at which an objective clips its ratio; .2 where it clips something else or nothing."""
    clip = getattr(now.surrogate, "surrogate", now.surrogate)  # the one that another wraps
    if not (isinstance(now.ratio, TokenRatio) and isinstance(clip, _CLIPS)):
        return 0.2, 0.2
    low, high = (math.inf if bound is None else float(bound) for bound in (clip.low, clip.high))
    return low, high


def _holds_gradients(trainer: Any) -> bool:
    """Whether .grad is a rank's whole gradient, unscaled."""
    accelerator = trainer.accelerator
    return accelerator.scaler is None and accelerator.distributed_type.value not in _SHARDED


def _squared_norm(model: torch.nn.Module) -> float:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients)) ** 2
