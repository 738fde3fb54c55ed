"""Who moves the entropy: measurements of rollout batches and updates, for any objective, a user's own included.

A measurement is a function of rows (columns [B] and [B,T], mask included), which may hold `weight`, dJ/dlogp under
any objective (`judged` adds it). It returns a tally (`isentrope.tally`), which adds up over micro-batches, ranks,
chunks of a dump and steps; `summary` reads the numbers off. Entropies and KL are in nats, at the temperature at which
the log-probabilities were taken, over the mask. "entropy" is exact and of the current policy, "old_entropy" exact and
of the old one; "surprisal" and "old_surprisal" are -logp, an estimate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from isentrope import masked, theory
from isentrope.aggregate import Totals
from isentrope.correction import mismatch
from isentrope.objective import Objective
from isentrope.penalty import reference_kl
from isentrope.surrogate import beyond
from isentrope.tally import Tally, merge, tally

Rows = Mapping[str, Tensor]

QUADRANTS = ("PA&HP", "PA&LP", "NA&HP", "NA&LP")  # advantage positive or negative, probability high (L > 0) or low
ENTROPIES: tuple[str, ...] = ("entropy", "old_entropy")
NUM_TENTHS = 10  # bins of probability: [0, .1), [.1, .2), ...
POSITION_EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)  # tokens

# -- tokens and bins --------------------------------------------------------------------------------


class Tokens(dict[str, Tensor]):
    """The columns of a batch at the mask's tokens, [N] each; every measurement takes them in place of rows."""


def tokens(rows: Rows) -> Tokens:
    """Columns [B,T] and [B] at the mask's tokens, [N] each, and `position`, counted over the mask's tokens of a row."""
    if isinstance(rows, Tokens):
        return rows
    mask = rows["mask"]
    place = mask.flatten().nonzero().squeeze(1)
    row = place.div(mask.shape[1], rounding_mode="floor")
    found = {name: x.detach() for name, x in rows.items() if "/" not in name and name != "mask"}
    wide = {name: x.flatten()[place] for name, x in found.items() if x.shape == mask.shape}
    narrow = {name: x[row] for name, x in found.items() if x.ndim == 1}
    return Tokens(wide | narrow | {"position": (mask.cumsum(-1, dtype=torch.int32) - 1).flatten()[place]})


def position_bin(position: Tensor) -> Tensor:
    """The bin of POSITION_EDGES that a position falls in."""
    return torch.bucketize(position, torch.tensor(POSITION_EDGES, device=position.device), right=True) - 1


def probability_bin(logp: Tensor) -> Tensor:
    """The tenth of probability that exp(logp) falls in, 0 to 9; the shape of logp. Not finite counts as 0."""
    p = masked.fill(logp, torch.isfinite(logp), -torch.inf).exp()
    return (p * NUM_TENTHS).long().clamp(0, NUM_TENTHS - 1)


# -- entropy ----------------------------------------------------------------------------------------


@torch.no_grad()
def entropy(rows: Rows) -> Tally:
    """Exact entropy and its estimates: pooled token means overall, by task, by position and by tenth of probability.

    Names: "entropy", "old_entropy", "surprisal", "old_surprisal" (as columns allow), and each with "/task",
    "/position", "/probability". Probability is the current policy's where `logp` is there, else the old one's.
    """
    found = tokens(rows)
    values = {name: found[name] for name in ENTROPIES if name in found}
    values |= {new: -found[old] for new, old in (("surprisal", "logp"), ("old_surprisal", "old_logp")) if old in found}
    return tally(values) + _binned(values, found, "logp" if "logp" in found else "old_logp")


def _binned(values: Rows, found: Tokens, logp: str) -> Tally:
    whole = tally(_suffixed(values, "position"), position_bin(found["position"]), len(POSITION_EDGES))
    if logp in found:
        whole = whole + tally(_suffixed(values, "probability"), probability_bin(found[logp]), NUM_TENTHS)
    return whole + _by_task(values, found.get("task"))


def _by_task(values: Rows, task: Tensor | None) -> Tally:
    if task is None or not len(task):
        return Tally()
    return tally(_suffixed(values, "task"), task, int(task.max()) + 1)


def _suffixed(values: Rows, suffix: str) -> dict[str, Tensor]:
    return {f"{name}/{suffix}": x for name, x in values.items()}


@torch.no_grad()
def group_entropy(rows: Rows) -> tuple[Tensor, Tensor | None]:
    """The entropy of each prompt's group, as GEPO measures it (-old_logp, token mean over the group), and its task.

    Needs all rows of a group. Returns [G] (NaN for a group without tokens) and [G] or None.
    """
    found, g = masked.group_token_mean(-rows["old_logp"], rows["mask"], rows["group"])
    if "task" not in rows:
        return found, None
    return found, rows["task"].new_zeros(g.count).index_copy_(0, g.index, rows["task"])


def heterogeneity(entropies: Tensor, task: Tensor) -> float:
    """Share of the variance of group entropies that lies between tasks: sum_k n_k (m_k - m)^2 / sum_g (H_g - m)^2.

    0 where all tasks live at one entropy, 1 where tasks alone explain it; this is what GEPO exists for, and what one
    global target cannot respect. NaN with fewer than two tasks or without variance.
    """
    known = torch.isfinite(entropies)
    h, kinds = entropies[known].double(), task[known]
    spread = (h - h.mean()).square().sum() if len(h) else torch.tensor(0.0)
    if len(torch.unique(kinds)) < 2 or float(spread) == 0:
        return math.nan
    own = masked.group_mean(h, masked.groups(kinds))
    return float((own - h.mean()).square().sum() / spread)


# -- who moves it -----------------------------------------------------------------------------------


@torch.no_grad()
def entropy_change(rows: Rows) -> Tally:
    """Predicted first-order entropy change of the update, per unit step, by quadrant, by task, and as a whole.

    Reads `logp`, `weight` (dJ/dlogp under any objective), `advantage` (its sign makes the quadrant) and `entropy`;
    without that L uses the token mean of -logp, and "exact" is 0 instead of 1. Names: "change" [4] in the order of
    QUADRANTS (tokens with A = 0 in none of them), "change/all" [1], "change/task". Sums, not means, are what adds up:
    `Tally.total`. The sampled tokens' own states are taken as independent, and S as 0 unless the column
    `squared_mass` gives it.
    """
    found = tokens(rows)
    logp, sign = found["logp"], found["advantage"]
    h = found["entropy"] if "entropy" in found else -logp.mean().expand_as(logp)
    everywhere = torch.ones_like(logp, dtype=torch.bool)
    change = theory.predicted_change(found["weight"], everywhere, logp, h, found.get("squared_mass"))
    quadrant = 2 * (sign < 0).long() + (logp + h <= 0).long()
    whole = tally({"change/all": change, "exact": torch.full_like(change, float("entropy" in found))})
    whole = whole + tally({"change": torch.where(sign != 0, change, 0)}, quadrant, len(QUADRANTS))
    return whole + _by_task({"change": change}, found.get("task"))


@torch.no_grad()
def measured_change(rows: Rows) -> Tally:
    """What the updates since the rollout did at the same tokens: "measured_change", mean of entropy - old_entropy."""
    found = tokens(rows)
    return tally({"measured_change": found["entropy"] - found["old_entropy"]})


# -- what clipping and other rules do ---------------------------------------------------------------


@torch.no_grad()
def judged(now: Objective, rows: Rows, totals: Totals) -> dict[str, Tensor]:
    """Prepared rows with what an objective makes of them, as columns [B,T] for the measurements.

    weight: dJ/dlogp. advantage: after all shaping. policy_weight: the weight without the penalties' share.
    free_weight: the same with r A for a surrogate. plain_weight: that of PPO's clip at .2/.2, on the prepared
    advantage, uncorrected. clipped_low, clipped_high: tokens beyond the surrogate's bounds, where it has some.
    """
    clean, weight = now.cleaned(rows), now.weights(rows, totals)
    r, plain = masked.ratio(now.log_ratio(clean)), clean["advantage"]
    shaped, sides = now.shaped(clean), now.clipped(clean)
    low, high = beyond(r, plain, 0.2, 0.2)
    columns = {
        "weight": weight,
        "advantage": shaped,
        "policy_weight": replace(now, penalties=()).weights(rows, totals) if now.penalties else weight,
        "free_weight": r * shaped * now.scale(clean, totals),
        "plain_weight": masked.fill(r * plain, ~(low | high)) * replace(now, correction=None).scale(clean, totals),
    }
    return clean | columns | ({} if sides is None else {"clipped_low": sides[0], "clipped_high": sides[1]})


@torch.no_grad()
def clipping(rows: Rows) -> Tally:
    """Tokens that the surrogate clips on each side, and the gradient that they lost; rows as `judged` returns them.

    "clipped" [2]: share of selected tokens beyond the (lower, upper) bound. "gradient": sum of |free_weight|, and
    "lost_gradient" [2]: of |free_weight - policy_weight| at the clipped ones. Empty where the surrogate has no bounds.
    """
    found = tokens(rows)
    if "clipped_low" not in found:
        return Tally()
    chosen = found["selected"]
    lost = (found["free_weight"] - found["policy_weight"]).abs()
    sides = [found["clipped_low"] & chosen, found["clipped_high"] & chosen]
    shares = [tally({"clipped": masked.fill(side.double(), chosen, torch.nan)}) for side in sides]
    losses = [tally({"lost_gradient": masked.fill(lost, side)}) for side in sides]
    gradient = tally({"gradient": found["free_weight"].abs()})
    return gradient + _side_by_side(shares, "clipped") + _side_by_side(losses, "lost_gradient")


def _side_by_side(parts: Sequence[Tally], name: str) -> Tally:
    return Tally({name: torch.cat([t.sums[name] for t in parts])}, {name: torch.cat([t.counts[name] for t in parts])})


@torch.no_grad()
def changed_tokens(rows: Rows) -> Tally:
    """Share of tokens whose weight differs from plain PPO's (see `judged`): "changed".

    A weight differs where it is off by more than 1e-4 of the larger of the two. 0 says that the rules do nothing here.
    The prepared advantage counts as unshaped: shaping that ran in `prepare` shows only in a comparison of objectives.
    """
    found = tokens(rows)
    mine, plain = found["weight"], found["plain_weight"]
    differs = (mine - plain).abs() > 1e-4 * torch.maximum(mine.abs(), plain.abs())
    return tally({"changed": differs.double()})


# -- policies against each other --------------------------------------------------------------------


@torch.no_grad()
def ratios(rows: Rows) -> Tally:
    """Ratios and KL to the old policy, the sampler and the reference, as columns allow.

    "ratio", "ratio*ratio" (see `effective_sample_size`), "kl_old" (k3 estimate of KL(current || old)), "kl_old_k1"
    (mean log-ratio), "kl_ref", "kl_rollout" (of the old policy to the sampler), "no_rollout_logp" (share of tokens
    without the sampler's log-probability).
    """
    found = tokens(rows)
    values: dict[str, Tensor] = {}
    if {"logp", "old_logp"} <= found.keys():
        log_ratio = found["logp"] - found["old_logp"]
        r = masked.ratio(log_ratio)
        values |= {
            "ratio": r,
            "ratio*ratio": r.square(),
            "kl_old": reference_kl(log_ratio, "k3"),
            "kl_old_k1": log_ratio,
        }
    if {"logp", "ref_logp"} <= found.keys():
        values["kl_ref"] = reference_kl(found["logp"] - found["ref_logp"], "k3")
    if {"old_logp", "rollout_logp"} <= found.keys():
        values["kl_rollout"] = reference_kl(-mismatch(found["old_logp"], found["rollout_logp"]), "k3")
        values["no_rollout_logp"] = (~torch.isfinite(found["rollout_logp"])).double()
    return tally(values)


def effective_sample_size(found: Tally) -> float:
    """(sum r)^2 / (N sum r^2) from a tally of `ratios`: 1 on-policy, towards 0 where few tokens carry all weight."""
    return found.mean("ratio") ** 2 / found.mean("ratio*ratio")


@torch.no_grad()
def advantage_covariance(rows: Rows) -> Tally:
    """Moments of advantage and old log-probability, for `Tally.covariance("logp", "advantage")` and its correlation.

    A positive covariance is what lowers entropy under a natural-gradient step.
    """
    found = tokens(rows)
    a, p = found["advantage"].double(), found["old_logp"].double()
    return tally({"advantage": a, "logp": p, "logp*advantage": p * a, "advantage*advantage": a * a, "logp*logp": p * p})


@torch.no_grad()
def sampler_mismatch(rows: Rows) -> Tally:
    """Where trainer and sampler disagree: "mismatch" = |log(old / rollout)| in nats and "bias" = its signed value.

    Overall, by position and by tenth of the trainer's probability; tokens without the sampler's log-probability are
    left out. Empty without the column `rollout_logp`.
    """
    found = tokens(rows)
    if "rollout_logp" not in found:
        return Tally()
    gap = torch.where(
        torch.isfinite(found["rollout_logp"]), mismatch(found["old_logp"], found["rollout_logp"]), torch.nan
    )
    values = {"mismatch": gap.abs(), "bias": gap}
    return tally(values) + _binned(values, found, "old_logp")


@torch.no_grad()
def numerical_clipping(rows: Rows, low: float = 0.2, high: float = 0.2) -> Tally:
    """What number formats alone clip: "clipped_numerically" [2], share of tokens with r < 1 - low and r > 1 + high.

    rows: of the first update after a rollout, where logp and old_logp are of the same weights and every ratio should
    be 1.
    """
    found = tokens(rows)
    r = masked.ratio(found["logp"] - found["old_logp"])
    parts = [tally({"clipped_numerically": side.double()}) for side in (r < 1 - low, r > 1 + high)]
    return _side_by_side(parts, "clipped_numerically")


def noise_scale(small: float, big: float, num_small: int, num_big: int) -> float:
    """Gradient noise scale tr(Sigma) / |G|^2 in rows: about the batch size at which noise and signal are equal.

    small, big: mean squared norms of gradients over num_small and num_big rows (McCandlish et al., arXiv:1812.06162,
    app. A.1). NaN where the estimate of |G|^2 is not positive, as happens when noise drowns the signal.
    """
    if num_small >= num_big:
        raise ValueError(f"num_small must be below num_big = {num_big}; found {num_small}")
    signal = (num_big * big - num_small * small) / (num_big - num_small)
    noise = (small - big) / (1 / num_small - 1 / num_big)
    return noise / signal if signal > 0 else math.nan


# -- all at once ------------------------------------------------------------------------------------


@torch.no_grad()
def update(now: Objective, rows: Rows, totals: Totals) -> Tally:
    """Every measurement of a slice of prepared rows with `logp` (and `entropy`) at one update; slices add up."""
    found = tokens(judged(now, rows, totals))
    measurements = [entropy, entropy_change, clipping, changed_tokens, ratios, advantage_covariance, sampler_mismatch]
    if {"entropy", "old_entropy"} <= found.keys():
        measurements.append(measured_change)
    return merge(measure(found) for measure in measurements)


def summary(found: Tally, tasks: Sequence[str] = ()) -> dict[str, float]:
    """The numbers of a tally of `update` under the names that a log shows; what was not measured is left out.

    `change/<quadrant>` are sums per unit step, `change_share/<quadrant>` their share of the sum of sizes.
    """
    numbers = {name: found.mean(name) for name in _MEANS if name in found}
    for name in ("entropy", "old_entropy"):
        for k, task in enumerate(tasks):
            if f"{name}/task" in found and k < len(found.sums[f"{name}/task"]):
                numbers[f"{name}/{task}"] = found.mean(f"{name}/task", k)
    if "ratio" in found:
        numbers["effective_sample_size"] = effective_sample_size(found)
    if "logp*advantage" in found:
        numbers["covariance"] = found.covariance("logp", "advantage")
        numbers["correlation"] = found.correlation("logp", "advantage")
    if "clipped" in found:
        gradient = found.total("gradient")
        for k, side in enumerate(("low", "high")):
            numbers[f"clipped/{side}"] = found.mean("clipped", k)
            numbers[f"lost_gradient/{side}"] = float(found.sums["lost_gradient"][k]) / gradient if gradient else 0.0
    return {name: x for name, x in (numbers | _quadrants(found)).items() if not math.isnan(x)}


_MEANS = (
    "entropy",
    "old_entropy",
    "surprisal",
    "old_surprisal",
    "measured_change",
    "changed",
    "ratio",
    "kl_old",
    "kl_ref",
    "kl_rollout",
    "no_rollout_logp",
    "mismatch",
    "bias",
)


def _quadrants(found: Tally) -> dict[str, float]:
    if "change" not in found:
        return {}
    parts = found.sums["change"]
    size = float(parts.abs().sum())
    numbers = {"change": found.total("change/all")}
    for k, name in enumerate(QUADRANTS):
        numbers[f"change/{name}"] = float(parts[k])
        numbers[f"change_share/{name}"] = float(parts[k]) / size if size else 0.0
    return numbers
