"""Guards: what must hold for ratios to mean anything, set or checked while a trainer runs. All are on by default.

| name | when | what |
| --- | --- | --- |
| `float32_logp` | first micro-batches | GuardError where log-probabilities reach the loss in a narrower type than float32, or as float32 numbers that were rounded to one before |
| `fsdp2_output` | before the first rollout | FSDP2's mixed-precision policy casts what the root module returns, log-probabilities too: the root's `output_dtype` becomes float32; the policies of its children stay |
| `sampler` | at construction | SamplerMismatchWarning where completions are drawn from another distribution than softmax(logits / temperature) |
| `old_logp` | first update after each rollout | NumericalClippingWarning where over 1% of the tokens are outside the clip band although the weights are the rollout's |

`ObjectiveTrainer(..., without_guards=("sampler",))` switches guards off by name.
"""  # noqa: E501  (the table)

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from isentrope import diagnostics, masked
from isentrope.engines.trl_diagnostics import Place, ratio_bounds
from isentrope.engines.trl_options import SamplerMismatchWarning, sampler_mismatches
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.precision import on_grid

GUARDS = ("float32_logp", "fsdp2_output", "sampler", "old_logp")
NARROW = (torch.bfloat16, torch.float16)
ENOUGH_TOKENS = 32  # a format's grid holds one float32 number in 8,192 (float16) or 65,536 (bfloat16) by chance
MAX_ON_GRID = 0.9
MAX_CLIPPED = 0.01


class GuardError(IsentropeError, RuntimeError):
    """A guard found log-probabilities that make ratios meaningless; the message begins with the guard's name."""


class NumericalClippingWarning(UserWarning):
    """Ratios of equal weights are outside the clip band."""


class Guards:
    """The guards of one trainer.

    without: names of GUARDS that are off. Raises ValueError for any other name, and for a bare string.
    """

    def __init__(self, without: Collection[str] = ()) -> None:
        unknown = [without] if isinstance(without, str) else [name for name in without if name not in GUARDS]
        if unknown:
            raise ValueError(f"without_guards={without!r}: give a collection of names out of {', '.join(GUARDS)}")
        self.active = frozenset(GUARDS) - frozenset(without)
        self._logp: Tensor | None = torch.empty(0)  # log-probabilities seen so far; None once they were judged
        self._outside: dict[str, Any] = {}  # clipped [2] and number of tokens of the first update under way
        self._warned = False

    # -- before training

    def at_construction(self, args: Any, objective: Objective) -> None:
        """The guard `sampler`, which a rule in the slot `correction` satisfies: it corrects for the sampler."""
        options = sampler_mismatches(args)
        if "sampler" in self.active and options and objective.correction is None:
            warnings.warn(
                f"{', '.join(options)}: completions are not drawn from softmax(logits / temperature), whose "
                "log-probabilities enter the loss; sample without these options, or use vLLM and a rule in the slot "
                "`correction` (guard `sampler`)",
                SamplerMismatchWarning,
                stacklevel=4,
            )

    def before_rollout(self, trainer: Any) -> None:
        """The guard `fsdp2_output`, on the policy and the reference model; nothing where they are not FSDP2's."""
        if "fsdp2_output" in self.active:
            for module in (trainer.model_wrapped, trainer.model, getattr(trainer, "ref_model", None)):
                if (root := fsdp2_root(module)) is not None:
                    return_float32(root)

    # -- once per micro-batch of training

    def micro_batch(
        self, trainer: Any, now: Objective, rows: Mapping[str, Tensor], logp: Tensor, has_own_pass: bool
    ) -> None:
        """The guards `float32_logp` and `old_logp`.

        logp: [B,T] as the forward pass gave it. rows: with its columns. has_own_pass: old_logp is of another pass.
        """
        if "float32_logp" in self.active and self._logp is not None:
            self._check_format(trainer, logp.detach(), rows["mask"])
        if "old_logp" in self.active and has_own_pass and Place.of(trainer).update == 1:
            self._measure(now, rows)

    def _check_format(self, trainer: Any, logp: Tensor, mask: Tensor) -> None:
        assert self._logp is not None, "asked for after the verdict"
        if logp.dtype in NARROW:
            raise GuardError(_narrow(trainer, f"are {_short(logp.dtype)} numbers"))
        values = logp[mask]
        self._logp = torch.cat([self._logp.to(values), values[values < -0.01]])
        if len(self._logp) < ENOUGH_TOKENS:
            return
        for dtype in NARROW:  # what is on bfloat16's grid is on float16's as well, so the coarser one goes first
            share = on_grid(self._logp, dtype)
            if share > MAX_ON_GRID:
                found = f"were rounded to {_short(dtype)}: {share:.0%} of {len(self._logp)} values lie on its grid"
                raise GuardError(_narrow(trainer, found))
        self._logp = None

    def _measure(self, now: Objective, rows: Mapping[str, Tensor]) -> None:
        found = diagnostics.numerical_clipping(rows, *ratio_bounds(now))
        key = "clipped_numerically"
        sums = torch.stack([*found.sums[key], *found.counts[key]]).detach()
        before = self._outside.get("sums")
        self._outside["sums"] = sums if before is None else before + sums
        if "rollout_logp" in rows:
            mask = rows["mask"]
            same = masked.fill((rows["old_logp"] == rows["rollout_logp"]).float(), mask).sum() == mask.sum()
            self._outside["same"] = self._outside.get("same", True) & same

    def after_backward(self, trainer: Any) -> None:
        """Conclude the first update once all of its micro-batches went by."""
        if not self._outside or not trainer.accelerator.sync_gradients:
            return
        outside, self._outside = self._outside, {}
        if self._warned:
            return
        low, high, count, _ = trainer.accelerator.reduce(outside["sums"], reduction="sum").tolist()
        if low + high > MAX_CLIPPED * count:
            self._warned = True
            sentence = _clipped(low / count, high / count, bool(outside.get("same", False)))
            warnings.warn(sentence, NumericalClippingWarning, stacklevel=2)


def _narrow(trainer: Any, found: str) -> str:
    what = f"the log-probabilities that reach the loss {found}, so that ratios are wrong"
    return f"float32_logp: {what}; {_cause(trainer)}"


def _cause(trainer: Any) -> str:
    """The likeliest place of the rounding, and what to do about it."""
    root = fsdp2_root(trainer.model_wrapped)
    if root is not None and _state(root)._mp_policy.output_dtype in NARROW:
        return (
            "FSDP2 casts what the root module returns to its output_dtype: leave the guard fsdp2_output on, or give "
            "the root a mixed-precision policy with output_dtype=torch.float32"
        )
    mixed = trainer.accelerator.mixed_precision
    if mixed in ("bf16", "fp16"):
        return (
            f"mixed precision is {mixed}, and the head or its log-softmax runs in it: set cast_lm_head_to_fp32=True, "
            "or take the log-softmax of logits.float() outside autocast"
        )
    return (
        "the model takes its log-softmax in the type of its weights, or casts the result: set "
        "cast_lm_head_to_fp32=True, or take the log-softmax of logits.float()"
    )


def _clipped(low: float, high: float, is_sampler: bool) -> str:
    cause = (
        "old log-probabilities are the sampler's, bit for bit; recompute them with the trainer's own pass"
        if is_sampler
        else "the number format or the padding makes two passes differ; see `isentrope probe` and train in float32, in "
        "float16 with a loss scale, or with a float32 head"
    )
    return (
        f"old_logp: {low + high:.2%} of the tokens are outside the clip band at the first update after a rollout "
        f"({low:.2%} below, {high:.2%} above), where every ratio should be 1: {cause}"
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- FSDP2


def fsdp2_root(module: Any) -> FSDPModule | None:
    """A module as FSDP2's root, seen through torch.compile; None where it is none."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, FSDPModule) else None


def return_float32(root: FSDPModule) -> None:
    """Let an FSDP2 root return float32, whatever its mixed-precision policy says of outputs; its children's stay.

    A group of children of which only some ran (a fused head reads the head's weight, but does not call it) is completed
    in the root's name: torch casts the root's output to that group's output_dtype as well. The cast is left out there,
    while the policy, and with it the casts between modules, remains. A second call changes nothing.
    """
    state = _state(root)
    if state._mp_policy.output_dtype is not torch.float32:
        state._mp_policy = replace(state._mp_policy, output_dtype=torch.float32)
    complete = getattr(state, "_force_complete_incomplete_states", None)
    if complete is None or getattr(complete, "is_ours", False):  # torch before 2.13 completes nothing
        return

    def complete_uncast(output: Any) -> Any:
        with _without_casts([s for s in state._state_ctx.all_states if s is not state and s._modules_to_run_forward]):
            return complete(output)

    complete_uncast.is_ours = True  # type: ignore[attr-defined]
    state._force_complete_incomplete_states = complete_uncast


@contextmanager
def _without_casts(states: list[Any]) -> Iterator[None]:
    policies = [state._mp_policy for state in states]
    for state, policy in zip(states, policies, strict=True):
        state._mp_policy = replace(policy, output_dtype=None)
    try:
        yield
    finally:
        for state, policy in zip(states, policies, strict=True):
            state._mp_policy = policy


def _state(root: FSDPModule) -> Any:
    return root._get_fsdp_state()
