"""Equivalences: what an objective is at the edge of its parameters, and which two are the same thing.

Each row of a table is one equivalence, tried on thirty drawn batches; `on` changes the batch where it holds for some.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from isentrope import Objective, check, presets
from isentrope.advantage import (
    GeneralizedAdvantage,
    GroupCentred,
    GroupRelative,
    LeaveOneOut,
    Signed,
    SoftOverlong,
)
from isentrope.aggregate import ConstantLength, PromptMean, SequenceMean, TokenMean
from isentrope.control import GroupEntropyThreshold
from isentrope.correction import IcePop, SequenceMask, TruncatedImportance
from isentrope.laws._trial import Outcome, outcome
from isentrope.penalty import EntropyBonus, ReferenceKL
from isentrope.ratio import SequenceRatio
from isentrope.schedule import Constant, Linear, Piecewise
from isentrope.select import HighEntropyTokens, NegativeGate, VaryingReward
from isentrope.shaping import Decorrelate, GroupEntropyGate, RescaleBySurprisal
from isentrope.surrogate import (
    ClipCov,
    ClippedWeight,
    EntropyRatioClip,
    GeometricClip,
    GradientPreservingClip,
    ImportanceWeighted,
    KLCov,
    PPOClip,
)

BASE = replace(presets.grpo, aggregate=TokenMean())
SEQUENCES = presets.grpo
WEIGHTED = replace(BASE, surrogate=ImportanceWeighted())
WEIGHTED_SEQUENCES = replace(WEIGHTED, aggregate=SequenceMean())
BATCHES = [check.draw(seed, rewards=check.REWARDS[seed % 2]) for seed in range(30)]

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def with_surrogate(surrogate: object, base: Objective = BASE) -> Objective:
    return replace(base, surrogate=surrogate)


def shaped(rule: object, base: Objective = BASE) -> Objective:
    return replace(base, shaping=(rule,))


def one_token(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    mask = torch.zeros_like(batch["mask"])
    mask[:, 1] = batch["mask"].any(-1)
    return batch | {"mask": mask}


def full_rows(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch | {"mask": torch.ones_like(batch["mask"])}


def lone_groups(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch | {"group": torch.arange(len(batch["group"]))}


def one_group(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch | {"group": torch.zeros_like(batch["group"])}


def one_task(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch | {"task": torch.full_like(batch["task"], 4)}


def untempered(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch | {"tempered": torch.zeros_like(batch["tempered"])}


def exact_sampler(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch | {"rollout_logp": batch["old_logp"].clone()}


def silent_sampler(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x for name, x in batch.items() if name != "rollout_logp"}


def at_ratio_one(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch | {"logp": batch["old_logp"], "entropy": batch["old_entropy"]}


def low_ratios(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch | {"logp": torch.minimum(batch["logp"], batch["old_logp"] + 0.1)}


def same(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch


# name: (one, the other, batches on which they agree)
EQUAL: dict[str, tuple[Objective, Objective, Change]] = {
    "CE-GPPO at keep 1/1 is GPPO": (with_surrogate(GradientPreservingClip()), presets.gppo, same),
    "REPO-D at zeta 0 is its base": (shaped(Decorrelate(zeta=0.0)), BASE, same),
    "normalised REPO-D at zeta 0 is its base": (shaped(Decorrelate(zeta=0.0, normalise=True)), BASE, same),
    "REPO-R at zeta 0 is its base": (shaped(RescaleBySurprisal(zeta=0.0)), BASE, same),
    "centred REPO-R at zeta 0 is its base": (shaped(RescaleBySurprisal(zeta=0.0, centre="vocab")), BASE, same),
    "GEPO with alphas 1 is its base": (shaped(GroupEntropyGate(alpha_low=1, alpha_high=1)), BASE, same),
    "GEPO with far thresholds is its base": (shaped(GroupEntropyGate(low=-1.0, high=1e9)), BASE, same),
    "GEPO by task, with one task, is GEPO": (
        shaped(
            GroupEntropyGate(
                low=GroupEntropyThreshold(offset=-0.2, by_task=True),
                high=GroupEntropyThreshold(offset=0.3, by_task=True),
            )
        ),
        presets.gepo,
        one_task,
    ),
    "GSPO on rows of one token is PPO": (replace(SEQUENCES, ratio=SequenceRatio()), SEQUENCES, one_token),
    "GMPO on rows of one token clips ratios at exp(-.4) and exp(.4)": (
        presets.gmpo,
        with_surrogate(PPOClip(1 - math.exp(-0.4), math.exp(0.4) - 1), SEQUENCES),
        one_token,
    ),
    "PPO clip with bounds that no ratio reaches is importance-weighted": (
        with_surrogate(PPOClip(low=1.0, high=math.inf)),
        WEIGHTED,
        same,
    ),
    "a far dual clip is none": (with_surrogate(PPOClip(dual=1e12)), BASE, same),
    "CE-GPPO with bounds that no ratio reaches is importance-weighted": (
        with_surrogate(GradientPreservingClip(low=1.0, high=1e9, keep_low=0.3, keep_high=0.7)),
        WEIGHTED,
        same,
    ),
    "CISPO below its cap has no cap": (
        presets.cispo,
        with_surrogate(ClippedWeight(low=None, high=None)),
        low_ratios,
    ),
    "ERC with an open band is its base": (with_surrogate(EntropyRatioClip(low=0.0, high=math.inf)), BASE, same),
    "ERC where entropy stands still is its base": (presets.erc, BASE, at_ratio_one),
    "KL-Cov at coef 0 is importance-weighted": (with_surrogate(KLCov(coef=0.0, k=0.5)), WEIGHTED, same),
    "Clip-Cov with an empty band is PPO": (with_surrogate(ClipCov(cov_low=1.0, cov_high=1.0)), BASE, same),
    "all high-entropy tokens are all tokens": (replace(BASE, select=(HighEntropyTokens(rho=1.0),)), BASE, same),
    "an open negative gate is none": (replace(BASE, select=(NegativeGate(on=0.0),)), BASE, same),
    "the first batch leaves AEPO's gate open": (presets.aepo, BASE, same),
    "DAPO's filter without its tokens' count changes nothing": (
        replace(presets.dapo, select=(VaryingReward(count="all"),)),
        replace(presets.dapo, select=()),
        same,
    ),
    "ADAPO starts as DAPO's clip without its filter": (presets.adapo, replace(presets.dapo, select=()), same),
    "REPO-R starts at zeta 1e-3": (
        presets.repo_r,
        replace(presets.repo_r, shaping=(RescaleBySurprisal(zeta=1e-3),)),
        same,
    ),
    "the adaptive bonus starts at 0": (presets.adaptive_entropy, BASE, same),
    "a constant schedule is its number": (with_surrogate(PPOClip(high=Constant(0.28))), presets.adapo, same),
    "a schedule starts at its first number": (
        with_surrogate(GradientPreservingClip(keep_low=Piecewise(((0, 0.5), (1, 0.0))), keep_high=Linear(1.0, 0.0, 9))),
        presets.ce_gppo,
        same,
    ),
    "constant length is the sequence mean for rows of that length": (
        replace(BASE, aggregate=ConstantLength()),
        SEQUENCES,
        full_rows,
    ),
    "the token mean is the sequence mean for rows of one length": (BASE, SEQUENCES, full_rows),
    "prompt mean with one row a group is the sequence mean": (
        replace(presets.reinforce_pp, advantage=Signed(), aggregate=PromptMean()),
        replace(presets.reinforce_pp, advantage=Signed(), aggregate=SequenceMean()),
        lone_groups,
    ),
    "prompt mean with one group is the token mean": (replace(BASE, aggregate=PromptMean()), BASE, one_group),
    "batch scale with one group is group scale": (
        replace(BASE, advantage=GroupRelative(scale="batch")),
        BASE,
        one_group,
    ),
    "GAE without critic and discount pays the reward at every token": (
        replace(presets.ppo, advantage=GeneralizedAdvantage(whiten=False)),
        replace(BASE, advantage=lambda *, reward: reward),
        lambda batch: batch | {"value": torch.zeros_like(batch["value"])},
    ),
    "short rows pay no overlong penalty": (
        replace(BASE, advantage=SoftOverlong(GroupRelative(), buffer=2, limit=100)),
        BASE,
        same,
    ),
    "AEPO without tempered rows is GRPO": (presets.arbitrary_entropy, presets.grpo, untempered),
    "a penalty of coef 0 is none": (replace(BASE, penalties=(ReferenceKL(0.0), EntropyBonus(0.0))), BASE, same),
    "the reference costs nothing where it agrees": (
        replace(BASE, penalties=(ReferenceKL(0.5, "k3"), ReferenceKL(0.5, "k2"))),
        BASE,
        lambda batch: batch | {"ref_logp": batch["logp"]},
    ),
    "unbounded truncation is importance weighting, and so is the widest IcePop": (
        replace(BASE, correction=TruncatedImportance(cap=math.inf)),
        replace(BASE, correction=IcePop(low=0.0, high=math.inf)),
        same,
    ),
} | {
    f"{type(rule).__name__} is 1 {when}": (replace(BASE, correction=rule), BASE, on)
    for rule in (TruncatedImportance(), IcePop(), SequenceMask(), SequenceMask(weight=True))
    for when, on in (("where sampler and trainer agree", exact_sampler), ("without rollout_logp", silent_sampler))
}

SAME_GRADIENT: dict[str, tuple[Objective, Objective, Change]] = {
    "CE-GPPO at keep 0/0 has PPO's gradient": (
        with_surrogate(GradientPreservingClip(keep_low=0.0, keep_high=0.0)),
        BASE,
        same,
    ),
    "CISPO without bounds is REINFORCE with importance weights": (
        with_surrogate(ClippedWeight(low=None, high=None)),
        WEIGHTED,
        same,
    ),
    "SAPO at ratio 1 is importance-weighted": (
        presets.sapo,
        with_surrogate(ImportanceWeighted(), SEQUENCES),
        at_ratio_one,
    ),
    "GMPO at ratio 1 is importance-weighted": (
        presets.gmpo,
        with_surrogate(ImportanceWeighted(), SEQUENCES),
        at_ratio_one,
    ),
    "RLOO at ratio 1 is importance-weighted": (
        presets.rloo,
        replace(WEIGHTED, advantage=LeaveOneOut()),
        at_ratio_one,
    ),
    "GSPO at ratio 1 is GRPO": (presets.gspo, presets.grpo, at_ratio_one),
    "KL-Cov at ratio 1 is PPO": (presets.kl_cov, BASE, at_ratio_one),
    "CE-GPPO at ratio 1 is PPO": (presets.ce_gppo, BASE, at_ratio_one),
}


def both(case: tuple[Objective, Objective, Change], batch: dict[str, Tensor]) -> tuple[Outcome, Outcome]:
    one, other, on = case
    changed = on(dict(batch))
    return outcome(one, changed, one.init()), outcome(other, changed, other.init())


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", EQUAL)
def test_loss_and_gradient_are_equal(name: str) -> None:
    largest = 0.0
    for batch in BATCHES:
        a, b = both(EQUAL[name], batch)
        close(a.loss, b.loss)
        close(a.weights, b.weights)
        close(a.entropy_weights, b.entropy_weights)
        largest = max(largest, float(b.weights.abs().max()))
    assert largest > 0.01


@pytest.mark.parametrize("name", SAME_GRADIENT)
def test_gradients_are_equal(name: str) -> None:
    largest = 0.0
    for batch in BATCHES:
        a, b = both(SAME_GRADIENT[name], batch)
        close(a.weights, b.weights)
        largest = max(largest, float(b.weights.abs().max()))
    assert largest > 0.01


def test_the_value_of_ce_gppo_at_keep_0_is_not_ppos() -> None:
    case = SAME_GRADIENT["CE-GPPO at keep 0/0 has PPO's gradient"]
    assert any(abs(float(a.loss - b.loss)) > 1e-3 for a, b in (both(case, batch) for batch in BATCHES))


def test_the_batches_reach_both_sides_of_every_clip() -> None:
    """Without this, an equivalence of two clips may have compared two objectives that never clip."""
    for surrogate in (PPOClip(), PPOClip(3e-4, 4e-4), GeometricClip(), ClippedWeight(low=0.2, high=0.2)):
        low, high = 0, 0
        for batch in BATCHES:
            o = outcome(BASE, batch, {})
            sides = surrogate.clipped(o.prepared["logp"] - o.prepared["old_logp"], o.prepared["advantage"])
            low, high = low + int((sides[0] & batch["mask"]).sum()), high + int((sides[1] & batch["mask"]).sum())
        assert min(low, high) >= 10, surrogate


# -- advantages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.recipe)
def test_grpo_is_dr_grpo_divided_by_the_deviation_of_the_group(batch: dict[str, Tensor]) -> None:
    reward, group = batch["reward"], batch["group"]
    unscaled, scaled = GroupCentred()(reward=reward, group=group), GroupRelative()(reward=reward, group=group)
    for g in group.unique():
        rows = group == g
        deviation = reward[rows].std() if rows.sum() > 1 else torch.zeros(())
        close(scaled[rows] * (deviation + 1e-6), unscaled[rows])


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.recipe)
def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others(batch: dict[str, Tensor]) -> None:
    reward, group = batch["reward"], batch["group"]
    found, centred = LeaveOneOut()(reward=reward, group=group), GroupCentred()(reward=reward, group=group)
    for i in range(len(reward)):
        others = [float(reward[j]) for j in range(len(reward)) if j != i and group[j] == group[i]]
        expected = float(reward[i]) - sum(others) / len(others) if others else 0.0
        assert float(found[i]) == pytest.approx(expected, abs=1e-12)
        size = len(others) + 1
        assert float(found[i]) == pytest.approx(float(centred[i]) * size / max(size - 1, 1), abs=1e-12)


@pytest.mark.parametrize("batch", BATCHES[:10], ids=lambda batch: batch.recipe)
def test_negative_and_positive_reinforcement_add_up(batch: dict[str, Tensor]) -> None:
    """NSR + PSR is both signs at once; W-REINFORCE is NSR + PSR / 10."""
    nsr, psr, w = (outcome(getattr(presets, n), batch, {}) for n in ("nsr", "psr", "w_reinforce"))
    whole = outcome(replace(presets.nsr, advantage=Signed()), batch, {})
    close(nsr.weights + psr.weights, whole.weights)
    close(nsr.loss + psr.loss, whole.loss)
    close(nsr.weights + 0.1 * psr.weights, w.weights)


@pytest.mark.parametrize("batch", BATCHES[:10], ids=lambda batch: batch.recipe)
def test_a_closed_negative_gate_leaves_the_rows_that_do_not_lose(batch: dict[str, Tensor]) -> None:
    gated = outcome(replace(BASE, select=(NegativeGate(on=1.0, count="all"),)), batch, {})
    base = outcome(BASE, batch, {})
    good = (base.prepared["advantage"] >= 0).all(-1, keepdim=True)
    close(gated.weights, torch.where(good, base.weights, 0.0))


# -- REPO-D and the theory of a softmax --------------------------------------------------------------

PI = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
VALUE = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)


def enumerated(policy: Tensor) -> dict[str, Tensor]:
    """One state whose actions were sampled 6, 3 and 1 times: rows of one token, in the policy's proportions."""
    action = torch.tensor([0] * 6 + [1] * 3 + [2])
    entropy = -(policy * policy.log()).sum()
    return {
        "reward": VALUE[action],
        "group": torch.zeros(10, dtype=torch.int64),
        "mask": torch.ones(10, 1, dtype=torch.bool),
        "old_logp": policy.log()[action][:, None],
        "old_entropy": entropy.expand(10, 1),
    }


def entropy_of(logits: Tensor) -> float:
    log_p = logits.log_softmax(-1)
    return -float((log_p.exp() * log_p).sum())


def advantage_of_actions(shaping: tuple[object, ...]) -> Tensor:
    prepared, _ = replace(presets.dr_grpo, shaping=shaping, aggregate=TokenMean()).prepare(enumerated(PI))
    return prepared["advantage"][[0, 6, 9], 0]


def test_normalised_repo_d_at_zeta_1_makes_the_first_order_entropy_change_zero() -> None:
    """A policy-gradient step dz = eta pi A~ changes entropy by -eta sum pi^2 L A~; the hand case of the theory."""
    centred = PI.log() - (PI * PI.log()).sum()
    for shaping, is_zero in (((), False), ((Decorrelate(zeta=1.0, normalise=True),), True)):
        advantage = advantage_of_actions(shaping)
        advantage = advantage - (PI * advantage).sum()
        change = -float((PI.square() * centred * advantage).sum())
        exact = (entropy_of(PI.log() + 1e-5 * PI * advantage) - entropy_of(PI.log())) / 1e-5
        assert exact == pytest.approx(change, abs=1e-5)
        assert (abs(change) < 1e-15) if is_zero else (change == pytest.approx(-0.104522, abs=1e-6))


def test_repo_d_takes_beta_star_of_the_hand_case() -> None:
    """beta* = 1.272969 and L = (.387120, -.306027, -1.404639); plain REPO-D has beta = zeta C = .104522 zeta."""
    centred = torch.tensor([0.387120, -0.306027, -1.404639], dtype=torch.float64)
    base = advantage_of_actions(())
    for rule, beta in (
        (Decorrelate(1.0, normalise=True), 1.272969),
        (Decorrelate(1.0), 0.104522),
        (Decorrelate(2.0), 0.209044),
    ):
        torch.testing.assert_close(base - advantage_of_actions((rule,)), beta * centred, atol=5e-6, rtol=0)


def test_repo_d_lets_entropy_fall_less() -> None:
    def change(zeta: float) -> float:
        advantage = advantage_of_actions((Decorrelate(zeta=zeta),))
        return entropy_of(PI.log() + 0.01 * PI * (advantage - (PI * advantage).sum())) - entropy_of(PI.log())

    assert change(0.0) < change(1.0) < change(5.0) < 0
