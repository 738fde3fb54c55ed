"""OpenRLHF 0.11: our objectives in its actor and its experience maker.

```text
$ python -m isentrope.engines.openrlhf ce_gppo --actor.model_name_or_path ... --algo.advantage.estimator reinforce
```

takes all further arguments of `openrlhf.cli.train_ppo_ray`, and runs that with two classes in place of OpenRLHF's: an
actor whose loss is the objective, and a trainer whose experience maker computes its advantages. A script of one's own
calls `install(objective)` before it imports `train_ppo_ray`.

**Scale.** OpenRLHF hands the loss the tokens and rows of the optimizer step, over all ranks, and the number of ranks
whose gradients it averages: the objective's `aggregate` divides by these. `--actor.loss_agg_mode` has no part in it.

**Columns.** Advantages are computed on the whole rollout batch, after OpenRLHF's length penalties, with the old
log-probabilities and what else an experience holds. The loss sees the columns of OpenRLHF's own loss. `refusals` names
what an objective lacks.

**Options.** What the objective replaces is refused unless at its default: the clip, `--actor.policy_loss_type`,
`--actor.loss_agg_mode`, sampler corrections. `--algo.advantage.estimator` must be `reinforce`, or `gae` where the
objective reads `value`; it decides a critic's returns alone. KL penalty and entropy coefficient stay OpenRLHF's, in
the loss; a KL term in the reward is refused. The asynchronous trainer is out of reach of `install`, and refused.
"""

import importlib.util
import inspect
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if importlib.util.find_spec("openrlhf") is None:
    raise ImportError(
        "isentrope.engines.openrlhf needs OpenRLHF 0.11: install isentrope in the environment that OpenRLHF trains in;"
        " there is none in this one"
    )

import ray
import torch
from openrlhf.models.loss import PolicyLoss as TheirLoss
from torch import Tensor, nn
from torch.nn.functional import pad

from isentrope import masked, spec
from isentrope.aggregate import Totals
from isentrope.engines import loss_hook
from isentrope.engines.loss_hook import EngineError, Seam
from isentrope.objective import Objective

__all__ = ["EngineError", "PolicyLoss", "install", "refusals", "set_advantages"]

_LOSS = frozenset({"logp", "old_logp", "rollout_logp", "mask"})
SEAM = Seam(
    "OpenRLHF", prepare=frozenset({"reward", "group", "value", "length_limit_hit"}) | (_LOSS - {"logp"}), loss=_LOSS
)
_SAMPLER = "is_correction_level"  # also what makes vLLM report log-probabilities


def refusals(objective: Objective) -> list[str]:
    """Sentences on what OpenRLHF has no place for; empty where it hosts the objective exactly."""
    return loss_hook.refusals(objective, SEAM)


class PolicyLoss(nn.Module):
    """The objective in place of OpenRLHF's policy loss `theirs`, called and answering as that is.

    Returns -J of a micro-batch times dp_size, the share of clipped tokens, the mean of old_logp - logp, and None twice
    for OpenRLHF's sampler correction. Micro-batches and ranks add up to the loss of the optimizer step.
    Raises EngineError for an option of `theirs` that the objective replaces.
    """

    def __init__(self, objective: Objective, theirs: Any) -> None:
        super().__init__()
        self.objective = objective
        check_options(objective, theirs)

    def forward(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        action_mask: Tensor | None = None,
        rollout_log_probs: Tensor | None = None,
        dp_size: int = 1,
        batch_num_tokens: Tensor | float | None = None,
        global_batch_size: Tensor | float | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        columns = loss_hook.rows(
            logp=log_probs,
            old_logp=old_log_probs,
            advantage=advantages,
            mask=torch.ones_like(log_probs, dtype=torch.bool) if action_mask is None else action_mask.bool(),
            rollout_logp=rollout_log_probs,
        )
        loss_hook.check_sampler(self.objective, columns, "OpenRLHF", f"set --algo.advantage.{_SAMPLER} token")
        counted = self.objective.count(columns)
        totals = Totals(
            counted.tokens if batch_num_tokens is None else float(batch_num_tokens),
            counted.rows if global_batch_size is None else float(global_batch_size),
            0.0,
        )
        low, high = loss_hook.clip_shares(self.objective, columns)
        drift = masked.mean(columns["old_logp"] - log_probs.detach(), columns["mask"])
        return self.objective.loss(columns, totals) * dp_size, low + high, drift, None, None


def check_options(objective: Objective, theirs: Any) -> None:
    """EngineError for an option that OpenRLHF's policy loss was made with and the objective replaces."""
    for name, parameter in list(inspect.signature(TheirLoss.__init__).parameters.items())[1:]:
        value = getattr(theirs, name)
        wanted = name == _SAMPLER and objective.correction is not None
        if not wanted and _plain(value) != _plain(parameter.default):
            raise EngineError(f"{name}={value!r} has no effect here: the objective's slots decide; leave the default")


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def set_advantages(objective: Objective, experiences: list[Any], args: Any) -> None:
    """Puts the objective's advantages into the experiences of one whole rollout batch, in place.

    args: OpenRLHF's arguments. Raises EngineError for one that contradicts the objective.
    """
    check_arguments(objective, experiences, args)
    width = max(e.action_mask.shape[1] for e in experiences)
    columns = _columns(experiences, width, args.rollout.n_samples_per_prompt)
    advantage = loss_hook.advantages(objective, columns)
    parts = torch.split(advantage, [len(e.action_mask) for e in experiences])
    for e, rows in zip(experiences, parts, strict=True):
        e.advantages = rows[:, : e.action_mask.shape[1]].to(e.action_log_probs.dtype)


def _columns(experiences: list[Any], width: int, group_size: int) -> dict[str, Tensor]:
    """All rows of the experiences, padded to `width`; optional columns where every experience has them."""

    def joined(name: str) -> Tensor:
        parts = [getattr(e, name) for e in experiences]
        return torch.cat([pad(x, (0, width - x.shape[1])) if x.ndim == 2 else x for x in parts])

    index = torch.tensor([i for e in experiences for i in e.index])
    columns = {
        "mask": joined("action_mask").bool(),
        "reward": masked.upcast(joined("rewards")),
        "group": index // group_size,
    }
    optional = {"old_logp": "action_log_probs", "rollout_logp": "rollout_log_probs", "value": "values"}
    optional |= {"length_limit_hit": "truncated"}
    present = {n: theirs for n, theirs in optional.items() if all(getattr(e, theirs) is not None for e in experiences)}
    columns |= {name: joined(theirs) for name, theirs in present.items()}
    return {name: x.bool() if name == "length_limit_hit" else x for name, x in columns.items()}


def check_arguments(objective: Objective, experiences: list[Any], args: Any) -> None:
    """EngineError for an argument of OpenRLHF that would change the advantages, and would not."""
    estimator = args.algo.advantage.estimator
    wanted = "gae" if "value" in objective.columns().prepare else "reinforce"
    if estimator != wanted:
        raise EngineError(
            f"--algo.advantage.estimator {estimator} has no effect on advantages here, they are the objective's:"
            f" set {wanted}"
        )
    if args.algo.kl.init_coef > 0 and not args.algo.kl.use_loss:
        raise EngineError("--algo.kl.init_coef puts a KL term into the reward: set --algo.kl.use_loss as well, or 0")
    low, high = args.reward.clip_range or (-torch.inf, torch.inf)
    if any(bool(((e.rewards < low) | (e.rewards > high)).any()) for e in experiences):
        raise EngineError(f"rewards lie beyond --reward.clip_range {low} {high}, which has no effect here: widen it")


def install(objective: Objective | str | Path | Mapping[str, Any]) -> None:
    """Puts our actor and trainer where `openrlhf.cli.train_ppo_ray` imports OpenRLHF's from, in the driver's process.

    Ray carries both to the workers with the objective in them. Raises EngineError for an objective that OpenRLHF cannot
    host exactly.
    """
    from openrlhf.trainer import ppo_trainer
    from openrlhf.trainer.ray import ppo_actor

    loaded = spec.load(objective)
    loss_hook.check(loaded, SEAM)
    ppo_actor.PolicyModelActor = _remote(_actor(_local(ppo_actor.PolicyModelActor), loaded), num_gpus=1)
    ppo_trainer.PPOTrainer = _remote(_trainer(_local(ppo_trainer.PPOTrainer), loaded))


def _local(remote: Any) -> Any:
    """The class that OpenRLHF made a Ray actor of, as it was written: Ray takes a subclass of its own copy of it for
    that copy, and would run OpenRLHF's.
    """
    return remote.__ray_metadata__.modified_class.__ray_actor_class__


def _remote(cls: type, **options: Any) -> Any:
    return ray.remote(**options)(cls) if options else ray.remote(cls)


def _actor(base: Any, objective: Objective) -> type:
    class PolicyModelActor(base):
        """OpenRLHF's, with our loss in its trainer."""

        def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> Any:
            made = super().init_model_from_pretrained(*args, **kwargs)
            self.trainer.actor_loss_fn = PolicyLoss(objective, self.trainer.actor_loss_fn)
            return made

    return PolicyModelActor


def _trainer(base: Any, objective: Objective) -> type:
    class PPOTrainer(base):
        """OpenRLHF's, with our advantages from its experience maker."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            maker = self.experience_maker
            compute = maker.compute_advantages_and_returns

            def compute_advantages_and_returns(experiences: list[Any]) -> list[Any]:
                made: list[Any] = compute(experiences)
                set_advantages(objective, made, maker.args)
                return made

            maker.compute_advantages_and_returns = compute_advantages_and_returns

    return PPOTrainer


def main(arguments: list[str]) -> None:
    """`python -m isentrope.engines.openrlhf OBJECTIVE [arguments of openrlhf.cli.train_ppo_ray]`."""
    if not arguments or arguments[0].startswith("-"):
        raise SystemExit("usage: python -m isentrope.engines.openrlhf OBJECTIVE [arguments of train_ppo_ray]")
    if "--train.async_enable" in arguments:
        raise EngineError(
            "--train.async_enable makes its trainers inside workers, where they are OpenRLHF's: leave it out"
        )
    install(arguments[0])
    sys.argv = ["openrlhf.cli.train_ppo_ray", *arguments[1:]]
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
