"""SkyRL: through its own reduction, registries, batch and trainer methods, the loss and the gradient are ours."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope import Objective, presets
from isentrope.advantage import GroupRelative
from isentrope.aggregate import ConstantLength, PromptMean, SequenceMean, TokenMean
from isentrope.correction import TruncatedImportance
from isentrope.select import VaryingReward
from isentrope.surrogate import ClipCov, KLCov, PPOClip

from .batches import GROUP, ROWS, Made, make
from .conftest import load

ppo_utils = load("skyrl.backends.skyrl_train.utils.ppo_utils")
trainer = load("skyrl.train.trainer")
config = load("skyrl.train.config")
training_batch = load("skyrl.backends.skyrl_train.training_batch")
worker_utils = load("skyrl.backends.skyrl_train.workers.worker_utils")
skyrl = load("isentrope.engines.skyrl")
OmegaConf = load("omegaconf").OmegaConf
cloudpickle = load("cloudpickle")

pytestmark = pytest.mark.engine

COV = ClipCov(cov_low=0.1, cov_high=5.0, ratio=0.1, scope="micro_batch")
OBJECTIVES = {
    **{
        name: getattr(presets, name) for name in ("grpo", "dr_grpo", "rloo", "gspo", "cispo", "gmpo", "sapo", "ce_gppo")
    },
    "rows that vary": replace(presets.grpo, select=(VaryingReward(),)),
    "ppo": presets.ppo,
    "dapo": presets.dapo,
    "repo_r": presets.repo_r,
    "repo_d": presets.repo_d,
    "adapo": presets.adapo,
    "gepo": presets.gepo,
    "aepo": presets.aepo,
    "corrected": replace(presets.grpo, correction=TruncatedImportance(cap=1.02)),
}
LENGTH = 32


@pytest.fixture(autouse=True)
def _names_are_free() -> Any:
    """SkyRL's registries hold their own losses and estimators alone, before and after."""
    yield
    for registry in (ppo_utils.PolicyLossRegistry, ppo_utils.AdvantageEstimatorRegistry):
        registry._functions.pop(skyrl.NAME, None)


def algorithm(objective: Objective, **options: Any) -> Any:
    reduction = skyrl.REDUCTIONS[type(objective.aggregate)]
    settings = {"policy_loss_type": skyrl.NAME, "advantage_estimator": skyrl.NAME, "loss_reduction": reduction}
    return skyrl.AlgorithmConfig(**settings | {"max_seq_len": LENGTH} | options)


@dataclass
class Workers:
    """Stands in for SkyRL's dispatch to its workers: runs the loss on micro-batches, on 2 ranks, as the workers do."""

    logp: Tensor
    algorithm: Any
    micro: int
    losses: list[Tensor]
    metrics: list[dict[str, float]]

    def stage_data(self, model: str, data: Any, boundaries: list[tuple[int, int]]) -> Any:
        self.first = [first for first, _ in boundaries]
        return [[data[first:last]] for first, last in boundaries]

    def forward_backward_from_staged(self, model: str, chunk_refs: Any, loss_fn_config: Any = None) -> Any:
        (chunk,) = chunk_refs
        start = self.first[len(self.losses)]
        loss = torch.zeros((), dtype=torch.float64)
        for i in range(0, len(chunk["advantages"]), self.micro):
            rows = worker_utils.BatchIterator.batch_to_experience(chunk[i : i + self.micro])
            given = self.logp[start + i : start + i + len(rows.advantages)]
            part, metrics = ppo_utils.PolicyLossRegistry.get(self.algorithm.policy_loss_type)(
                given,
                rows.action_log_probs,
                rows.advantages,
                config=merged(self.algorithm, loss_fn_config),
                loss_mask=rows.loss_mask,
                rollout_logprobs=rows.rollout_logprobs,
            )
            loss = loss + part
            self.metrics.append(metrics)
        self.losses.append(loss)
        return SimpleNamespace(metrics={"policy_loss": float(loss.detach())})

    def optim_step(self, model: str) -> None:
        return None


def merged(algorithm: Any, overrides: Any) -> Any:
    """The configuration that a worker hands to the loss: what it does with `loss_fn_config`."""
    both = OmegaConf.merge(OmegaConf.create(asdict(algorithm)), OmegaConf.create(overrides))
    return type(algorithm).from_dict_config(both)


class Trainer(skyrl.Unscaled, trainer.RayPPOTrainer):
    """SkyRL's trainer with our mix-in, without its constructor, which starts a cluster."""

    def __init__(self, algorithm: Any, step_wise: bool = False) -> None:
        settings = {"algorithm": algorithm, "micro_train_batch_size_per_gpu": 4, "update_epochs_per_batch": 1}
        generator = SimpleNamespace(step_wise_trajectories=step_wise)
        self.cfg = SimpleNamespace(trainer=SimpleNamespace(**settings), generator=generator)
        self.all_metrics, self.all_timings, self.global_step = {}, {}, 1


def skyrl_batch(made: Made, minibatch: int, padding: int = 0) -> Any:
    """The training batch that SkyRL's trainer has after its forward passes."""
    c = made.columns
    rewards = torch.zeros_like(c["old_logp"])
    rewards[:, -1] = c["reward"]
    data = training_batch.TrainingInputBatch(
        {
            "sequences": torch.ones_like(c["mask"], dtype=torch.long),
            "attention_mask": torch.ones_like(c["mask"], dtype=torch.long),
            "rewards": rewards,
            "response_mask": torch.ones_like(
                c["mask"], dtype=torch.long
            ),  # of the response, the tool's tokens included
            "loss_mask": c["mask"].float(),
            "action_log_probs": c["old_logp"],
            "base_action_log_probs": c["ref_logp"],
            "rollout_logprobs": c["rollout_logp"],
            "values": c["value"],
        }
    )
    data.metadata = {
        "uids": [f"prompt-{int(i)}" for i in c["group"]],
        "avg_response_length": 1.0,
        "response_length": c["mask"].shape[1],
        "policy_mini_batch_boundaries": [(i, i + minibatch) for i in range(0, ROWS, minibatch)],
    }
    return training_batch.pad_training_input_batch(data, padding)


@dataclass
class Run:
    losses: list[Tensor]
    gradient: Tensor
    metrics: list[dict[str, float]]
    trainer: Any
    data: Any


def train(objective: Objective, made: Made, minibatch: int = ROWS, micro: int = 4, padding: int = 0) -> Run:
    skyrl.register(objective)
    held = Trainer(algorithm(objective))
    data = held.compute_advantages_and_returns(skyrl_batch(made, minibatch, padding))
    logp = made.logp.clone().requires_grad_()
    held.dispatch = workers = Workers(logp, held.cfg.trainer.algorithm, micro, [], [])
    held._execute_training_step("policy", data)
    (gradient,) = torch.autograd.grad(torch.stack(workers.losses).sum(), logp)
    return Run(workers.losses, gradient, workers.metrics, held, data)


def ours(objective: Objective, made: Made, minibatch: int = ROWS, micro: int = ROWS) -> tuple[list[Tensor], Tensor]:
    objective = skyrl._with_length(objective, LENGTH)
    prepared, state = objective.prepare(made.columns, objective.init())
    now, logp, losses = objective.at(state), made.logp.clone().requires_grad_(), []
    for first in range(0, ROWS, minibatch):
        rows = {name: x[first : first + minibatch] for name, x in prepared.items()}
        totals = now.count(rows)
        parts = [slice(i, i + micro) for i in range(0, minibatch, micro)]
        current = logp[first : first + minibatch]
        loss = sum(now.loss({n: x[s] for n, x in rows.items()} | {"logp": current[s]}, totals) for s in parts)
        losses.append(torch.as_tensor(loss))
    (gradient,) = torch.autograd.grad(torch.stack(losses).sum(), logp)
    return losses, gradient


@pytest.mark.parametrize("minibatch", [ROWS, 8])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_through_skyrls_trainer_loss_and_gradient_are_the_objectives(name: str, minibatch: int) -> None:
    made = make()
    found = train(OBJECTIVES[name], made, minibatch, micro=4)
    losses, gradient = ours(OBJECTIVES[name], made, minibatch)
    torch.testing.assert_close(torch.stack(found.losses), torch.stack(losses), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.gradient, gradient, rtol=1e-9, atol=1e-12)
    assert gradient.count_nonzero() > 10


@pytest.mark.parametrize("micro", [1, 2, 16])
def test_the_split_into_micro_batches_does_not_matter(micro: int) -> None:
    made = make()
    skewed = train(presets.ce_gppo, made, 8, micro)
    torch.testing.assert_close(skewed.gradient, ours(presets.ce_gppo, made, 8)[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("ours_", "theirs"),
    [(TokenMean(), "token_mean"), (SequenceMean(), "sequence_mean"), (ConstantLength(), "seq_mean_token_sum_norm")],
)
def test_skyrls_regular_loss_through_its_own_reduction_gives_the_same_gradient(ours_: Any, theirs: str) -> None:
    objective = Objective(advantage=GroupRelative(), surrogate=PPOClip(), aggregate=ours_)
    made = finite(make())
    found = train(objective, made, 8, 4)
    plain = object.__new__(trainer.RayPPOTrainer)
    plain_algorithm = config.AlgorithmConfig(loss_reduction=theirs, max_seq_len=LENGTH)
    plain.cfg = SimpleNamespace(trainer=SimpleNamespace(algorithm=plain_algorithm, micro_train_batch_size_per_gpu=4))
    data = skyrl_batch(made, 8)
    data["advantages"] = found.data["advantages"]
    data = plain._normalize_advantages(data, [(0, 8), (8, 16)])
    logp = made.logp.clone().requires_grad_()
    mask = made.columns["mask"].float()
    parts = [slice(i, i + 4) for i in range(0, ROWS, 4)]
    old, advantages = made.columns["old_logp"], data["advantages"]
    loss = sum(ppo_utils.ppo_policy_loss(logp[s], old[s], advantages[s], plain_algorithm, mask[s])[0] for s in parts)
    (gradient,) = torch.autograd.grad(loss, logp)
    torch.testing.assert_close(found.gradient, gradient, rtol=1e-6, atol=1e-12)  # SkyRL takes ratios in float32


def finite(made: Made) -> Made:
    """The same without NaN behind the mask, which SkyRL's own losses multiply by 0."""
    columns = {name: torch.nan_to_num(x) if x.is_floating_point() else x for name, x in made.columns.items()}
    return Made(columns, torch.nan_to_num(made.logp))


def scaled(made: Made, objective: Objective) -> Tensor:
    """The advantages as SkyRL's losses get them."""
    prepared, _ = objective.prepare(made.columns)
    mask = made.columns["mask"].float()
    weights: Tensor = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
        prepared["advantage"], mask, "token_mean", 4, LENGTH
    )
    return weights


def test_clip_cov_selects_the_same_tokens_as_without_skyrls_division_and_skyrls_own_selects_none() -> None:
    objective = replace(presets.clip_cov, surrogate=COV)
    made = finite(make())
    found = train(objective, made, micro=ROWS).gradient
    expected = ours(objective, made)[1]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    dropped = (expected == 0) & (ours(replace(objective, surrogate=PPOClip()), made)[1] != 0)
    assert dropped.sum() >= 2

    algorithm = config.AlgorithmConfig()
    algorithm.clip_cov.clip_ratio, algorithm.clip_cov.clip_cov_lb, algorithm.clip_cov.clip_cov_ub = 0.1, 0.1, 5.0
    logp, mask = made.logp.clone(), made.columns["mask"].float()
    old = made.columns["old_logp"]
    _, theirs = ppo_utils.compute_policy_loss_clip_cov(logp, old, scaled(made, objective), algorithm, mask)
    assert theirs["clip_ratio"] == 0


def test_kl_covs_penalty_keeps_its_weight_beside_the_advantages() -> None:
    objective = replace(presets.kl_cov, surrogate=KLCov(k=0.05, coef=1.0, scope="micro_batch"))
    made = make()
    found = train(objective, made, micro=ROWS).gradient
    torch.testing.assert_close(found, ours(objective, made)[1], rtol=1e-9, atol=1e-12)


def test_skyrls_padding_rows_change_nothing() -> None:
    made = make()
    whitened = presets.reinforce_pp
    found = train(whitened, made, padding=3)
    assert found.data["advantages"].shape[0] == ROWS + 3
    assert not found.data["advantages"][ROWS:].any()
    torch.testing.assert_close(found.gradient, ours(whitened, made)[1], rtol=1e-9, atol=1e-12)


def test_the_estimator_alone_gives_the_advantages_from_rewards_and_groups() -> None:
    made = make()
    estimator = skyrl.AdvantageEstimator(presets.grpo)
    data = skyrl_batch(made, ROWS, padding=2)
    found, returns = estimator(data["rewards"], data["response_mask"], data.metadata["uids"], values=None, gamma=1.0)
    expected, _ = ppo_utils.compute_grpo_outcome_advantage(
        data["rewards"].float(), data["response_mask"].float(), data.metadata["uids"]
    )
    torch.testing.assert_close(found.float()[:ROWS], expected[:ROWS], rtol=1e-5, atol=1e-6)
    assert torch.equal(found, returns)
    assert not found[ROWS:].any()


def test_padding_rows_enter_no_statistic_of_the_estimator_alone() -> None:
    estimator, found = skyrl.AdvantageEstimator(presets.reinforce_pp), []
    for padding in (0, 3):
        data = skyrl_batch(make(), ROWS, padding)
        advantage, _ = estimator(data["rewards"], data["response_mask"], data.metadata["uids"])
        found.append(advantage[:ROWS])
    assert torch.equal(*found)
    assert found[0].any()


def test_controllers_observe_once_a_batch_and_their_state_reaches_the_loss() -> None:
    made = make()
    found = train(presets.adapo, made)
    _, state = presets.adapo.prepare(made.columns, presets.adapo.init())
    assert found.trainer._state == state
    assert state != presets.adapo.init()


class _Checkpointing:
    """SkyRL's own part of a checkpoint, for which a cluster would be needed."""

    def save_checkpoints(self) -> str:
        return f"{self.cfg.trainer.ckpt_path}/global_step_{self.global_step}"

    def load_checkpoints(self) -> tuple[int, str | None]:
        return 1, f"{self.cfg.trainer.ckpt_path}/global_step_1"


def test_the_state_goes_through_a_checkpoint_and_a_missing_one_is_an_error(tmp_path: Any) -> None:
    skyrl.register(presets.adapo)

    class Saved(skyrl.Unscaled, _Checkpointing):
        def __init__(self, folder: Any) -> None:
            held = SimpleNamespace(algorithm=algorithm(presets.adapo), ckpt_path=str(folder))
            self.cfg, self.global_step = SimpleNamespace(trainer=held), 1

    _, state = presets.adapo.prepare(make().columns, presets.adapo.init())
    before = Saved(tmp_path)
    before._state = state
    before.save_checkpoints()
    after = Saved(tmp_path)
    assert after.load_checkpoints()[0] == 1
    assert after._state == state
    with pytest.raises(skyrl.EngineError, match=r"isentrope_state\.json is missing"):
        Saved(tmp_path / "empty").load_checkpoints()


def test_both_registrations_survive_the_way_to_a_worker() -> None:
    for function in (skyrl.PolicyLoss(presets.adapo), skyrl.AdvantageEstimator(presets.adapo)):
        assert cloudpickle.loads(cloudpickle.dumps(function)) == function


def test_without_unscaled_advantages_the_loss_says_what_is_missing() -> None:
    made = make()
    loss = skyrl.PolicyLoss(presets.ce_gppo)
    with pytest.raises(skyrl.EngineError, match=r"put isentrope\.engines\.skyrl\.Unscaled"):
        loss(made.logp, made.columns["old_logp"], made.columns["value"], algorithm(presets.ce_gppo))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("eps_clip_high", 0.3, r"eps_clip_high=0\.3 has no effect here; the objective's slot `surrogate`"),
        ("loss_reduction", "sequence_mean", r"contradicts the objective's TokenMean: set 'token_mean'"),
        ("advantage_batch_normalize", True, r"use advantage=BatchWhitened"),
        ("policy_loss_type", "regular", r"must both be names given to isentrope\.engines\.skyrl\.register"),
    ],
)
def test_an_option_that_the_objective_replaces_is_refused(option: str, value: Any, message: str) -> None:
    skyrl.register(presets.ce_gppo)
    held = Trainer(algorithm(presets.ce_gppo, **{option: value}))
    with pytest.raises(skyrl.EngineError, match=message):
        held.compute_advantages_and_returns(skyrl_batch(make(), ROWS))


def test_skyrls_off_policy_correction_is_refused_rather_than_dropped() -> None:
    skyrl.register(presets.ce_gppo)
    corrected = algorithm(presets.ce_gppo)
    corrected.off_policy_correction.tis_ratio_type = "token"
    with pytest.raises(skyrl.EngineError, match="fill the objective's slot `correction`"):
        Trainer(corrected).compute_advantages_and_returns(skyrl_batch(make(), ROWS))


def test_step_wise_training_refuses_controllers() -> None:
    skyrl.register(presets.adapo)
    with pytest.raises(skyrl.EngineError, match="without controllers"):
        Trainer(algorithm(presets.adapo), step_wise=True).compute_advantages_and_returns(skyrl_batch(make(), ROWS))


REFUSED: dict[str, tuple[Callable[[], Objective], str]] = {
    "entropy in the loss": (lambda: presets.entropy_bonus, "loss needs `entropy`"),
    "statistics of the batch": (lambda: presets.clip_cov, 'set scope="micro_batch"'),
    "prompts": (lambda: replace(presets.grpo, aggregate=PromptMean()), "aggregate: PromptMean"),
    "what drops and still counts": (
        lambda: replace(presets.grpo, select=(VaryingReward(count="all"),)),
        'set count="kept"',
    ),
    "a mask that would be another": (
        lambda: replace(presets.gspo, select=(VaryingReward(),)),
        "ratio reads `mask` in the loss",
    ),
    "sampling": (lambda: presets.dapo_full, "rollout: SkyRL samples by its own options"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_skyrl_cannot_host_is_refused_by_name(case: str) -> None:
    made, message = REFUSED[case]
    with pytest.raises(skyrl.EngineError, match=message):
        skyrl.register(made())


def test_groups_are_what_skyrl_calls_uids() -> None:
    columns = skyrl._columns(torch.ones(4, 2), ["b", "a", "b", "c"], torch.ones(4, 2, dtype=torch.bool))
    assert columns["group"].tolist() == [0, 1, 0, 2]
    assert GROUP == 4


def test_the_state_that_the_controllers_have_reached_goes_with_each_mini_batch() -> None:
    made = make()
    skyrl.register(presets.adapo)
    held = Trainer(algorithm(presets.adapo))
    data = held.compute_advantages_and_returns(skyrl_batch(made, 8))
    held._state = dict.fromkeys(held._state, 0.5)
    sent: list[Any] = []

    class Recording(Workers):
        def forward_backward_from_staged(self, model: str, chunk_refs: Any, loss_fn_config: Any = None) -> Any:
            sent.append(loss_fn_config["mini_batch"])
            return super().forward_backward_from_staged(model, chunk_refs, loss_fn_config)

    held.dispatch = Recording(made.logp, held.cfg.trainer.algorithm, 4, [], [])
    held._execute_training_step("policy", data)
    assert [part["state"] for part in sent] == [held._state] * 2
    assert [part["totals"]["tokens"] for part in sent] == [float(made.columns["mask"][i : i + 8].sum()) for i in (0, 8)]
    assert isinstance(held.dispatch, Recording)


def test_a_length_that_contradicts_skyrls_is_refused() -> None:
    objective = replace(presets.dr_grpo, aggregate=ConstantLength(64))
    skyrl.register(objective)
    with pytest.raises(skyrl.EngineError, match=r"max_seq_len=32 contradicts ConstantLength\(length=64\)"):
        Trainer(algorithm(objective)).compute_advantages_and_returns(skyrl_batch(make(), ROWS))


def test_the_clips_shares_are_logged_by_side() -> None:
    made = make()
    (found,) = train(presets.ce_gppo, made, micro=ROWS).metrics
    prepared, _ = presets.ce_gppo.prepare(made.columns)
    low, high = presets.ce_gppo.clipped(prepared | {"logp": made.logp})
    count = made.columns["mask"].sum()
    assert (found["clip_low"], found["clip_high"]) == pytest.approx(
        (float(low.sum() / count), float(high.sum() / count))
    )
    assert 0 < found["clip_low"] != found["clip_high"] > 0


def test_a_correction_without_the_samplers_log_probabilities_is_an_error() -> None:
    made, objective = make(), OBJECTIVES["corrected"]
    sent = {"mini_batch": {"totals": {"tokens": 1.0, "rows": 1.0, "groups": 0.0}, "state": {}}}
    loss, mask = skyrl.PolicyLoss(objective), made.columns["mask"].float()
    with pytest.raises(skyrl.EngineError, match=r"set generator\.sampling_params\.logprobs=1"):
        loss(made.logp, made.columns["old_logp"], made.columns["value"], algorithm(objective, **sent), mask)


def test_two_objectives_under_two_names_are_refused() -> None:
    skyrl.register(presets.ce_gppo)
    skyrl.register(presets.grpo, name="other")
    try:
        held = Trainer(algorithm(presets.ce_gppo, advantage_estimator="other"))
        with pytest.raises(skyrl.EngineError, match="name different objectives"):
            held.compute_advantages_and_returns(skyrl_batch(make(), ROWS))
    finally:
        for registry in (ppo_utils.PolicyLossRegistry, ppo_utils.AdvantageEstimatorRegistry):
            registry._functions.pop("other")


def test_a_batch_leaves_nothing_behind_for_the_next_call_of_the_estimator() -> None:
    train(presets.grpo, make())
    data = skyrl_batch(make(seed=1), ROWS)
    alone, _ = skyrl.AdvantageEstimator(presets.grpo)(data["rewards"], data["response_mask"], ["a", "b"] * 8)
    assert not torch.equal(
        alone, skyrl.AdvantageEstimator(presets.grpo)(data["rewards"], data["response_mask"], ["a"] * 16)[0]
    )


def test_a_critics_step_is_skyrls_alone() -> None:
    skyrl.register(presets.ppo)
    held = Trainer(algorithm(presets.ppo))
    data = held.compute_advantages_and_returns(skyrl_batch(make(), ROWS))
    data.metadata["critic_mini_batch_boundaries"] = [(0, ROWS)]
    calls: list[Any] = []

    class Critic:
        def stage_data(self, model: str, data: Any, boundaries: Any) -> Any:
            return [[data]]

        def forward_backward_from_staged(self, model: str, chunk_refs: Any, **more: Any) -> Any:
            calls.append((model, more))
            return SimpleNamespace(metrics={"critic_loss": 1.0})

        def optim_step(self, model: str) -> None:
            return None

    held.dispatch = Critic()
    held._execute_training_step("critic", data)
    assert calls == [("critic", {})]


def test_a_selection_is_refused_in_step_wise_training() -> None:
    skyrl.register(presets.dapo)
    with pytest.raises(skyrl.EngineError, match="without controllers and `select`"):
        Trainer(algorithm(presets.dapo), step_wise=True).compute_advantages_and_returns(skyrl_batch(make(), ROWS))


def test_skyrls_command_line_takes_our_names_and_builds_our_configuration() -> None:
    skyrl.register("ce_gppo")
    made = config.make_config(algorithm_cls=skyrl.AlgorithmConfig)
    keys = {"policy_loss_type": skyrl.NAME, "advantage_estimator": skyrl.NAME, "loss_reduction": "token_mean"}
    found = made.from_cli_overrides([f"trainer.algorithm.{key}={value}" for key, value in keys.items()])
    assert isinstance(found.trainer.algorithm, skyrl.AlgorithmConfig)
    skyrl.check_options(presets.ce_gppo, found.trainer.algorithm)
    assert skyrl.NAME in ppo_utils.PolicyLossRegistry.list_available()
    ppo_utils.repopulate_all_registries()  # SkyRL's validation does; it must leave ours
    assert ppo_utils.PolicyLossRegistry.get(skyrl.NAME) == skyrl.PolicyLoss(presets.ce_gppo)
    assert ppo_utils.AdvantageEstimatorRegistry.get(skyrl.NAME) == skyrl.AdvantageEstimator(presets.ce_gppo)
