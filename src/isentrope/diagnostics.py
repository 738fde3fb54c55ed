"""Measurements of a step, for any objective: functions of prepared rows and the current policy's columns."""

from collections.abc import Callable, Mapping

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
    return found | _clip_shares(now, clean, share)


def _clip_shares(now: Objective, clean: dict[str, Tensor], share: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    if not hasattr(now.surrogate, "clipped"):
        return {}
    log_ratio = now._run("ratio", now.ratio, clean, ())
    low, high = now.surrogate.clipped(log_ratio, now._shape(clean))
    return {"clip_low": share(low), "clip_high": share(high)}
