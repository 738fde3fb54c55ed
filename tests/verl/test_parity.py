"""Our presets against verl's own functions, on identical batches: advantage, loss and gradient, whole and in parts.

Where a preset and verl's function differ, the parameter that makes them equal stands in the table; the tests below
it hold what the difference is. docs/verl.md has the same table in words.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

pytest.importorskip("verl", reason="needs the environment of verl")

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo import core_algos
from verl.workers.config import FSDPActorConfig, PolicyLossConfig

from isentrope import Objective, presets
from isentrope.aggregate import ConstantLength
from isentrope.select import VaryingReward
from isentrope.surrogate import ClipCov, ClippedWeight, KLCov, PPOClip

pytestmark = pytest.mark.engine
ROWS, TOKENS, LIMIT = 12, 10, 10


@dataclass(frozen=True)
class Pair:
    """An objective of ours, and verl's estimator, loss and settings that are to equal it.

    by_parts: verl's own micro-batches add up to its whole, so both can be compared part by part.
    """

    objective: Objective
    estimator: str
    loss: str
    aggregation: str = "token-mean"
    actor: dict[str, Any] = field(default_factory=dict)
    policy_loss: dict[str, Any] = field(default_factory=dict)
    norm_by_std: bool = True
    by_parts: bool = True


_ANY_SIZE = {"clip_ratio_c": 1e9}  # no dual clip
_WIDE = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, **_ANY_SIZE}
_ROWS = "seq-mean-token-mean"
PAIRS = {
    "grpo": Pair(presets.grpo, "grpo", "vanilla", _ROWS, _ANY_SIZE),
    "grpo with verl's dual clip": Pair(
        replace(presets.grpo, surrogate=PPOClip(dual=3.0)), "grpo", "vanilla", _ROWS, {"clip_ratio_c": 3.0}
    ),
    "dapo": Pair(replace(presets.dapo, select=(VaryingReward(count="all"),)), "grpo", "vanilla", actor=_WIDE),
    "dr_grpo": Pair(
        replace(presets.dr_grpo, aggregate=ConstantLength(LIMIT)),
        "grpo",
        "vanilla",
        "seq-mean-token-sum-norm",
        {"loss_scale_factor": LIMIT, **_ANY_SIZE},
        norm_by_std=False,
    ),
    "rloo": Pair(presets.rloo, "rloo", "gpg"),
    "gspo": Pair(presets.gspo, "grpo", "gspo", _ROWS, {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    "cispo": Pair(presets.cispo, "grpo", "cispo", actor={"clip_ratio_low": 1.0, "clip_ratio_high": 0.2}),
    "cispo with verl's lower bound": Pair(
        replace(presets.cispo, surrogate=ClippedWeight(low=0.2, high=0.2)),
        "grpo",
        "cispo",
        actor={"clip_ratio_low": 0.2, "clip_ratio_high": 0.2},
    ),
    "clip_cov": Pair(
        replace(presets.clip_cov, surrogate=ClipCov(scope="micro_batch", ratio=1.0, cov_low=0.2)),
        "grpo",
        "clip_cov",
        policy_loss={"clip_cov_ratio": 1.0, "clip_cov_lb": 0.2},
    ),
    "kl_cov": Pair(
        replace(presets.kl_cov, surrogate=KLCov(scope="micro_batch", k=0.1, coef=0.7)),
        "grpo",
        "kl_cov",
        policy_loss={"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.7},
    ),
    "sapo": Pair(presets.sapo, "grpo", "sapo", _ROWS),
    "gmpo": Pair(
        presets.gmpo, "grpo", "geo_mean", actor={"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}, by_parts=False
    ),
}


def batch(seed: int = 0) -> dict[str, Tensor]:
    """A rollout batch with holes in its masks, and log-probabilities that left the old ones by up to a nat or so."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, TOKENS + 1, (ROWS, 1), generator=g)
    mask = torch.arange(TOKENS) < lengths
    mask[::3, 1] = False  # a tool's token
    old = -2 * torch.rand(ROWS, TOKENS, generator=g, dtype=torch.float64)
    return {
        "reward": torch.rand(ROWS, generator=g, dtype=torch.float64),
        "group": torch.arange(ROWS) // 4,
        "mask": mask,
        "old_logp": old,
        "logp": old + 0.4 * torch.randn(ROWS, TOKENS, generator=g, dtype=torch.float64),
        "length_limit": torch.full((ROWS,), float(LIMIT), dtype=torch.float64),
    }


def config(pair: Pair, rows: dict[str, Tensor]) -> FSDPActorConfig:
    """verl's configuration of an actor, with the totals of the whole batch."""
    info = {"dp_size": 1, "batch_num_tokens": int(rows["mask"].sum()), "global_batch_size": ROWS}
    made = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=4,
        ppo_micro_batch_size_per_gpu=4,
        loss_agg_mode=pair.aggregation,
        policy_loss=PolicyLossConfig(loss_mode=pair.loss, **pair.policy_loss),
        **pair.actor,
    )
    made.global_batch_info.update(info, loss_scale_factor=made.loss_scale_factor)
    return made


def verls_advantage(pair: Pair, rows: dict[str, Tensor]) -> Tensor:
    """verl's advantage of a batch, [B,T]."""
    rewards = torch.zeros(ROWS, TOKENS, dtype=torch.float64)
    rewards[:, 0] = rows["reward"]
    options = {"norm_adv_by_std_in_grpo": pair.norm_by_std} if pair.estimator == "grpo" else {}
    estimate = core_algos.get_adv_estimator_fn(pair.estimator)
    index = np.array([f"u{int(i)}" for i in rows["group"]], dtype=object)
    found: Tensor = estimate(token_level_rewards=rewards, response_mask=rows["mask"].double(), index=index, **options)[
        0
    ]
    return found


def verls_loss(pair: Pair, rows: dict[str, Tensor], setting: FSDPActorConfig) -> Callable[[Tensor, slice], Tensor]:
    """verl's loss of a part of the rows, by log-probabilities."""
    advantage, fn = verls_advantage(pair, rows), core_algos.get_policy_loss_fn(pair.loss)

    def loss(logp: Tensor, part: slice) -> Tensor:
        found: Tensor = fn(
            old_log_prob=rows["old_logp"][part],
            log_prob=logp,
            advantages=advantage[part],
            response_mask=rows["mask"][part],
            loss_agg_mode=pair.aggregation,
            config=setting,
            rollout_is_weights=None,
        )[0]
        return found

    return loss


def our_loss(objective: Objective, rows: dict[str, Tensor]) -> Callable[[Tensor, slice], Tensor]:
    """Our loss of a part of the rows, by log-probabilities."""
    prepared, _ = objective.prepare({name: x for name, x in rows.items() if name != "logp"})
    totals = objective.count(prepared)

    def loss(logp: Tensor, part: slice) -> Tensor:
        return objective.loss({name: x[part] for name, x in prepared.items()} | {"logp": logp}, totals)

    return loss


def value_and_gradient(loss: Callable[[Tensor, slice], Tensor], logp: Tensor, size: int) -> tuple[float, Tensor]:
    """Loss and gradient, summed over micro-batches of so many rows."""
    total, gradients = 0.0, []
    for start in range(0, ROWS, size):
        leaf = logp[start : start + size].clone().requires_grad_()
        found = loss(leaf, slice(start, start + size))
        found.backward()
        assert leaf.grad is not None
        total, gradients = total + float(found.detach()), [*gradients, leaf.grad]
    return total, torch.cat(gradients)


@pytest.mark.parametrize("name", PAIRS)
def test_the_advantage_is_verls(name):
    pair, rows = PAIRS[name], batch()
    ours = pair.objective.prepare({n: x for n, x in rows.items() if n != "logp"})[0]["advantage"]
    torch.testing.assert_close(ours, verls_advantage(pair, rows), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_gradient_are_verls(name, seed):
    pair, rows = PAIRS[name], batch(seed)
    theirs = value_and_gradient(verls_loss(pair, rows, config(pair, rows)), rows["logp"], ROWS)
    ours = value_and_gradient(our_loss(pair.objective, rows), rows["logp"], ROWS)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-7)  # verl adds 1e-8 to a row's number of tokens
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-7, atol=1e-12)
    assert ours[1].abs().max() > 1e-3


@pytest.mark.parametrize(
    "size", [2, 4]
)  # in a single row all covariances are equal: which token kl_cov takes is chance
@pytest.mark.parametrize("name", [name for name, pair in PAIRS.items() if pair.by_parts])
def test_in_micro_batches_too(name, size):
    pair, rows = PAIRS[name], batch()
    theirs = value_and_gradient(verls_loss(pair, rows, config(pair, rows)), rows["logp"], size)
    ours = value_and_gradient(our_loss(pair.objective, rows), rows["logp"], size)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-7)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_verls_covariance_depends_on_the_micro_batch_and_ours_need_not(name):
    pair, rows = PAIRS[name], batch()
    of_batch = replace(pair.objective, surrogate=replace(pair.objective.surrogate, scope="batch"))
    theirs, ours = verls_loss(pair, rows, config(pair, rows)), our_loss(of_batch, rows)
    assert (
        relative(value_and_gradient(theirs, rows["logp"], 1)[1], value_and_gradient(theirs, rows["logp"], 4)[1]) > 0.01
    )
    assert relative(value_and_gradient(ours, rows["logp"], 1)[1], value_and_gradient(ours, rows["logp"], 4)[1]) < 1e-12


def test_verls_gmpo_grows_with_the_number_of_micro_batches():
    pair, rows = PAIRS["gmpo"], batch()
    theirs, ours = verls_loss(pair, rows, config(pair, rows)), our_loss(pair.objective, rows)
    for size in (1, 4):
        verl, here = value_and_gradient(theirs, rows["logp"], size)[1], value_and_gradient(ours, rows["logp"], size)[1]
        torch.testing.assert_close(verl, here * (ROWS / size), rtol=1e-7, atol=1e-12)


def test_verls_dr_grpo_without_a_factor_divides_by_the_longest_row_at_hand():
    pair, rows = replace(PAIRS["dr_grpo"], actor=_ANY_SIZE), batch()
    rows["mask"] &= torch.arange(TOKENS) < 6
    narrow = {name: x[:, :6] if x.ndim > 1 else x for name, x in rows.items()}
    setting = config(pair, rows)
    loss = core_algos.get_policy_loss_fn("vanilla")
    kept = {"loss_agg_mode": pair.aggregation, "config": setting}

    def of(x: dict[str, Tensor]) -> float:
        advantage = x["reward"][:, None] * x["mask"]
        return float(
            loss(old_log_prob=x["old_logp"], log_prob=x["logp"], advantages=advantage, response_mask=x["mask"], **kept)[
                0
            ]
        )

    assert of(narrow) / of(rows) == pytest.approx(TOKENS / 6)


def test_our_dapo_leaves_groups_without_variance_out_of_the_count_and_verl_does_not():
    rows = batch()
    rows["reward"][:4] = 1.0
    pair = PAIRS["dapo"]
    theirs = value_and_gradient(verls_loss(pair, rows, config(pair, rows)), rows["logp"], ROWS)[1]
    kept = rows["mask"][4:].sum() / rows["mask"].sum()
    ours = value_and_gradient(our_loss(presets.dapo, rows), rows["logp"], ROWS)[1]
    torch.testing.assert_close(ours * kept, theirs, rtol=1e-7, atol=1e-12)
    assert kept < 0.8


def test_a_prompt_with_one_completion_keeps_its_reward_in_verl_and_has_no_advantage_here():
    pair, rows = PAIRS["grpo"], batch()
    rows["group"] = torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3])
    ours = presets.grpo.prepare({n: x for n, x in rows.items() if n != "logp"})[0]["advantage"]
    theirs = verls_advantage(pair, rows)
    assert ours[0].abs().max() == 0
    assert theirs[0, 0] == pytest.approx(float(rows["reward"][0]), rel=1e-5)
    torch.testing.assert_close(ours[1:], theirs[1:])


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov", "gmpo"])
def test_at_a_hundred_nats_ours_stays_finite_where_verls_does_not(name):
    pair, rows = PAIRS[name], batch()
    rows["mask"][0, 0] = True
    rows["logp"][0, 0] = rows["old_logp"][0, 0] + 800.0  # exp overflows float64 at 709.8
    rows["reward"][0] = rows["reward"][:4].min() - 1  # a bad row, which no clip holds from above
    theirs = value_and_gradient(verls_loss(pair, rows, config(pair, rows)), rows["logp"], ROWS)[1]
    ours = value_and_gradient(our_loss(pair.objective, rows), rows["logp"], ROWS)[1]
    assert ours.isfinite().all()
    assert name == "gmpo" or not theirs.isfinite().all()


def relative(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|."""
    return float((a - b).norm() / b.norm())
