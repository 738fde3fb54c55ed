"""A clip that fades where PPO's cuts: a surrogate of your own.

PPO's clip treats a token just outside the band like one far outside: both lose their gradient. Here it halves with
every `half` nats beyond the band: near 0 that is PPO, far above 1 there is no clip. The papers differ in what becomes
of clipped tokens; this is a line between them.

    isentrope show examples/faded_clip.py:faded
    isentrope check examples/faded_clip.py:faded
    isentrope train --objective examples/faded_clip.py:faded
"""

import math
from dataclasses import dataclass, replace

import torch

from isentrope import masked, presets


@dataclass(frozen=True)
class FadedClip:
    """J = sg(r 2^(-d / half)) A logp; d: nats by which log r is beyond the bound at which PPO clips, else 0."""

    low: float = 0.2
    high: float = 0.28
    half: float = 0.1  # nats; a controller can stand here too
    only_off_policy = "the fading"  # said before a training in which every ratio is 1

    def __call__(self, log_ratio, advantage, *, logp):
        over, under = log_ratio - math.log(1 + self.high), math.log(1 - self.low) - log_ratio
        d = torch.where(advantage > 0, over, under).clamp(min=0)
        weight = masked.ratio(log_ratio) * torch.exp2(-d / self.half)
        return weight.detach() * advantage * logp


faded = replace(presets.dapo, surrogate=FadedClip())
