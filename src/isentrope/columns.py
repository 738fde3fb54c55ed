"""The glossary of columns: what a batch may hold, and what is said when it does not.

A batch is a mapping from column names to tensors whose first dimension is the row (one sampled completion). Rules ask
for columns by naming them as keyword-only parameters. Columns outside the glossary are allowed: a rule of your own
may name any.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from isentrope import masked
from isentrope.errors import ColumnError, IsentropeWarning

Batch = Mapping[str, Tensor]


# A token where one of these is read and not finite leaves every statistic (and is reported in `excluded`).
MUST_BE_FINITE = ("old_logp", "old_entropy", "ref_logp", "value")


@dataclass(frozen=True)
class Column:
    """One entry of the glossary. shape is "B" (a value a row) or "BT" (a value a response token)."""

    name: str
    shape: str
    kind: str
    meaning: str
    source: str


_ENTRIES = [
    Column("reward", "B", "float", "scalar reward of the row", "reward functions (TRL), token_level_rewards (verl)"),
    Column(
        "group", "B", "int", "equal for the completions of one prompt, in any order", "prompt order (TRL), uid (verl)"
    ),
    Column("task", "B", "int", "task or domain of the prompt", "dataset column `task`"),
    Column(
        "mask",
        "BT",
        "bool",
        "True at tokens the policy wrote",
        "completion_mask and tool_mask (TRL), response_mask (verl)",
    ),
    Column(
        "logp",
        "BT",
        "float",
        "log pi of the sampled token, current policy, with gradient",
        "the loss's forward pass: fused head (TRL), log_probs (verl)",
    ),
    Column(
        "old_logp",
        "BT",
        "float",
        "the same under the policy being improved",
        "a pass without gradient at rollout: old_per_token_logps (TRL), old_log_probs (verl)",
    ),
    Column(
        "rollout_logp",
        "BT",
        "float",
        "the same as the sampler reported it; NaN where missing",
        "the sampler: sampling_per_token_logps (TRL with vLLM), rollout_log_probs (verl)",
    ),
    Column(
        "ref_logp",
        "BT",
        "float",
        "the same under a frozen reference policy",
        "the reference model: ref_per_token_logps (TRL), ref_log_prob (verl)",
    ),
    Column(
        "entropy",
        "BT",
        "float",
        "exact softmax entropy of the current policy, nats",
        "the loss's forward pass: fused head (TRL), entropy (verl)",
    ),
    Column(
        "old_entropy",
        "BT",
        "float",
        "exact softmax entropy of the old policy, nats",
        "the pass that gives old_logp: added by our TRL engine, entropys (verl)",
    ),
    Column("value", "BT", "float", "the critic's value", "a critic: none in TRL, values (verl)"),
    Column(
        "length_limit_hit",
        "B",
        "bool",
        "the completion was cut by the length limit",
        "the last token: it ends nothing (TRL), the response is full (verl)",
    ),
    Column(
        "length_limit",
        "B",
        "float",
        "the most tokens a completion may have",
        "max_completion_length (TRL), response_length (verl)",
    ),
    Column(
        "tempered", "B", "bool", "the row was sampled at another temperature", "an engine that honours Rollout.share"
    ),
    Column("advantage", "BT", "float", "advantage after shaping in prepare", "Objective.prepare"),
    Column("selected", "BT", "bool", "tokens that get a gradient", "Objective.prepare"),
    Column("counted", "BT", "bool", "tokens in the normaliser", "Objective.prepare"),
    Column("excluded", "BT", "bool", "tokens dropped because a column was not finite there", "Objective.prepare"),
]
GLOSSARY: dict[str, Column] = {entry.name: entry for entry in _ENTRIES}

# These change with every update, so a rule that reads one of them runs inside `loss`.
CURRENT_POLICY = frozenset({"logp", "entropy"})


@dataclass(frozen=True)
class Reads:
    """The columns that one callable reads: those it cannot do without, and those with a default."""

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()

    def __or__(self, other: "Reads") -> "Reads":
        required = self.required | other.required
        return Reads(required, (self.optional | other.optional) - required)

    def __contains__(self, name: str) -> bool:
        return name in self.required or name in self.optional

    def __and__(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(name for name in names if name in self)


@lru_cache(maxsize=1024)
def _signature_reads(function: Callable[..., Any]) -> tuple[Reads, bool]:
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    required = frozenset(p.name for p in named if p.default is p.empty)
    optional = frozenset(p.name for p in named if p.default is not p.empty)
    return Reads(required, optional), any(p.kind is p.VAR_KEYWORD for p in parameters)


def reads(rule: Any, method: str = "__call__") -> Reads:
    """The columns that a rule reads: the keyword-only parameters of its call (or of another method of it).

    A rule that wraps other rules lists the fields that hold them in `wraps` and takes `**columns`; it reads theirs too.
    Raises ColumnError for `**columns` without `wraps`: what a rule reads must be known before training.
    """
    function = getattr(type(rule), method, None) if method != "__call__" else rule_function(rule)
    wrapped = [getattr(rule, field) for field in getattr(rule, "wraps", ())]
    if function is None:
        return Reads()
    found, has_rest = _signature_reads(function)
    if has_rest and not wrapped:
        raise ColumnError(
            f"{name_of(rule)} takes **columns; name each column it reads as a keyword-only parameter instead"
        )
    for inner in wrapped:
        found = found | reads(inner, method)
    return found


def rule_function(rule: Any) -> Callable[..., Any]:
    """What `inspect` should look at: a plain function itself, or the `__call__` of an object's class."""
    if inspect.isfunction(rule):
        return rule
    if not callable(rule) or inspect.isclass(rule):
        raise ColumnError(f"{rule!r} is not a rule: it must be a function or an object that can be called")
    call: Callable[..., Any] = type(rule).__call__
    return call


def name_of(rule: Any) -> str:
    """How a rule is called in messages: its class, or the function's own name."""
    return getattr(rule, "__name__", None) or type(rule).__name__


def pick(columns: Mapping[str, Any], wanted: Reads, who: str, where: str) -> dict[str, Any]:
    """The columns that a rule asked for; ColumnError names what is missing, what was there and where to get it."""
    missing = sorted(wanted.required - columns.keys())
    if missing:
        raise ColumnError(f"{who} needs {_describe(missing)} in {where}; the batch has {_listed(columns)}")
    return {name: columns[name] for name in wanted & columns.keys()}


def invoke(rule: Any, columns: Mapping[str, Any], *arguments: Any, method: str = "__call__") -> Any:
    """Call a rule (or another method of it) with the columns it reads; a wrapping rule calls the other through this."""
    call = getattr(rule, method)
    return call(*arguments, **pick(columns, reads(rule, method), name_of(rule), "its columns"))


def _describe(missing: list[str]) -> str:
    hints = [
        f"`{m}` ({GLOSSARY[m].meaning}; from {GLOSSARY[m].source})" if m in GLOSSARY else f"`{m}`" for m in missing
    ]
    return "column " + ", ".join(hints)


def _listed(columns: Mapping[str, Any]) -> str:
    return ", ".join(sorted(name for name in columns if "/" not in name)) or "no columns"


def validate(batch: Batch, required: Iterable[str] = ("mask",)) -> None:
    """Check names, shapes and types of a batch; ColumnError names the column, what was found and what to do.

    All columns share the first dimension B; those of shape [B,T] share T with `mask`. `reward` must be finite.
    """
    pick(batch, Reads(frozenset(required) | {"mask"}), "the objective", "prepare")
    mask = batch["mask"]
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise ColumnError(f"`mask` must be bool [B,T]; found {mask.dtype} {list(mask.shape)}: use mask.bool()")
    for name, value in batch.items():
        _check_column(name, value, mask)
    _check_finite(batch.get("reward"))


def _check_column(name: str, value: Tensor, mask: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise ColumnError(f"`{name}` must be a tensor; found {type(value).__name__}: use torch.as_tensor")
    entry = GLOSSARY.get(name)
    wide = entry is not None and entry.shape == "BT"
    expected = tuple(mask.shape) if wide else tuple(mask.shape[:1])
    found = tuple(value.shape) if entry is not None else tuple(value.shape[:1])
    if found != expected:
        raise ColumnError(f"`{name}` must be {list(expected)} like `mask`; found {list(value.shape)}")
    if entry is not None and entry.kind != _kind(value.dtype):
        raise ColumnError(f"`{name}` must be {entry.kind}; found {value.dtype}")


def _kind(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point else "int"


def _check_finite(reward: Tensor | None) -> None:
    if reward is None:
        return
    bad = (~torch.isfinite(reward)).nonzero().flatten().tolist()
    if bad:
        shown = ", ".join(f"row {i}: {float(reward[i])}" for i in bad[:3])
        raise ColumnError(
            f"`reward` must be finite; found {shown} ({len(bad)} of {len(reward)}): mend the reward function"
        )


def without(found: Reads, names: set[str] | frozenset[str]) -> Reads:
    """The same columns but for these names."""
    return Reads(found.required - names, found.optional - names)


def spelled_out(found: Reads) -> Reads:
    """The columns behind the measured entropy in place of its name."""
    if "measured_entropy" not in found:
        return found
    return without(found, {"measured_entropy"}) | Reads(frozenset({"old_logp"}), frozenset({"old_entropy"}))


def reads_from_outside(rule: Any) -> Reads:
    """What a rule reads from outside: columns outside the glossary may come from its own `prepare`."""
    found = reads(rule)
    if not hasattr(rule, "prepare"):
        return found
    return Reads(found.required & GLOSSARY.keys(), found.optional & GLOSSARY.keys())


class Measured(dict[str, Any]):
    """The columns of a batch, and the measured entropy, computed when a rule reads it."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        super().__init__(columns)
        self["measured_entropy"] = None

    def __getitem__(self, name: str) -> Any:
        return measured_entropy(self) if name == "measured_entropy" else super().__getitem__(name)


def measured_entropy(rows: Mapping[str, Tensor]) -> float:
    """Token mean of `old_entropy`, or of -old_logp where that is missing, in nats; NaN for a batch without tokens."""
    x = rows["old_entropy"] if "old_entropy" in rows else -rows["old_logp"]
    return float(masked.mean(x, rows["mask"])) if bool(rows["mask"].any()) else float("nan")


def clean(batch: Batch, read: frozenset[str]) -> dict[str, Tensor]:
    """Columns in float32 or wider, 0 behind the mask; tokens where a column that is read is not finite leave the
    mask.
    """
    rows = {name: masked.upcast(x.detach()) for name, x in batch.items()}
    given = rows["mask"]
    wide = {n: masked.fill(x, given) for n, x in rows.items() if _is_token_float(n, x, given)}
    mask = given
    for name in MUST_BE_FINITE:
        if name in rows and name in read and not torch.isfinite(wide[name].sum()):  # one pass over memory, not five
            mask = mask & ~_not_finite(name, rows[name], given)
    if mask is not given:
        wide = {n: masked.fill(x, mask) for n, x in wide.items()}
    return rows | wide | {"mask": mask, "excluded": given & ~mask}


def _not_finite(name: str, x: Tensor, mask: Tensor) -> Tensor:
    """The tokens at which a column is not finite, with a warning if there are any."""
    bad = mask & ~masked.is_finite(x)
    if bad.any():  # a sum of huge values may overflow without any
        row, position = bad.nonzero()[0].tolist()
        warnings.warn(
            f"`{name}` is {float(x[row, position])} at {int(bad.sum())} token(s)"
            f" (first: row {row}, position {position});"
            " they are excluded from loss and statistics",
            IsentropeWarning,
            stacklevel=4,
        )
    return bad


def _is_token_float(name: str, x: Tensor, mask: Tensor) -> bool:
    return x.is_floating_point() and x.shape == mask.shape and name != "rollout_logp"
