"""Presets: a paper in three lines each, with its numbers. Docs: docs/papers.md says where each number stands.

Every preset is an `Objective`; `dataclasses.replace` makes another from it.
"""

from dataclasses import replace

from isentrope.advantage import (
    BatchWhitened,
    GeneralizedAdvantage,
    GroupCentred,
    GroupRelative,
    LeaveOneOut,
    QuantileBaseline,
    Signed,
    SoftOverlong,
)
from isentrope.aggregate import ConstantLength, SequenceMean, TokenMean
from isentrope.control import EntropyServo, EntropyStep, EntropySwitch
from isentrope.objective import Objective
from isentrope.penalty import EntropyBonus
from isentrope.ratio import SequenceRatio, TokenRatio
from isentrope.rollout import Rollout
from isentrope.select import HighEntropyTokens, NegativeGate, TemperedSuccesses, Untruncated, VaryingReward
from isentrope.shaping import Decorrelate, GroupEntropyGate, RescaleBySurprisal
from isentrope.surrogate import (
    ClipCov,
    ClippedWeight,
    EntropyRatioClip,
    GeometricClip,
    GradientPreservingClip,
    KLCov,
    PolicyGradient,
    PPOClip,
    ReinforceTempered,
    SoftGate,
)

_clip = PPOClip(low=0.2, high=0.2)
_base = Objective(advantage=GroupRelative(), ratio=TokenRatio(), surrogate=_clip, aggregate=TokenMean())
_higher = replace(_base, surrogate=PPOClip(low=0.2, high=0.28))

# Baselines
ppo = replace(_base, advantage=GeneralizedAdvantage())
grpo = replace(_base, aggregate=SequenceMean())
dr_grpo = replace(_base, advantage=GroupCentred(), aggregate=ConstantLength())
dapo = replace(_higher, select=(VaryingReward(),))
dapo_full = replace(
    _higher,
    advantage=SoftOverlong(GroupRelative(), buffer=4096),
    select=(VaryingReward(), Untruncated()),
    rollout=Rollout(rounds=10),
)
qae = replace(dapo, advantage=QuantileBaseline(quantile=0.4))
gspo = replace(grpo, ratio=SequenceRatio(), surrogate=PPOClip(low=3e-4, high=4e-4))
cispo = replace(_base, surrogate=ClippedWeight(low=None, high=0.2))
rloo = replace(_base, advantage=LeaveOneOut(), surrogate=PolicyGradient())
reinforce_pp = replace(_base, advantage=BatchWhitened())
nsr = replace(_base, advantage=Signed(lambda_pos=0.0, lambda_neg=1.0))
psr = replace(_base, advantage=Signed(lambda_pos=1.0, lambda_neg=0.0))
w_reinforce = replace(_base, advantage=Signed(lambda_pos=0.1, lambda_neg=1.0))
gmpo = replace(grpo, surrogate=GeometricClip(clip=0.4))
sapo = replace(grpo, surrogate=SoftGate(tau_pos=1.0, tau_neg=1.05))

# Gradients of clipped tokens
gppo = replace(_base, surrogate=GradientPreservingClip(keep_low=1.0, keep_high=1.0))
ce_gppo = replace(_base, surrogate=GradientPreservingClip(keep_low=0.5, keep_high=1.0))

# Advantages shaped by surprisal, clip range that follows entropy
repo_d = replace(_higher, shaping=(Decorrelate(),))
repo_r = replace(_higher, shaping=(RescaleBySurprisal(),))
adapo = replace(_higher, surrogate=PPOClip(low=0.2, high=EntropyServo(start=0.28, rate=1.1, low=0.05, high=1.0)))

# Advantages gated by entropy
gepo = replace(_base, shaping=(GroupEntropyGate(alpha_low=0.5, alpha_high=0.2),))
aepo = replace(_base, select=(NegativeGate(),))

# Samples drawn at a temperature that follows entropy (another method called AEPO)
arbitrary_entropy = replace(
    grpo,
    select=(TemperedSuccesses(),),
    surrogate=ReinforceTempered(_clip),
    rollout=Rollout(temperature=EntropySwitch(below=1.2, above=0.8, start=1.2, target=0.5), share=0.05),
)

# Tokens chosen by covariance or entropy
clip_cov = replace(_base, surrogate=ClipCov())
kl_cov = replace(_base, surrogate=KLCov())  # r A, no clip
high_entropy = replace(_base, select=(HighEntropyTokens(rho=0.2),))
erc = replace(_base, surrogate=EntropyRatioClip(_clip, low=0.95, high=1.05))

# Bonuses
entropy_bonus = replace(_base, penalties=(EntropyBonus(coef=1e-3),))
adaptive_entropy = replace(_base, penalties=(EntropyBonus(coef=EntropyStep(), target=0.2),))

# Ours, experimental (docs/frontier.md): half of the first-order entropy change out of the advantage, and a bonus
half_drift_bonus = replace(
    _base, shaping=(Decorrelate(zeta=0.5, normalise=True),), penalties=(EntropyBonus(coef=0.05),)
)


def names() -> tuple[str, ...]:
    """The names of all presets, in the order of this module."""
    return tuple(name for name, value in globals().items() if isinstance(value, Objective) and not name.startswith("_"))
