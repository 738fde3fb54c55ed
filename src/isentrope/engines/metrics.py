"""What every engine logs of a rollout batch and of an update: the same numbers under the same keys, whatever the host.

A pool has `mean(name, numerator, denominator)` with scalars of one part of the data; the logged value is
sum(numerators) / sum(denominators) over all parts, so that it is the same for any split into micro-batches and ranks.

| key | meaning |
| --- | --- |
| `entropy/current_exact` | exact softmax entropy of the policy at the update, nats; where the update computes it |
| `entropy/old_exact` | the same of the policy at the rollout; where the engine takes that pass |
| `entropy/current_exact/<task>`, `reward/<task>` | by the dataset's task, with more than one task |
| `clip/low`, `clip/high` | share of counted tokens beyond the surrogate's lower and upper bound, where it acts |
| `ratio/mean`, `kl_old` | mean of the ratio, and k3 estimate of the KL divergence from the rollout's policy, nats |
| `kl_rollout` | the same between the sampler and the trainer's pass, where the sampler reports log-probabilities |
| `tokens/selected`, `tokens/excluded` | share of tokens with a gradient; share left out for a non-finite column |
| `kl` | k3 estimate of the KL divergence from the reference, where there is one, nats |
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from isentrope import masked
from isentrope.aggregate import Totals
from isentrope.correction import mismatch
from isentrope.objective import Objective
from isentrope.penalty import reference_kl

_SUMS = Totals(1.0, 1.0, 1.0)  # step_metrics divides by the totals: these leave the sums as they are
_NAMES = {
    "ratio": "ratio/mean",
    "kl_old": "kl_old",
    "clip_low": "clip/low",
    "clip_high": "clip/high",
    "kl_rollout": "kl_rollout",
}


class Pool(Protocol):
    """What collects numerators and denominators."""

    def mean(self, name: str, numerator: Tensor, denominator: Tensor | float) -> Any:
        """Add to the two sums of `name`."""


def log_rollout(pool: Pool, rows: Mapping[str, Tensor], tasks: Sequence[str]) -> None:
    """What is known of a rollout batch, of prepared rows."""
    mask = rows["mask"]
    if "old_entropy" in rows:
        pool.mean("entropy/old_exact", masked.fill(rows["old_entropy"], mask).sum(), mask.sum())
    for name, own in by_task(rows, tasks):
        pool.mean(f"reward/{name}", masked.fill(rows["reward"], own).sum(), own.sum())
    if "tempered" in rows:
        for name, own in (("tempered", rows["tempered"]), ("untempered", ~rows["tempered"])):
            pool.mean(f"rollout/{name}_reward", masked.fill(rows["reward"], own).sum(), own.sum())


def log_update(pool: Pool, now: Objective, rows: Mapping[str, Tensor], tasks: Sequence[str]) -> dict[str, Tensor]:
    """What is known of a micro-batch: prepared rows with the current policy's columns. Returns `step_metrics`' sums."""
    mask, counted = rows["mask"], rows["counted"].sum()
    sums = step_metrics(now, rows, _SUMS)
    for key in _NAMES.keys() & sums.keys():
        pool.mean(_NAMES[key], sums[key], counted)
    if "entropy" in rows:
        _log_entropy(pool, rows, tasks)
    pool.mean("tokens/selected", rows["selected"].sum().float(), mask.sum())
    pool.mean("tokens/excluded", sums["excluded"], mask.sum() + rows["excluded"].sum())
    if "ref_logp" in rows:
        pool.mean("kl", masked.fill(reference_kl(rows["logp"] - rows["ref_logp"], "k3"), mask).sum(), mask.sum())
    return sums


@torch.no_grad()
def step_metrics(now: Objective, rows: Mapping[str, Tensor], totals: Totals) -> dict[str, Tensor]:
    """The few metrics that every step logs: scalars of one slice of prepared rows that add up to the batch's value.

    All are sums over counted tokens divided by the batch's counted tokens, that is pooled token means: entropy,
    old_entropy (exact, where the columns are there), old_surprisal, ratio, kl_old, kl_rollout, no_rollout_logp as in
    `diagnostics.ratios`; clip_low, clip_high: share of tokens that the surrogate's lower and upper bound act on;
    excluded: share of tokens left out as not finite.
    """
    clean = now.cleaned(rows)
    counted = clean["counted"] & clean["selected"]
    weight = counted.to(clean["logp"].dtype)
    scale = masked.reciprocal(totals.tokens)

    def share(x: Tensor) -> Tensor:
        if x.dtype == torch.bool:
            return (x & counted).sum() * scale
        return (x.nan_to_num(0.0, 0.0, 0.0) * weight).sum() * scale

    found = {"excluded": (clean["excluded"] | (rows["mask"] & ~clean["mask"])).sum() * scale}
    if "old_logp" in clean:
        log_ratio = clean["logp"] - clean["old_logp"]
        found |= {
            "ratio": share(masked.ratio(log_ratio)),
            "kl_old": share(reference_kl(log_ratio, "k3")),
            "old_surprisal": share(-clean["old_logp"]),
        }
    found |= {name: share(clean[name]) for name in ("entropy", "old_entropy") if name in clean}
    if "rollout_logp" in clean:
        gap = mismatch(clean["old_logp"], clean["rollout_logp"])
        found |= {
            "kl_rollout": share(reference_kl(-gap, "k3")),
            "no_rollout_logp": share(~torch.isfinite(clean["rollout_logp"])),
        }
    sides = now.clipped(clean)
    return found if sides is None else found | {"clip_low": share(sides[0]), "clip_high": share(sides[1])}


def _log_entropy(pool: Pool, rows: Mapping[str, Tensor], tasks: Sequence[str]) -> None:
    mask = rows["mask"]
    entropy = masked.fill(rows["entropy"], mask)
    pool.mean("entropy/current_exact", entropy.sum(), mask.sum())
    for name, own in by_task(rows, tasks):
        tokens = masked.fill(mask.sum(-1), own).sum()
        pool.mean(f"entropy/current_exact/{name}", masked.fill(entropy.sum(-1), own).sum(), tokens)


def by_task(rows: Mapping[str, Tensor], tasks: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Each task's name and its rows [B] as a mask, where there is more than one task."""
    if "task" in rows and len(tasks) > 1:
        for number, name in enumerate(tasks):
            yield name, rows["task"] == number
