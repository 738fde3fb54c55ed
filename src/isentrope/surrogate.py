"""Surrogates: from log-ratio and advantage, both [B,T], to the objective J per token, which is maximised.

r = exp(clip(log_ratio, -20, 20)) as `masked.ratio`. A rule that clips offers `clipped(log_ratio, advantage) -> (low,
high)`, the tokens beyond each side of its band where the clip bites; `only_off_policy` says in a few words what does
nothing while the ratio is 1. `elementwise = True` promises that a token's J depends on its own log-ratio and advantage
alone, linearly on its logp where that is read: what is the same for all tokens of a row may then come as [B,1].
`ignores_ratio = True`: log_ratio is not looked at, and may be None.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from isentrope import masked
from isentrope.columns import invoke
from isentrope.control import Number, is_number, require, require_number

__all__ = [
    "ClipCov",
    "ClippedWeight",
    "EntropyRatioClip",
    "GeometricClip",
    "GradientPreservingClip",
    "ImportanceWeighted",
    "KLCov",
    "PPOClip",
    "PolicyGradient",
    "ReinforceTempered",
    "SoftGate",
]

Sides = tuple[Tensor, Tensor]


def beyond(r: Tensor, advantage: Tensor, low: float, high: float) -> Sides:
    """Tokens that PPO's clip drops: A < 0 and r < 1 - low; A > 0 and r > 1 + high (strict)."""
    return (advantage < 0) & (r < 1 - low), (advantage > 0) & (r > 1 + high)


def _require_band(rule: Any) -> None:
    require_number(rule, "low", 0, 1)
    require_number(rule, "high", 0)


@dataclass(frozen=True)
class PolicyGradient:
    """J = A logp with gradient A grad logp: no ratio, no clip.  Source: REINFORCE; RLOO, arXiv:2402.14740."""

    elementwise = True
    ignores_ratio = True

    def __call__(self, log_ratio: Tensor | None, advantage: Tensor, *, logp: Tensor) -> Tensor:
        return advantage * logp


@dataclass(frozen=True)
class ImportanceWeighted:
    """J = r A."""

    elementwise = True

    def __call__(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return masked.ratio(log_ratio) * advantage


@dataclass(frozen=True)
class PPOClip:
    """J = min(r A, clip(r, 1 - low, 1 + high) A), and with `dual` for A < 0: max(J, dual A).

    low in [0, 1], high >= 0, dimensionless; high > low is clip-higher (DAPO .2/.28). dual: > 1, None is off (verl 3,
    DAPO's scripts 10).
    Source: Schulman et al., PPO, arXiv:1707.06347, eq. 7; DAPO, arXiv:2503.14476; dual clip: Ye et al.,
    arXiv:1912.09729.
    """

    low: Number = 0.2
    high: Number = 0.2
    dual: float | None = None
    elementwise = True
    only_off_policy = "the clip"

    def __post_init__(self) -> None:
        _require_band(self)
        require(self, "dual", self.dual is None or self.dual > 1, "None or a number above 1")

    def __call__(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        r = masked.ratio(log_ratio)
        x = r.detach()
        limit = torch.where(advantage > 0, x.clamp(max=1 + self.high), x.clamp(1 - self.low, self.dual))
        return masked.limited(r, limit) * advantage

    def clipped(self, log_ratio: Tensor, advantage: Tensor) -> Sides:
        return beyond(masked.ratio(log_ratio), advantage, self.low, self.high)


@dataclass(frozen=True)
class GradientPreservingClip:
    """PPO's clip with bounded gradients for what it drops; u = exp(logp - sg(logp)).

    r < 1 - low and A < 0: keep_low (1 - low) u A; r > 1 + high and A > 0: keep_high (1 + high) u A; else r A. Strict
    inequalities. keep_low (beta1) acts on unlikely tokens of bad rows, keep_high (beta2) on unlikely tokens of good
    rows; 0 drops as PPO does (and J is 0 there), 1 is GPPO. Source: CE-GPPO, arXiv:2509.20712, eq. 8; GPPO,
    arXiv:2508.07629. The dual clip and the SFT term of the reference code are left out.
    """

    low: Number = 0.2
    high: Number = 0.2
    keep_low: Number = 1.0
    keep_high: Number = 1.0
    elementwise = True
    only_off_policy = "the clip and the gradients it keeps"

    def __post_init__(self) -> None:
        _require_band(self)
        require_number(self, "keep_low", 0)
        require_number(self, "keep_high", 0)

    def __call__(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        r, u = masked.ratio(log_ratio), masked.unit(log_ratio)
        low, high = beyond(r, advantage, self.low, self.high)
        kept_low, kept_high = self.keep_low * (1 - self.low) * u, self.keep_high * (1 + self.high) * u
        return torch.where(low, kept_low, torch.where(high, kept_high, r)) * advantage

    def clipped(self, log_ratio: Tensor, advantage: Tensor) -> Sides:
        return beyond(masked.ratio(log_ratio), advantage, self.low, self.high)


@dataclass(frozen=True)
class ClippedWeight:
    """J = sg(clip(r, 1 - low, 1 + high)) A logp: no token loses its gradient, its weight is capped.

    low: None is off. high: an offset; a framework's absolute cap is high = cap - 1; None is off.
    Source: MiniMax-M1 (CISPO), arXiv:2506.13585.
    """

    low: Number | None = None
    high: Number | None = 0.2
    elementwise = True
    only_off_policy = "the cap on the weight"

    def __post_init__(self) -> None:
        for field in ("low", "high"):
            if getattr(self, field) is not None:
                require_number(self, field, 0)

    def __call__(self, log_ratio: Tensor, advantage: Tensor, *, logp: Tensor) -> Tensor:
        floor, cap = self._bounds()
        return masked.ratio(log_ratio.detach()).clamp(floor, cap) * advantage * logp

    def clipped(self, log_ratio: Tensor, advantage: Tensor) -> Sides:
        r, acts = masked.ratio(log_ratio), advantage != 0
        floor, cap = self._bounds()
        return acts & (r < floor), acts & (r > cap)

    def _bounds(self) -> tuple[float, float]:
        return 0.0 if self.low is None else 1 - self.low, torch.inf if self.high is None else 1 + self.high


@dataclass(frozen=True)
class SoftGate:
    """J = A (4 / tau) sigmoid(tau (r - 1)), tau = tau_pos for A > 0, tau_neg for A <= 0: the gradient fades, it is
    never cut.

    Source: SAPO, arXiv:2511.20347; tau 1.0 and 1.05.
    """

    tau_pos: Number = 1.0
    tau_neg: Number = 1.05
    elementwise = True
    only_off_policy = "the soft gate"

    def __post_init__(self) -> None:
        for field in ("tau_pos", "tau_neg"):
            require_number(self, field, 0)
            require(self, field, getattr(self, field) != 0, "above 0")

    def __call__(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        tau = torch.where(advantage > 0, self.tau_pos, advantage.new_full((), self.tau_neg))
        gate = torch.addcmul(-tau, masked.ratio(log_ratio), tau).sigmoid_()
        return gate * (4 / tau).mul_(advantage)


@dataclass(frozen=True)
class GeometricClip:
    """J = A exp(mean_t c_t) for every token of the row; c_t = min(log r, clip) where A > 0, else max(log r, -clip),
    log r bounded at 20 nats first.

    With the mean over rows of token means, a row's J is A exp(mean_t c_t). Source: GMPO, arXiv:2507.20673; clip .4.
    """

    clip: Number = 0.4
    only_off_policy = "the clip"

    def __post_init__(self) -> None:
        require_number(self, "clip", 0)

    def __call__(self, log_ratio: Tensor, advantage: Tensor, *, mask: Tensor) -> Tensor:
        bounded = masked.bound(log_ratio)
        x = bounded.detach()
        limit = torch.where(advantage > 0, x.clamp(max=self.clip), x.clamp(min=-self.clip))
        return advantage * masked.row_mean(masked.limited(bounded, limit), mask).exp()[:, None]

    def clipped(self, log_ratio: Tensor, advantage: Tensor) -> Sides:
        return (advantage < 0) & (log_ratio < -self.clip), (advantage > 0) & (log_ratio > self.clip)


Scope = Literal["batch", "micro_batch"]


def covariance(logp: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Each token's share of the covariance of log-probability and advantage: (logp - mean)(A - mean), detached,
    [B,T]; exactly 0 for equal advantages.
    """
    return masked.centred(logp.detach(), mask) * masked.centred(advantage.detach(), mask)


def _require_scope(rule: "ClipCov | KLCov") -> None:
    require(rule, "scope", rule.scope in ("batch", "micro_batch"), '"batch" or "micro_batch"')


@dataclass(frozen=True)
class ClipCov:
    """PPO's clip; besides, a few tokens of high covariance get J = 0 and no gradient, and stay in the denominator.

    Of the tokens with cov_low < Cov < cov_high that PPO's clip does not drop, min(eligible, max(1, floor(ratio N)))
    are drawn, N all tokens.
    scope: "batch" takes Cov from old_logp over the rollout batch and draws in `prepare`, where no token is clipped
    yet (a drawn token that a later update clips stays without gradient; ours, so that the draw does not depend on
    micro-batches); "micro_batch" takes the current logp over the rows at hand, as the reference code does. The draw
    is pseudo-random from old_logp and `seed`, so it follows any permutation of the rows (ours).
    Source: The Entropy Mechanism, arXiv:2505.22617; cov bounds 1 and 5, ratio 2e-4.
    """

    low: Number = 0.2
    high: Number = 0.2
    cov_low: Number = 1.0
    cov_high: Number = 5.0
    ratio: Number = 2e-4
    scope: Scope = "batch"
    seed: int = 0
    only_off_policy = "the clip on ratios (not the one on covariances)"

    def __post_init__(self) -> None:
        _require_band(self)
        require_number(self, "ratio", 0, 1)
        _require_scope(self)

    def prepare(self, *, advantage: Tensor, old_logp: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """The tokens drawn from the whole rollout batch."""
        if self.scope == "micro_batch":
            return {}
        return {"drawn": self.draw(self.eligible(covariance(old_logp, advantage, mask), mask), old_logp, mask)}

    def __call__(
        self,
        log_ratio: Tensor,
        advantage: Tensor,
        *,
        logp: Tensor,
        old_logp: Tensor,
        mask: Tensor,
        drawn: Tensor | None = None,
    ) -> Tensor:
        if drawn is None:
            low, high = self.clipped(log_ratio, advantage)
            unclipped = mask & ~(low | high)
            drawn = self.draw(self.eligible(covariance(logp, advantage, mask), unclipped), old_logp, mask)
        return masked.fill(PPOClip(self.low, self.high)(log_ratio, advantage), ~drawn)

    def eligible(self, cov: Tensor, mask: Tensor) -> Tensor:
        """The tokens that may be drawn: covariance strictly inside the bounds."""
        return mask & (cov > self.cov_low) & (cov < self.cov_high)

    def draw(self, eligible: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
        """min(eligible, max(1, floor(ratio N))) of the eligible tokens, as a bool tensor."""
        return masked.draw(old_logp, eligible, masked.share(self.ratio, int(mask.sum()), minimum=1), self.seed)

    def clipped(self, log_ratio: Tensor, advantage: Tensor) -> Sides:
        return beyond(masked.ratio(log_ratio), advantage, self.low, self.high)


@dataclass(frozen=True)
class KLCov:
    """J = r A, and for the top max(1, floor(k N)) tokens by covariance also - coef |logp - old_logp|.

    k: a fraction of the N tokens of the batch, not a percent. scope: "batch" takes Cov from old_logp over the rollout
    batch, "micro_batch" from the current logp over the rows at hand (reference code). Where covariances are equal, as
    all are in a batch of equal advantages, the choice is pseudo-random from old_logp and so follows any permutation of
    the rows (ours). Source: The Entropy Mechanism, arXiv:2505.22617; k 2e-3 (7B), 2e-4 (32B), coef 1.
    """

    k: Number = 2e-3
    coef: Number = 1.0
    scope: Scope = "batch"
    only_off_policy = "the KL term"

    def __post_init__(self) -> None:
        require_number(self, "k", 0, 1)
        require_number(self, "coef", 0)
        _require_scope(self)

    def prepare(self, *, advantage: Tensor, old_logp: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """The tokens that carry the KL term, from the whole rollout batch."""
        if self.scope == "micro_batch":
            return {}
        return {"penalised": self.penalise(old_logp, advantage, mask, old_logp)}

    def __call__(
        self,
        log_ratio: Tensor,
        advantage: Tensor,
        *,
        logp: Tensor,
        old_logp: Tensor,
        mask: Tensor,
        penalised: Tensor | None = None,
    ) -> Tensor:
        if penalised is None:
            penalised = self.penalise(logp, advantage, mask, old_logp)
        return masked.ratio(log_ratio) * advantage - self.coef * masked.fill((logp - old_logp).abs(), penalised)

    def penalise(self, logp: Tensor, advantage: Tensor, mask: Tensor, old_logp: Tensor) -> Tensor:
        """The top max(1, floor(k N)) tokens by covariance, as a bool tensor."""
        cov, count = covariance(logp, advantage, mask), masked.share(self.k, int(mask.sum()), minimum=1)
        return masked.top(cov, mask, count, tie=old_logp)


class _Around:
    """What a rule around another surrogate passes on: the columns that it prepares, and the tokens that it clips."""

    surrogate: Any
    wraps = ("surrogate",)

    def prepare(self, **columns: Tensor) -> dict[str, Tensor]:
        """What the wrapped surrogate prepares."""
        return invoke(self.surrogate, columns, method="prepare") if hasattr(self.surrogate, "prepare") else {}

    def clipped(self, log_ratio: Tensor, advantage: Tensor) -> Sides:
        """The wrapped surrogate's; none where it has no clip."""
        if hasattr(self.surrogate, "clipped"):
            return self.surrogate.clipped(log_ratio, advantage)
        nothing = torch.zeros_like(log_ratio, dtype=torch.bool)
        return nothing, nothing


@dataclass(frozen=True)
class EntropyRatioClip(_Around):
    """Around another surrogate: the gradient is 0 (the value kept) where (entropy + 1e-8) / (old_entropy + 1e-8) is
    outside the open band (low, high).

    Source: ERC, arXiv:2512.05591; band (.95, 1.05).
    """

    surrogate: Any = PPOClip()
    low: Number = 0.95
    high: Number = 1.05
    detached = ("entropy",)
    only_off_policy = "the entropy-ratio clip"

    def __post_init__(self) -> None:
        require_number(self, "low", 0)
        require_number(self, "high", 0)
        if is_number(self.low) and is_number(self.high):
            require(self, "high", self.low < self.high, f"above low = {self.low}")

    def __call__(
        self, log_ratio: Tensor, advantage: Tensor, *, entropy: Tensor, old_entropy: Tensor, **columns: Tensor
    ) -> Tensor:
        given = {"entropy": entropy, "old_entropy": old_entropy} | columns
        objective: Tensor = invoke(self.surrogate, given, log_ratio, advantage)
        change = (entropy.detach() + masked.ENTROPY_EPS) / (old_entropy + masked.ENTROPY_EPS)
        return torch.where((change > self.low) & (change < self.high), objective, objective.detach())


@dataclass(frozen=True)
class ReinforceTempered(_Around):
    """Around another surrogate: rows sampled at another temperature get the REINFORCE term J = coef logp instead.

    With `TemperedSuccesses` these are successes, drawn from a flatter or sharper policy, which pull entropy up or down.
    coef: 0 leaves them without gradient. The advantage's size does not enter, as in the reference code.
    Source: AEPO, arXiv:2510.08141.
    """

    surrogate: Any = PPOClip()
    coef: Number = 1.0

    def __post_init__(self) -> None:
        require_number(self, "coef", 0)

    def __call__(
        self, log_ratio: Tensor, advantage: Tensor, *, logp: Tensor, tempered: Tensor, **columns: Tensor
    ) -> Tensor:
        objective = invoke(self.surrogate, {"logp": logp, "tempered": tempered} | columns, log_ratio, advantage)
        return torch.where(tempered[:, None], self.coef * logp, objective)
