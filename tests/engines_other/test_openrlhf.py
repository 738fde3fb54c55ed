"""OpenRLHF: through its own loss signature, batch totals, experiences and advantages, loss and gradient are ours."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope import Objective, presets
from isentrope.advantage import GroupCentred, GroupRelative, LeaveOneOut
from isentrope.aggregate import ConstantLength, PromptMean, SequenceMean, TokenMean
from isentrope.correction import TruncatedImportance
from isentrope.errors import IsentropeWarning
from isentrope.ratio import SequenceRatio
from isentrope.surrogate import ClipCov, KLCov, PPOClip

from .batches import GROUP, ROWS, Made, make
from .conftest import importable, load

cloudpickle = load("cloudpickle")
losses = load("openrlhf.models.loss")
loss_utils = load("openrlhf.utils.loss_utils")
experience = load("openrlhf.trainer.ppo_utils.experience")
maker = load("openrlhf.trainer.ppo_utils.experience_maker")
ppo_actor = load("openrlhf.trainer.ray.ppo_actor")
ppo_trainer = load("openrlhf.trainer.ppo_trainer")
ours = load("isentrope.engines.openrlhf")

pytestmark = pytest.mark.engine

COV = ClipCov(cov_low=0.1, cov_high=5.0, ratio=0.1, scope="micro_batch")
PLAIN = {
    name: getattr(presets, name)
    for name in ("grpo", "rloo", "gspo", "cispo", "gmpo", "sapo", "gppo", "ce_gppo", "reinforce_pp", "nsr")
}
OBJECTIVES = PLAIN | {
    "dr_grpo": replace(presets.dr_grpo, aggregate=ConstantLength(32)),
    "corrected": replace(presets.grpo, correction=TruncatedImportance(cap=1.02)),
    "clip_cov": replace(presets.clip_cov, surrogate=COV),
    "adapo at its start": presets.adapo.at(presets.adapo.init()),
    "repo_d at its start": presets.repo_d.at(presets.repo_d.init()),
}


def arguments(**changed: Any) -> Any:
    """OpenRLHF's arguments, those that its experience maker reads."""
    advantage = SimpleNamespace(estimator="reinforce", gamma=1.0, lambd=1.0, no_std_norm=True)
    reward = SimpleNamespace(clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None)
    kl = SimpleNamespace(init_coef=0.0, use_loss=False)
    made = SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage, kl=kl),
        reward=reward,
        rollout=SimpleNamespace(n_samples_per_prompt=GROUP, max_new_tokens=64),
    )
    for path, value in changed.items():
        *way, last = path.split("__")
        held = made
        for name in way:
            held = getattr(held, name)
        setattr(held, last, value)
    return made


def experiences(made: Made, rows: int = 3) -> list[Any]:
    """The rollout batch as OpenRLHF holds it: in pieces, out of order, each as wide as its longest row."""
    c, order = made.columns, [5, 0, 9, 1, 15, 2, 3, 4, 14, 6, 7, 8, 10, 13, 11, 12]
    found = []
    for first in range(0, ROWS, rows):
        part = order[first : first + rows]
        mask = c["mask"][part]
        width = int(mask.any(0).nonzero().max()) + 1
        found.append(
            experience.Experience(
                index=list(part),
                action_mask=mask[:, :width],
                action_log_probs=c["old_logp"][part, :width],
                rollout_log_probs=c["rollout_logp"][part, :width],
                values=c["value"][part, :width],
                rewards=c["reward"][part].clone(),
                response_length=mask.sum(-1),
                truncated=torch.zeros(len(part)),
                kl=torch.zeros(len(part), width, dtype=c["reward"].dtype),
            )
        )
    return found


def held_maker(args: Any) -> Any:
    """OpenRLHF's experience maker without its constructor, which wants groups of Ray actors."""
    made = object.__new__(maker.RemoteExperienceMaker)
    made.strategy, made.args = SimpleNamespace(args=args), args
    made.advantage_estimator, made.kl_ctl = args.algo.advantage.estimator, SimpleNamespace(value=0.0)
    return made


def their_loss(objective: Objective) -> Any:
    return losses.PolicyLoss(is_correction_level="off" if objective.correction is None else "token")


def batch_info(parts: list[Any], ranks: int) -> list[dict[str, Any]]:
    """What OpenRLHF passes with each micro-batch of one optimizer step, on each of `ranks` equal ranks."""
    strategy = SimpleNamespace()
    found = list(loss_utils.iter_grad_accum_global_norm(parts, strategy, len(parts), lambda e: e.action_mask))
    return [info | {"dp_size": ranks} for _, info in found]


def expected(objective: Objective, made: Made) -> tuple[Tensor, Tensor]:
    prepared, state = objective.prepare(made.columns, objective.init())
    now, logp = objective.at(state), made.logp.clone().requires_grad_()
    loss = now.loss(prepared | {"logp": logp}, now.count(prepared))
    (gradient,) = torch.autograd.grad(loss, logp)
    return loss.detach(), gradient


@pytest.mark.parametrize(
    ("name", "rows"),  # Clip-Cov takes covariances over a micro-batch
    [(name, rows) for name in OBJECTIVES for rows in (ROWS, 3, 1) if name != "clip_cov" or rows == ROWS],
)
def test_through_openrlhfs_experiences_loss_and_gradient_are_the_objectives(name: str, rows: int) -> None:
    objective, made = OBJECTIVES[name], make()
    parts, args = experiences(made, rows), arguments()
    trained = held_maker(args).compute_advantages_and_returns(parts)
    ours.set_advantages(objective, trained, args)
    loss, logp, total = ours.PolicyLoss(objective, their_loss(objective)), made.logp.clone().requires_grad_(), 0.0
    for e, info in zip(trained, batch_info(trained, ranks=1), strict=True):
        current = logp[e.index, : e.action_mask.shape[1]]
        given = (current, e.action_log_probs, e.advantages)
        part, clipped, drift, *rest = loss(*given, e.action_mask, rollout_log_probs=e.rollout_log_probs, **info)
        total = total + part / len(trained)  # DeepSpeed divides by the micro-batches of a step
        assert rest == [None, None]
        assert 0 <= clipped <= 1
        assert torch.isfinite(drift)
    (gradient,) = torch.autograd.grad(total, logp)
    value, wanted = expected(objective, made)
    torch.testing.assert_close(torch.as_tensor(total).detach(), value, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-10)  # OpenRLHF's totals are float32
    assert wanted.count_nonzero() > 10


@pytest.mark.parametrize(("aggregate", "token_level"), [(TokenMean(), True), (SequenceMean(), False)])
@pytest.mark.parametrize("ranks", [1, 4])
def test_openrlhfs_own_loss_has_the_same_value_and_gradient(aggregate: Any, token_level: bool, ranks: int) -> None:
    objective = Objective(advantage=GroupCentred(), surrogate=PPOClip(0.2, 0.2), aggregate=aggregate)
    columns = {n: torch.nan_to_num(x) if x.is_floating_point() else x for n, x in make().columns.items()}
    logp = torch.nan_to_num(make().logp)
    advantages = objective.prepare(columns)[0]["advantage"]
    info = {"dp_size": ranks, "batch_num_tokens": 171.0, "global_batch_size": 23.0}
    found = []
    for loss in (
        ours.PolicyLoss(objective, losses.PolicyLoss()),
        losses.PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.2, token_level_loss=token_level),
    ):
        leaf = logp.clone().requires_grad_()
        value, clipped, drift, *_ = loss(leaf, columns["old_logp"], advantages, columns["mask"], **info)
        found.append((value, torch.autograd.grad(value, leaf)[0], clipped, drift))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-6, atol=1e-9)


def test_gspo_is_openrlhfs() -> None:
    objective = replace(presets.gspo, ratio=SequenceRatio(), surrogate=PPOClip(3e-4, 4e-4))
    columns = {n: torch.nan_to_num(x) if x.is_floating_point() else x for n, x in make().columns.items()}
    info = {"dp_size": 2, "batch_num_tokens": 171.0, "global_batch_size": 23.0}
    advantages = objective.prepare(columns)[0]["advantage"]
    theirs = losses.PolicyLoss(clip_eps_low=3e-4, clip_eps_high=4e-4, policy_loss_type="gspo")
    gradients = []
    for loss in (ours.PolicyLoss(objective, losses.PolicyLoss()), theirs):
        leaf = torch.nan_to_num(make().logp).requires_grad_()
        value, *_ = loss(leaf, columns["old_logp"], advantages, columns["mask"], **info)
        gradients.append(torch.autograd.grad(value, leaf)[0])
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("estimator", "rule"),
    [("rloo", LeaveOneOut()), ("dr_grpo", GroupCentred()), ("group_norm", GroupRelative(eps=1e-9))],
)
def test_our_advantages_are_those_of_openrlhfs_estimators(estimator: str, rule: Any) -> None:
    made = make()
    theirs = held_maker(arguments(algo__advantage__estimator=estimator)).compute_advantages_and_returns(
        experiences(made)
    )
    mine = experiences(made)
    ours.set_advantages(replace(presets.grpo, advantage=rule), mine, arguments())
    for a, b in zip(mine, theirs, strict=True):
        wanted = torch.where(a.action_mask, b.advantages, torch.zeros_like(b.advantages))
        torch.testing.assert_close(a.advantages, wanted, rtol=1e-6, atol=1e-7)


def test_without_totals_the_loss_is_that_of_the_rows_at_hand() -> None:
    made, objective = make(), presets.ce_gppo
    prepared, _ = objective.prepare(made.columns)
    loss, *_ = ours.PolicyLoss(objective, losses.PolicyLoss())(
        made.logp, made.columns["old_logp"], prepared["advantage"], made.columns["mask"]
    )
    torch.testing.assert_close(loss, expected(objective, made)[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "option",
    [
        {"clip_eps_high": 0.28},
        {"dual_clip": 3.0},
        {"token_level_loss": False},
        {"policy_loss_type": "gspo"},
        {"is_correction_level": "token"},
        {"is_correction_threshold": [0.5, 2.0]},
    ],
)
def test_an_option_that_the_objective_replaces_is_refused(option: dict[str, Any]) -> None:
    (name,) = option if "policy_loss_type" not in option else ("token_level_loss|policy_loss_type",)
    with pytest.raises(ours.EngineError, match=rf"({name})=.* has no effect here"):
        ours.PolicyLoss(presets.ce_gppo, losses.PolicyLoss(**option))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"algo__advantage__estimator": "rloo"}, "estimator rloo has no effect on advantages here"),
        ({"algo__kl__init_coef": 0.1}, "puts a KL term into the reward"),
        ({"reward__clip_range": (0, 0.4)}, "rewards lie beyond --reward.clip_range"),
    ],
)
def test_an_argument_that_would_change_the_advantages_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ours.EngineError, match=message):
        ours.set_advantages(presets.grpo, experiences(make()), arguments(**changed))


def test_an_objective_with_a_critic_wants_openrlhfs_gae() -> None:
    with pytest.raises(ours.EngineError, match="set gae"):
        ours.set_advantages(presets.ppo, experiences(make()), arguments())
    made = experiences(make())
    ours.set_advantages(presets.ppo, made, arguments(algo__advantage__estimator="gae"))
    prepared, _ = presets.ppo.prepare(make().columns)
    for e in made:
        torch.testing.assert_close(e.advantages, prepared["advantage"][e.index, : e.action_mask.shape[1]])


def test_a_token_without_a_finite_old_log_probability_leaves_the_loss_with_a_warning() -> None:
    made = make()
    old, logp = made.columns["old_logp"].clone(), made.logp.clone().requires_grad_()
    old[0, 0] = -torch.inf
    with pytest.warns(IsentropeWarning, match="excluded"):
        loss, *_ = ours.PolicyLoss(presets.cispo, losses.PolicyLoss())(
            logp, old, torch.nan_to_num(made.columns["value"]), made.columns["mask"], batch_num_tokens=100.0
        )
    (gradient,) = torch.autograd.grad(loss, logp)
    assert torch.isfinite(loss)
    assert gradient[0, 0] == 0
    assert gradient[0, 1] != 0


def test_a_correction_without_the_samplers_log_probabilities_is_an_error() -> None:
    made, objective = make(), OBJECTIVES["corrected"]
    loss = ours.PolicyLoss(objective, their_loss(objective))
    with pytest.raises(ours.EngineError, match=r"set --algo\.advantage\.is_correction_level token"):
        loss(made.logp, made.columns["old_logp"], made.columns["value"], made.columns["mask"])


REFUSED: dict[str, tuple[Callable[[], Objective], str]] = {
    "a controller": (lambda: presets.adapo, r"surrogate\.high is held by EntropyServo"),
    "a selection": (lambda: presets.dapo, r"select\.0: VaryingReward drops rows"),
    "the reference": (lambda: presets.high_entropy, "select"),
    "entropy in the loss": (lambda: presets.erc, "loss needs `entropy`"),
    "statistics of the batch": (lambda: replace(presets.kl_cov, surrogate=KLCov()), 'set scope="micro_batch"'),
    "groups in the loss": (lambda: replace(presets.grpo, aggregate=PromptMean()), "`group_tokens`"),
    "a length of the engine's": (lambda: presets.dr_grpo, "set length="),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_openrlhf_cannot_host_is_refused_by_name(case: str) -> None:
    made, message = REFUSED[case]
    with pytest.raises(ours.EngineError, match=message):
        ours.install(made())


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The actor and the trainer that stand where OpenRLHF's did, as classes."""
    monkeypatch.setattr(ppo_actor, "PolicyModelActor", ppo_actor.PolicyModelActor)
    monkeypatch.setattr(ppo_trainer, "PPOTrainer", ppo_trainer.PPOTrainer)
    ours.install("ce_gppo")
    return ours._local(ppo_actor.PolicyModelActor), ours._local(ppo_trainer.PPOTrainer)


def test_install_puts_the_loss_into_openrlhfs_actor(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    actor_class, _ = installed

    def init(self: Any, *args: Any) -> str:
        self.trainer = SimpleNamespace(actor_loss_fn=losses.PolicyLoss())
        return "made"

    monkeypatch.setattr(actor_class.__mro__[1], "init_model_from_pretrained", init)
    actor = object.__new__(actor_class)
    assert actor.init_model_from_pretrained("strategy") == "made"
    assert isinstance(actor.trainer.actor_loss_fn, ours.PolicyLoss)
    assert actor.trainer.actor_loss_fn.objective == presets.ce_gppo


def test_install_puts_the_advantages_into_openrlhfs_trainer(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, trainer_class = installed
    args = arguments()

    def init(self: Any) -> None:
        self.experience_maker = held_maker(args)

    monkeypatch.setattr(trainer_class.__mro__[1], "__init__", init)
    made = trainer_class().experience_maker.compute_advantages_and_returns(experiences(make()))
    alone = experiences(make())
    ours.set_advantages(presets.ce_gppo, alone, args)
    for a, b in zip(made, alone, strict=True):
        assert torch.equal(a.advantages, b.advantages)


def test_ray_makes_actors_of_our_classes() -> None:
    for module, name in ((ppo_actor, "PolicyModelActor"), (ppo_trainer, "PPOTrainer")):
        theirs = getattr(module, name)
        plain = theirs.__ray_metadata__.modified_class.__ray_actor_class__
        ours_ = ours._remote(type(name, (ours._local(theirs),), {"__module__": "ours"}))
        assert ours._local(theirs) is plain
        assert ours_.__ray_metadata__.modified_class.__ray_actor_class__.__module__ == "ours"


def test_both_classes_survive_the_way_to_a_worker(installed: Any) -> None:
    for cls in installed:
        again = cloudpickle.loads(cloudpickle.dumps(cls))
        assert again.__name__ == cls.__name__
        assert again.__mro__[1].__name__ == cls.__mro__[1].__name__


def test_the_command_runs_openrlhfs_with_ours_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_actor, "PolicyModelActor", ppo_actor.PolicyModelActor)
    monkeypatch.setattr(ppo_trainer, "PPOTrainer", ppo_trainer.PPOTrainer)
    monkeypatch.setattr(sys, "argv", sys.argv)
    with importable(), pytest.raises(SystemExit) as stopped:
        ours.main(["ce_gppo", "--help"])
    assert stopped.value.code == 0
    assert ours._local(ppo_actor.PolicyModelActor).__module__ == "isentrope.engines.openrlhf"
    with pytest.raises(ours.EngineError, match="async_enable"):
        ours.main(["ce_gppo", "--train.async_enable"])
    with pytest.raises(SystemExit, match="usage"):
        ours.main(["--help"])
