"""Objective: a frozen value with slots, and how the slots get their columns.

    rollout batch --prepare (once, all rows, no gradient)--> prepared rows --any slice, plus logp--> loss

`prepare` lets the controllers observe, then computes advantages, shaping, selection and whatever batch statistics the
rules ask for. `loss` takes any slice of the prepared rows; slices add up. A rule names the columns it reads as
keyword-only parameters; it may have a method `prepare` that returns further columns (statistics of the whole batch,
one value or row of values a row), which only that rule sees.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isentrope import masked, slots
from isentrope.aggregate import TokenMean, Totals
from isentrope.columns import (
    CURRENT_POLICY,
    Batch,
    Measured,
    Reads,
    clean,
    invoke,
    name_of,
    pick,
    reads,
    reads_from_outside,
    spelled_out,
    validate,
    without,
)
from isentrope.control import Controller, State, find_controllers, is_controller, own_state, put_numbers
from isentrope.errors import IsentropeWarning
from isentrope.ratio import TokenRatio, mismatched_bounds
from isentrope.rollout import Rollout

ROW_ADVANTAGE = "advantage/row"  # [B,1], beside `advantage` where it is the same for all tokens of a row


@dataclass(frozen=True)
class Needs:
    """The columns an objective reads: `prepare` and `loss` cannot do without, `optional` ones improve it, `gradient`
    ones carry a graph.
    """

    prepare: frozenset[str]
    loss: frozenset[str]
    optional: frozenset[str]
    gradient: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A policy objective: which advantage, on which tokens, through which ratio and clip, with which weights.

    J = sum over selected tokens of w * (correction * surrogate(log_ratio, advantage) - penalties), w from
    `aggregate`; the loss is -J.
    Each slot holds any callable; `select`, `shaping` and `penalties` hold several, applied in order.
    A controller may stand in the place of any number, at any depth.
    """

    advantage: Any
    select: tuple[Any, ...] = ()
    shaping: tuple[Any, ...] = ()
    ratio: Any = TokenRatio()
    surrogate: Any
    penalties: tuple[Any, ...] = ()
    correction: Any = None
    aggregate: Any = TokenMean()
    rollout: Rollout = Rollout()

    def __post_init__(self) -> None:
        for slot in ("select", "shaping", "penalties"):
            object.__setattr__(self, slot, tuple(getattr(self, slot)))
        for path, rule in self.rules():
            reads(rule)  # raises for what is not a rule
            if is_controller(rule):
                raise ValueError(
                    f"Objective.{path}: {name_of(rule)} is a controller; it stands in the place of a number of a rule"
                )
        slots.check_shaping_order(self.shaping)

    # -- what it consists of ------------------------------------------------------------------------------------------

    def rules(self) -> Iterator[tuple[str, Any]]:
        """(path, rule) of every filled slot but `rollout`: ("shaping.0", ...), ("surrogate", ...)."""
        for f in fields(self):
            if f.name == "rollout":
                continue
            held = getattr(self, f.name)
            if isinstance(held, tuple):
                yield from ((f"{f.name}.{i}", rule) for i, rule in enumerate(held))
            elif held is not None:
                yield f.name, held

    def controllers(self) -> dict[str, Controller]:
        """Every controller by its path, such as "surrogate.high"."""
        return dict(self._controllers)

    def columns(self) -> Needs:
        """The columns that the objective reads, by phase."""
        return self._needs

    @cached_property
    def _controllers(self) -> dict[str, Controller]:
        return dict(find_controllers(self, ""))

    @cached_property
    def _reads_entropy(self) -> bool:
        return any("entropy" in reads(rule) for _, rule in self.rules())

    @cached_property
    def _needs(self) -> Needs:
        phases = {"prepare": Reads(frozenset({"mask"})), "loss": Reads(frozenset({"logp"}))}
        for path, rule in self.rules():
            phase = "loss" if slots.runs_in_loss(path, rule) else "prepare"
            phases[phase] = phases[phase] | reads_from_outside(rule)
            phases["prepare"] = phases["prepare"] | spelled_out(reads(rule, "prepare"))
        for controller in self._controllers.values():
            phases["prepare"] = phases["prepare"] | spelled_out(reads(controller, "observe"))
        made = {"advantage", "selected", "counted", "excluded"}
        before, during = without(phases["prepare"], made), without(phases["loss"], made)
        return Needs(
            before.required,
            during.required,
            (before | during).optional,
            frozenset(n for n in CURRENT_POLICY if self._needs_graph(n)),
        )

    def _needs_graph(self, name: str) -> bool:
        return name == "logp" or any(
            name in reads(rule) and name not in getattr(rule, "detached", ())
            for path, rule in self.rules()
            if not path.startswith(("shaping", "correction"))
        )

    def inert(self, updates_per_rollout: int, group_size: int) -> list[str]:
        """Sentences on rules that cannot act in this setting; empty where all can."""
        found = []
        for path, rule in self.rules():
            what = getattr(rule, "only_off_policy", None)
            if what and updates_per_rollout == 1:
                found.append(
                    f"{path}: {name_of(rule)} does nothing at 1 update per rollout batch: the ratio is always 1,"
                    f" so {what} never acts."
                    " Make several updates per rollout batch."
                )
        if group_size == 1 and any("group" in reads(rule) for path, rule in self.rules() if path == "advantage"):
            found.append(
                f"advantage: {name_of(self.advantage)} compares the rows of one prompt; with 1 completion a prompt"
                " every advantage is 0."
                " Sample several completions a prompt."
            )
        return found + mismatched_bounds(self.ratio, self.surrogate)

    # -- controllers --------------------------------------------------------------------------------------------------

    def init(self) -> State:
        """The state of all controllers before the first batch: a flat dict of floats, empty without controllers."""
        return {f"{path}.{key}": x for path, c in self._controllers.items() for key, x in c.init().items()}

    def at(self, state: State) -> "Objective":
        """The same objective with numbers in place of controllers."""
        known = tuple(f"{path}." for path in self._controllers)
        stray = [key for key in state if not key.startswith(known or "\0")]
        if stray:
            raise ValueError(
                f"state has {stray[0]!r}, which belongs to no controller of this objective"
                f" ({', '.join(known) or 'it has none'})"
            )
        now: Objective = put_numbers(self, state, "") if known else self
        return now

    def observe(self, batch: Batch, state: State) -> State:
        """Let every controller observe a clean rollout batch once."""
        after = dict(state)
        given = Measured(batch)
        for path, controller in self._controllers.items():
            own = own_state(state, path)
            found = controller.observe(
                own, **pick(given, reads(controller, "observe"), f"{path}: {name_of(controller)}", "prepare")
            )
            after |= {f"{path}.{key}": float(x) for key, x in found.items()}
        return after

    # -- from batch to loss -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(self, batch: Batch, state: State | None = None) -> tuple[dict[str, Tensor], State]:
        """Once per rollout batch, on all its rows: controllers observe, then advantages, shaping, selection and batch
        statistics.

        Returns the batch's columns with `advantage` [B,T], `selected`, `counted`, `excluded` (bool [B,T]) and the
        rules' own columns ("path/name"), each with B rows, and the new state. Where `advantage` is the same for all
        tokens of a row, "advantage/row" [B,1] says so; drop it if you replace `advantage`. A non-finite value at an
        unmasked position of a column that is read excludes the token, with a warning.
        Raises ColumnError for a missing or malformed column.
        """
        state = self.init() if state is None else state
        needs = self.columns()
        validate(batch, needs.prepare | (needs.loss - CURRENT_POLICY))
        self._warn_of_lone_rows(batch)
        rows = clean(batch, needs.prepare | needs.loss | needs.optional)
        state = self.observe(rows, state)
        now = self.at(state)
        own = slots.own_columns("advantage", now.advantage, rows)
        rows |= _spread(slots.call("advantage", now.advantage, rows | own), rows["mask"])
        for i, rule in enumerate(now.shaping):
            path = f"shaping.{i}"
            rows |= slots.own_columns(path, rule, rows)
            if not slots.runs_in_loss(path, rule):
                rows["advantage"] = masked.fill(slots.call(path, rule, rows, rows["advantage"]), rows["mask"])
                rows.pop(ROW_ADVANTAGE, None)
        rows |= now._selection(rows)
        for path, rule in now.rules():
            if not path.startswith(("advantage", "select", "shaping")):
                rows |= slots.own_columns(path, rule, rows)
        return rows, state

    def _warn_of_lone_rows(self, batch: Batch) -> None:
        if "group" in reads(self.advantage) and len(torch.unique(batch["group"])) == len(batch["group"]) > 0:
            warnings.warn(
                "every group holds one row, so all group-relative advantages are 0: check `group` (one id a prompt)",
                IsentropeWarning,
                stacklevel=3,
            )

    def _selection(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        selected = counted = rows["mask"]
        advantages = {name: rows[name] for name in ("advantage", ROW_ADVANTAGE) if name in rows}
        for i, rule in enumerate(self.select):
            path = f"select.{i}"
            kept = slots.call(path, rule, rows | slots.own_columns(path, rule, rows))
            if kept.ndim == 1:
                kept = kept[:, None]
                advantages = {name: masked.fill(x, kept) for name, x in advantages.items()}
            selected = selected & kept
            counted = counted & kept if getattr(rule, "count", "kept") == "kept" else counted
        return {"selected": selected, "counted": counted} | advantages

    def count(self, rows: Batch) -> Totals:
        """The totals of prepared rows: of the whole batch when these are all its rows. Counts of disjoint parts add
        up, groups only where none is split.
        """
        tokens = masked.row_count(rows["counted"])
        has_tokens = tokens > 0
        groups = len(torch.unique(rows["group"][has_tokens])) if "group" in rows else 0
        return Totals(float(tokens.sum()), float(has_tokens.sum()), float(groups))

    def loss(self, rows: Batch, totals: Totals) -> Tensor:
        """-J of a slice of prepared rows, a scalar in float32 or wider; the losses of disjoint slices add up to the
        batch's.

        rows: prepared rows with `logp` [B,T] (and `entropy` where a rule reads it). totals: `count` of the whole batch.
        An empty or fully deselected slice gives 0 that still has a graph.
        """
        rows = self.cleaned({name: x for name, x in rows.items() if name != "entropy" or self._reads_entropy})
        weight = slots.call("aggregate", self.aggregate, rows, totals).to(rows["logp"].dtype)
        if weight.ndim < 2 or weight.shape[-1] > 1:
            return -(masked.fill(self._per_token(rows), rows["selected"]) * weight).sum()
        return -(self._row_sums(rows) * weight).sum()

    def weights(self, rows: Batch, totals: Totals) -> Tensor:
        """dJ/dlogp of every token, [B,T], detached: the common currency of tests, diagnostics and reports."""
        return self._gradient(rows, totals, "logp")

    def entropy_weights(self, rows: Batch, totals: Totals) -> Tensor:
        """dJ/dentropy of every token, [B,T], detached; zeros where no rule uses the gradient of the entropy."""
        return self._gradient(rows, totals, "entropy")

    def shaped(self, rows: Batch) -> Tensor:
        """The advantage [B,T] after all shaping, that which reads the current `logp` included."""
        return self._shape(self.cleaned(rows))

    def _gradient(self, rows: Batch, totals: Totals, name: str) -> Tensor:
        with torch.enable_grad():
            leaf = masked.upcast(rows[name].detach()).requires_grad_()
            loss = self.loss(dict(rows) | {name: leaf}, totals)
            (gradient,) = (
                torch.autograd.grad(loss, leaf, allow_unused=True, materialize_grads=True)
                if loss.requires_grad
                else (None,)
            )
        return torch.zeros_like(leaf.detach()) if gradient is None else -gradient

    def clipped(self, rows: Batch) -> tuple[Tensor, Tensor] | None:
        """Tokens beyond the surrogate's lower and upper bound, two bool [B,T]; None for a surrogate without bounds."""
        if not hasattr(self.surrogate, "clipped"):
            return None
        rows = self.cleaned(rows)
        low, high = self.surrogate.clipped(self.log_ratio(rows), self._shape(rows))
        return low, high

    def log_ratio(self, rows: Batch) -> Tensor:
        """The log-ratios [B,T] that the surrogate sees, unbounded."""
        return slots.call("ratio", self.ratio, self.cleaned(rows))

    def scale(self, rows: Batch, totals: Totals) -> Tensor:
        """What multiplies each token's surrogate in J: aggregation and correction, 0 where not selected; [B,T]."""
        rows = self.cleaned(rows)
        weight = slots.call("aggregate", self.aggregate, rows, totals).to(rows["logp"].dtype)
        if self.correction is not None:
            weight = weight * slots.call("correction", self.correction, rows).detach()
        return masked.fill(weight.expand(rows["mask"].shape), rows["selected"])

    def cleaned(self, rows: Batch) -> dict[str, Tensor]:
        """Prepared rows as the rules of `loss` see them: `logp` and `entropy` are 0 behind the mask, constants at
        dropped tokens.

        A token at which one of them is read and not finite leaves `mask` and `selected`, and stays in the normaliser.
        """
        if isinstance(rows, _Cleaned) and rows.by is self:
            return rows
        if self._controllers:
            raise ValueError("this objective still holds controllers: call objective.at(state) first")
        pick(
            rows,
            Reads(frozenset({"mask", "logp", "advantage", "selected", "counted"})),
            "loss",
            "its rows (use what prepare returned)",
        )
        current = {n: masked.upcast(rows[n]) for n in CURRENT_POLICY if n in rows}
        usable = rows["mask"]
        for name, x in current.items():
            if name == "logp" or self._reads_entropy:
                usable = masked.finite_within(x.detach(), usable)
        selected = rows["selected"] & usable
        clean = {n: masked.fill(x.detach() if self.select else x, usable) for n, x in current.items()}
        if self.select:  # a rule that takes a row's mean would reach dropped tokens
            clean |= {n: torch.where(selected, x, clean[n]) for n, x in current.items() if x.requires_grad}
        return _Cleaned(dict(rows) | clean | {"mask": usable, "selected": selected}, self)

    def _row_sums(self, rows: dict[str, Tensor]) -> Tensor:
        """The sum of J over each row's selected tokens, [B,1]."""
        if not (self._is_alike_in_a_row and ROW_ADVANTAGE in rows):
            return masked.fill(self._per_token(rows), rows["selected"]).sum(-1, keepdim=True)
        count = masked.row_count(rows["selected"])[:, None]
        given = dict(rows)
        if "logp" in reads(self.surrogate):  # which is 0 at all other tokens
            given["logp"] = rows["logp"].sum(-1, keepdim=True) / count.clamp(min=1)
        ratio = None if slots.ignores_ratio(self.surrogate) else invoke(self.ratio, rows, method="of_rows")
        return slots.call("surrogate", self.surrogate, given, ratio, _row_advantage(rows)) * count

    @cached_property
    def _is_alike_in_a_row(self) -> bool:
        """J and its gradient are the same for all tokens of a row, once the advantage is."""
        plain = not (self.select or self.penalties or self.correction or self._shapes_in_loss)
        ratio = slots.ignores_ratio(self.surrogate) or hasattr(self.ratio, "of_rows")
        return plain and ratio and slots.is_elementwise(self.surrogate)

    @cached_property
    def _shapes_in_loss(self) -> bool:
        return any(slots.runs_in_loss(f"shaping.{i}", rule) for i, rule in enumerate(self.shaping))

    def _per_token(self, rows: dict[str, Tensor]) -> Tensor:
        log_ratio = None if slots.ignores_ratio(self.surrogate) else slots.call("ratio", self.ratio, rows)
        by_row = slots.is_elementwise(self.surrogate) and ROW_ADVANTAGE in rows and not self._shapes_in_loss
        advantage = _row_advantage(rows) if by_row else self._shape(rows)
        objective: Tensor = slots.call("surrogate", self.surrogate, rows, log_ratio, advantage)
        if self.correction is not None:
            objective = objective * slots.call("correction", self.correction, rows).detach()
        for i, rule in enumerate(self.penalties):
            objective = objective - slots.call(f"penalties.{i}", rule, rows)
        return objective

    def _shape(self, rows: dict[str, Tensor]) -> Tensor:
        advantage = rows["advantage"]
        for i, rule in enumerate(self.shaping):
            if slots.runs_in_loss(f"shaping.{i}", rule):
                advantage = slots.call(f"shaping.{i}", rule, rows, advantage).detach()
        return advantage

    def __str__(self) -> str:
        from isentrope import spec

        return spec.dumps(self)


class _Cleaned(dict[str, Tensor]):
    """What `cleaned` of an objective returned, which that objective need not clean again."""

    def __init__(self, columns: Mapping[str, Tensor], by: Objective) -> None:
        super().__init__(columns)
        self.by = by


def _spread(advantage: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """What an advantage rule returned, over the tokens, and as it is where it gave one number a row."""
    if advantage.ndim == 2:
        return {"advantage": masked.fill(advantage, mask)}
    return {"advantage": masked.fill(advantage[:, None], mask), ROW_ADVANTAGE: advantage[:, None]}


def _row_advantage(rows: Mapping[str, Tensor]) -> Tensor:
    return rows[ROW_ADVANTAGE].reshape(-1, 1)  # an engine may carry it as [B]
