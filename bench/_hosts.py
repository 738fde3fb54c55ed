"""The loss code of TRL and verl, called directly: their own functions on our tensors.

Each host offers `advantages(...)` and `loss(...)`. Nothing of them is imported before it is asked for.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Loss = Callable[[Tensor], Tensor]
TRL_EPS = 1e-4


class _OneProcess:
    """What TRL's loss asks of `accelerate.Accelerator`, for a single process: nothing has to be moved."""

    num_processes = 1
    sync_gradients = True

    def gather(self, x: Tensor) -> Tensor:
        return x

    def reduce(self, x: Tensor, reduction: str = "sum") -> Tensor:
        return x


def trl_advantages(batch: Mapping[str, Tensor], group_size: int, scaled: bool) -> Tensor:
    """TRL's formula, [B]; it stands in the middle of a method that also generates, so it cannot be called alone."""
    reward = batch["reward"].view(-1, group_size)
    centred = reward - reward.mean(1, keepdim=True)
    return (centred / (reward.std(1, keepdim=True) + TRL_EPS) if scaled else centred).flatten()


def trl_loss(batch: Mapping[str, Tensor], advantages: Tensor, **options: Any) -> Loss:
    """logp -> loss by `GRPOTrainer._compute_loss` itself, its metrics included, on a stand-in for the trainer."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    arguments = {"delta": None, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05, "steps_per_generation": 1}
    settings = {"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.2, "importance_sampling_level": "token"}
    trainer = SimpleNamespace(
        **settings | options,
        args=SimpleNamespace(**arguments),
        model=SimpleNamespace(training=True),
        accelerator=_OneProcess(),
        beta=0.0,
        use_vllm=False,
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=batch["mask"].shape[1],
        _metrics={"train": defaultdict(list)},
    )
    tokens = batch["mask"].long()  # the dtype that TRL gives its masks
    inputs = {
        "prompt_ids": tokens[:, :1],
        "prompt_mask": tokens[:, :1],
        "completion_ids": tokens,
        "completion_mask": tokens,
        "advantages": advantages,
        "old_per_token_logps": batch["old_logp"],
        "num_items_in_batch": tokens.sum().float(),
    }

    def loss(logp: Tensor) -> Tensor:
        trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logp, batch["entropy"], None)
        return GRPOTrainer._compute_loss(trainer, None, inputs)

    return loss


def verl_advantages(estimator: str, batch: Mapping[str, Tensor]) -> Callable[[], Tensor]:
    """() -> advantages [B,T] by verl's registered estimator; "dr_grpo" is "grpo" without the division by the std."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    options = {"norm_adv_by_std_in_grpo": False} if estimator.startswith("dr_") else {}
    function = get_adv_estimator_fn(estimator.removeprefix("dr_"))
    mask, uid = batch["mask"], batch["group"].numpy().astype(str).astype(object)
    last = torch.arange(mask.shape[1]) == mask.sum(-1, keepdim=True) - 1
    rewards = torch.where(last, batch["reward"][:, None], 0.0)
    return lambda: function(token_level_rewards=rewards, response_mask=mask, index=uid, **options)[0]


def verl_loss(batch: Mapping[str, Tensor], mode: str, aggregation: str, **options: Any) -> Callable[..., Tensor]:
    """(logp, advantages) -> loss by verl's registered policy loss, its metrics included."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig, PolicyLossConfig

    policy = {key: options.pop(key) for key in list(options) if key in PolicyLossConfig.__dataclass_fields__}
    config = ActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode=mode, **policy),
        **options,
    )
    rows, length = batch["mask"].shape
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=int(batch["mask"].sum()), global_batch_size=rows, loss_scale_factor=length
    )
    function = get_policy_loss_fn(mode)

    def loss(logp: Tensor, advantages: Tensor) -> Tensor:
        return function(
            old_log_prob=batch["old_logp"],
            log_prob=logp,
            advantages=advantages,
            response_mask=batch["mask"],
            loss_agg_mode=aggregation,
            config=config,
            rollout_is_weights=None,
        )[0]

    return loss
