"""Rare steps count more where a problem is hard: a shaping rule with a statistic of the whole batch.

A success on a problem that is nearly always solved has little to teach; one on a problem that nearly always fails may
hang on a single unlikely token. So successes are raised by how rare the group's successes are, times how unlikely the
token is now. `prepare` sees whole groups, once a rollout batch. The call reads the current `logp`, so it runs at every
update, on any slice of the rows, and finds there what `prepare` returned.

    isentrope show examples/explore_hard.py:explore
    isentrope check examples/explore_hard.py:explore
    isentrope train --objective examples/explore_hard.py:explore
"""

from dataclasses import dataclass, replace

import torch

from isentrope import masked, presets


@dataclass(frozen=True)
class ExploreHard:
    """A > 0: A (1 + gain (1 - s) (1 - p)), else A; s: the group's mean reward, p: the token's probability."""

    gain: float = 1.0

    def prepare(self, *, reward, group):
        return {"solved": masked.group_mean(reward, masked.groups(group)).clamp(0, 1)}  # [B]

    def __call__(self, advantage, *, logp, solved):
        hard, rare = 1 - solved[:, None], 1 - logp.detach().exp()
        return torch.where(advantage > 0, advantage * (1 + self.gain * hard * rare), advantage)


explore = replace(presets.ce_gppo, shaping=(ExploreHard(),))
