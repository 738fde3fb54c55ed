"""A rollout batch on its way from TRL's dictionary to the columns of an objective, to the logs and the token sink."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl.models.utils import disable_gradient_checkpointing

from isentrope import masked
from isentrope.aggregate import Totals
from isentrope.engines import trl_batch, trl_metrics
from isentrope.objective import Objective

_SCORED = (
    ("old_logp", "old_per_token_logps"),
    ("old_entropy", "old_entropy"),
    ("rollout_logp", "sampling_per_token_logps"),
    ("ref_logp", "ref_per_token_logps"),
)
_SINK_COLUMNS = ("task", "old_logp", "rollout_logp", "entropy", "logp", "mask")
OURS = ("length_limit_hit", "old_entropy")  # what `Sampled.output` has beyond TRL's keys


@dataclass(frozen=True)
class Sampled:
    """What one call of TRL's `_generate_and_score_completions` made.

    output: TRL's dictionary, of this rank's rows, with `length_limit_hit` [B] and, where TRL took the old policy's
    log-probabilities, its `old_entropy` [B,T].
    Of all ranks, rank after rank: reward [N]; tempered [N], rows sampled at another temperature; task names [N], or
    None; unscored [N], rows without a reward, whose `reward` is the mean of their group's.
    """

    output: dict[str, Any]
    reward: Tensor
    tempered: Tensor
    tasks: list[Any] | None
    unscored: Tensor


def sampled(
    trainer: Any, examples: Sequence[dict[str, Any]], output: dict[str, Any], num_tempered: int, passes: list[Any]
) -> Sampled:
    """Put together what a call of TRL's left behind. passes: (log-probabilities, entropies) of the policy's passes."""
    assert trainer._scored is not None, "TRL scored no completions"
    per_function, completions = trainer._scored
    logp = output.get("old_per_token_logps")
    if logp is not None:
        entropy = next(h for scored, h in passes if scored is logp)
        assert entropy is not None, "the policy's pass gives entropies"
        output["old_entropy"] = entropy
    output["length_limit_hit"] = length_limit_hit(trainer, completions)
    unscored = trl_batch.unscored_rows(per_function)
    reward = trl_batch.weighted_reward(per_function, trainer.reward_weights)
    reward = trl_batch.neutral_reward(reward, unscored, trainer._group_size)
    tempered = torch.arange(len(reward), device=reward.device) < num_tempered
    tasks = trl_batch.tasks_of(examples)
    return Sampled(output, reward, tempered, None if tasks is None else gather_object(tasks), unscored)


def length_limit_hit(trainer: Any, completions: list[list[int]]) -> Tensor:
    """Whether each of this rank's completions was cut: its last token ends nothing (TRL's definition)."""
    ends = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}
    return torch.tensor([ids[-1] not in ends for ids in completions], device=trainer.accelerator.device)


def columns(trainer: Any, found: Sampled) -> dict[str, Tensor]:
    """The columns of a rollout batch, of the rows of all ranks."""
    batch = trl_batch.gather_rows(_own_columns(trainer, found.output), trainer.accelerator)
    num_rows, device = len(batch["mask"]), batch["mask"].device
    batch["reward"] = found.reward
    batch["group"] = torch.arange(num_rows, device=device) // trainer._group_size  # a prompt's rows stay together
    if trainer._sampling.partial:
        batch["tempered"] = found.tempered
    if trainer.max_completion_length is not None:
        batch["length_limit"] = torch.full((num_rows,), float(trainer.max_completion_length), device=device)
    if found.tasks is not None:
        trainer._tasks.add(found.tasks)
        batch["task"] = trainer._tasks.ids(found.tasks, device)
    return trl_batch.without_rows(batch, found.unscored) if found.unscored.any() else batch


def _own_columns(trainer: Any, output: dict[str, Any]) -> dict[str, Tensor]:
    """This rank's columns that must be gathered."""
    found = {"mask": trl_batch.policy_mask(output), "length_limit_hit": output["length_limit_hit"]}
    found |= {name: output[key].float() for name, key in _SCORED if key in output}
    if "old_logp" not in found:
        found |= _old_policy(trainer, output)
    if "importance_sampling_ratio" in output:
        ratio = output["importance_sampling_ratio"]
        found["importance_sampling_ratio"] = ratio.expand(found["mask"].shape).contiguous()
    return found


def _old_policy(trainer: Any, output: dict[str, Any]) -> dict[str, Tensor]:
    """`old_logp`, `old_entropy` where TRL made no pass for them: ours, if the objective reads them at rollout."""
    if not {"old_logp", "old_entropy"} & (trainer._needs.prepare | trainer._needs.optional):
        # nothing reads it at rollout; the loss puts the current policy's, which is the same policy, in its place
        return {"old_logp": torch.zeros_like(output["completion_ids"], dtype=torch.float32)}
    checkpointing = trainer.args.gradient_checkpointing_kwargs
    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, checkpointing):
        logp, entropy, _ = trainer._score(trainer.model, output, batch_size=trainer._micro_batch_size)
    return {"old_logp": logp.float(), "old_entropy": entropy.float()}


def log(trainer: Any, prepared: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Our metrics of a rollout batch, and our advantages in TRL's table of completions. own: this rank's rows."""
    logged = trainer._logs["advantages"]
    mean = masked.row_mean(prepared["advantage"], prepared["mask"]).tolist()
    for _ in range(min(len(mean), len(logged))):
        logged.pop()
    logged.extend(mean)
    trl_metrics.log_rollout(trainer._pools[trainer._mode], own, trainer._tasks.names)


def token_columns(
    now: Objective, rows: Mapping[str, Tensor], totals: Totals, token_id: Tensor, group_size: int
) -> dict[str, Tensor]:
    """What the token sink gets of a micro-batch; see `ObjectiveTrainer`."""
    columns = {name: rows[name].detach() for name in _SINK_COLUMNS if name in rows}
    columns |= {"row": rows["row"], "group": rows["row"] // group_size}
    columns |= {"token_id": token_id, "advantage": now.shaped(rows)}
    return columns | {"weight": now.weights(rows, totals)}
