"""Laws on loss and gradient: the documented value, the derivative, and what may not move."""

import math
from dataclasses import replace
from typing import Any

import torch

from isentrope.aggregate import ConstantLength, PromptMean, SequenceMean, TokenMean
from isentrope.columns import CURRENT_POLICY, Batch, name_of
from isentrope.control import is_number
from isentrope.laws._trial import (
    DoesNotApply,
    call,
    close,
    close_loss,
    law,
    outcome,
    prepare,
    require,
    used_state,
)
from isentrope.objective import Objective
from isentrope.ratio import SequenceRatio, TokenRatio
from isentrope.surrogate import (
    ClipCov,
    ClippedWeight,
    EntropyRatioClip,
    GeometricClip,
    GradientPreservingClip,
    ImportanceWeighted,
    KLCov,
    PolicyGradient,
    PPOClip,
    ReinforceTempered,
    SoftGate,
)


@law
def value_is_the_documented_sum(objective: Objective, batch: Batch) -> None:
    """loss = -sum over selected tokens of weight * (correction * surrogate - penalties), each row by itself."""
    found = outcome(objective, batch, used_state(objective, batch))
    now, rows = found.now, found.prepared
    counts = _Counts(now, rows)
    total = 0.0
    for b in range(len(rows["mask"])):
        terms = _row_terms(now, {name: x[b : b + 1] for name, x in rows.items()})
        total -= sum(
            counts.weight(b, t) * terms[t] for t in range(len(terms)) if rows["selected"][b, t] and rows["mask"][b, t]
        )
    close_loss(found, torch.tensor(total, dtype=torch.float64))


def _row_terms(now: Objective, row: Batch) -> list[float]:
    """J of every token of one row, from its rules."""
    clean = {n: torch.where(row["mask"], x, 0.0) if n in CURRENT_POLICY else x for n, x in row.items()}
    log_ratio = call("ratio", now.ratio, clean)
    j = call("surrogate", now.surrogate, clean, log_ratio, now.shaped(row))
    if now.correction is not None:
        j = j * call("correction", now.correction, clean)
    for i, penalty in enumerate(now.penalties):
        j = j - call(f"penalties.{i}", penalty, clean)
    return [float(x) for x in j.expand(row["mask"].shape)[0]]


class _Counts:
    """The weight of a token under the aggregations of this library, counted by hand; any other is asked itself."""

    def __init__(self, now: Objective, rows: Batch) -> None:
        self.rule, self.rows = now.aggregate, rows
        self.length = [int(n) for n in rows["counted"].sum(-1)]
        self.group = rows["group"].tolist() if "group" in rows else []
        given = call("aggregate", self.rule, rows, now.count(rows)).detach()
        self.given = given.expand(rows["mask"].shape)

    def weight(self, b: int, t: int) -> float:
        full = [n for n in self.length if n]
        if isinstance(self.rule, TokenMean):
            return 1 / sum(full) if full else 0.0
        if isinstance(self.rule, SequenceMean):
            return 1 / (len(full) * self.length[b]) if self.length[b] else 0.0
        if isinstance(self.rule, ConstantLength):
            length = self.rows["length_limit"][b] if self.rule.length is None else self.rule.length
            return 1 / (len(full) * float(length)) if full else 0.0
        if isinstance(self.rule, PromptMean):
            tokens = sum(n for n, g in zip(self.length, self.group, strict=True) if g == self.group[b])
            groups = {g for n, g in zip(self.length, self.group, strict=True) if n}
            return 1 / (len(groups) * tokens) if tokens else 0.0
        return float(self.given[b, t])


@law
def weights_equal_autograd(objective: Objective, batch: Batch) -> None:
    """The gradient at a model's logits is that of sum(weights * logp + entropy_weights * entropy)."""
    prepared, state = prepare(objective, batch, used_state(objective, batch))
    now = objective.at(state)
    totals = now.count(prepared)
    rest = (-prepared["logp"].clamp(max=-1e-4).exp()).log1p()  # what the other two words share: a third, two thirds
    logits = torch.stack([prepared["logp"].clamp(max=-1e-4), rest - math.log(3), rest + math.log(2 / 3)], -1)
    logits.requires_grad_()
    log_p = logits.log_softmax(-1)
    policy = {"logp": log_p[..., 0], "entropy": -(log_p.exp() * log_p).sum(-1)}
    rows = prepared | {n: x.detach() for n, x in policy.items()}
    weights, entropy_weights = now.weights(rows, totals), now.entropy_weights(rows, totals)
    linear = (weights * policy["logp"] + entropy_weights * policy["entropy"]).sum()
    (expected,) = torch.autograd.grad(-linear, logits, retain_graph=True)
    (found,) = torch.autograd.grad(now.loss(prepared | policy, totals), logits)
    close("gradient at logits", found, expected)


# Surrogates and ratios whose gradient at ratio 1 is the plain policy gradient. A rule of one's own promises it by the
# attribute `plain_at_ratio_one = True`.
PLAIN_AT_RATIO_ONE = (
    *(PolicyGradient, ImportanceWeighted, PPOClip, GradientPreservingClip, ClippedWeight, SoftGate, GeometricClip),
    KLCov,  # |logp - old_logp| has subgradient 0 at 0
    *(TokenRatio, SequenceRatio),
)
NOT_PLAIN = {
    ClipCov: "it takes the gradient of the tokens it draws",
    ReinforceTempered: "tempered rows get coef * logp, without an advantage",
}


@law
def plain_gradient_at_ratio_one(objective: Objective, batch: Batch) -> None:
    """Where the policy has not moved, dJ/dlogp = weight * correction * advantage (penalties aside)."""
    for rule in (objective.ratio, objective.surrogate):
        _require_promise(rule)
    bare = replace(objective, penalties=())
    state = {k: x for k, x in used_state(objective, batch).items() if not k.startswith("penalties.")}
    found = outcome(bare, dict(batch) | {"logp": batch["old_logp"], "entropy": batch["old_entropy"]}, state)
    now, rows = found.now, found.prepared
    whole = (rows["selected"] == rows["mask"]) | ~rows["selected"].any(-1, keepdim=True)
    if isinstance(_innermost(objective.surrogate), GeometricClip) and not whole.all():
        raise DoesNotApply("GeometricClip promises it for rows without dropped tokens")
    expected = now.shaped(rows) * call("aggregate", now.aggregate, rows, now.count(rows))
    if now.correction is not None:
        expected = expected * call("correction", now.correction, rows)
    close("weights", found.weights, torch.where(rows["selected"], expected, 0.0))


def _innermost(surrogate: Any) -> Any:
    return _innermost(surrogate.surrogate) if isinstance(surrogate, EntropyRatioClip) else surrogate


def _require_promise(rule: Any) -> None:
    inner = _innermost(rule)
    if isinstance(rule, EntropyRatioClip) and is_number(rule.low) and not rule.low < 1 < rule.high:
        raise DoesNotApply("the band of EntropyRatioClip leaves out 1")
    if type(inner) in NOT_PLAIN:
        raise DoesNotApply(f"{name_of(inner)} does not promise it: {NOT_PLAIN[type(inner)]}")
    if not isinstance(inner, PLAIN_AT_RATIO_ONE) and not getattr(inner, "plain_at_ratio_one", False):
        raise DoesNotApply(f"{name_of(inner)} does not promise it (plain_at_ratio_one = True does)")


@law
def dropped_tokens_get_no_gradient(objective: Objective, batch: Batch) -> None:
    """A token that selection drops has weight 0."""
    found = outcome(objective, batch, used_state(objective, batch))
    dropped = ~found.prepared["selected"]
    for x in (found.weights, found.entropy_weights):
        require(not x[dropped].any(), "weight 0 at dropped tokens", x[dropped].tolist())
