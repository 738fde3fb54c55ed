"""Measurements of a step, for any objective: functions of prepared rows and the current policy's columns."""

from collections.abc import Mapping

import torch
from torch import Tensor

from isentrope import masked
from isentrope.aggregate import Totals
from isentrope.correction import mismatch
from isentrope.objective import Objective
from isentrope.penalty import reference_kl


@torch.no_grad()
def step_metrics(now: Objective, rows: Mapping[str, Tensor], totals: Totals) -> dict[str, Tensor]:
    """Metrics of one slice of prepared rows with `logp` (and `entropy`); each is a scalar, and slices add up to the
    batch's value.

    All are sums over counted tokens divided by the batch's counted tokens, that is pooled token means:
    entropy: exact, current policy (nats; only with the column `entropy`).  old_entropy: exact, old policy (only with
    that column).
    old_surprisal: -old_logp, an estimate of the old policy's entropy.  ratio: exp(logp - old_logp).  kl_old: k3
    estimate of KL(current || old), nats.
    clip_low, clip_high: share of tokens that the surrogate's lower and upper bound act on.  excluded: share of tokens
    left out as not finite.
    kl_rollout: mean log(old / rollout) as k3, and no_rollout_logp: share of tokens without the sampler's
    log-probability (only with `rollout_logp`).
    """
    clean = now._for_loss(rows)
    counted = clean["counted"] & clean["selected"]
    scale = masked.reciprocal(totals.tokens)

    def share(x: Tensor) -> Tensor:
        x = x.float() if x.dtype == torch.bool else x
        return masked.fill(x, counted & torch.isfinite(x)).sum() * scale

    found = {"excluded": (clean["excluded"] | (rows["mask"] & ~torch.isfinite(rows["logp"]))).sum() * scale}
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
    sides = _sides(now, clean)
    return found if sides is None else found | {"clip_low": share(sides[0]), "clip_high": share(sides[1])}


@torch.no_grad()
def clip_sides(now: Objective, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    """Tokens that the surrogate's lower and upper bound act on, two bool [B,T]; None for one that does not clip."""
    return _sides(now, now._for_loss(rows))


def _sides(now: Objective, clean: dict[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    if not hasattr(now.surrogate, "clipped"):
        return None
    low, high = now.surrogate.clipped(now._run("ratio", now.ratio, clean, ()), now._shape(clean))
    return low, high
