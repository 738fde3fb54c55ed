"""The KL to the reference model is held at a target: a controller of your own.

It may stand in the place of any number; here that is the coefficient of a penalty, as in Ziegler et al.,
arXiv:1909.08593, sec. 2.2. A controller observes every rollout batch once, by the columns it names, and keeps a flat
dict of floats, which is logged and saved with the checkpoint.

    isentrope show examples/adaptive_kl.py:held
    isentrope check examples/adaptive_kl.py:held
    isentrope train --objective examples/adaptive_kl.py:held
"""

from dataclasses import dataclass, replace

from isentrope import masked, presets
from isentrope.penalty import ReferenceKL, reference_kl


@dataclass(frozen=True)
class AdaptiveKL:
    """x <- x (1 + rate clip(KL / target - 1, -1, 1)), KL: token mean of the k3 estimate of KL(old || reference)."""

    start: float = 0.01
    target: float = 0.05  # nats a token
    rate: float = 0.1

    def init(self):
        return {"value": self.start}

    def observe(self, state, *, old_logp, ref_logp, mask):
        kl = float(masked.mean(reference_kl(old_logp - ref_logp, "k3"), mask))
        error = min(max(kl / self.target - 1, -1.0), 1.0) if mask.any() else 0.0
        return {"value": state["value"] * (1 + self.rate * error)}

    def value(self, state):
        return state["value"]


held = replace(presets.ce_gppo, penalties=(ReferenceKL(coef=AdaptiveKL()),))
