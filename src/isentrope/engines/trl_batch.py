"""Between TRL's dictionaries and the columns of an objective: masks, rewards, gathering over ranks, task names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isentrope import masked
from isentrope.aggregate import Totals
from isentrope.errors import IsentropeError
from isentrope.tasks.rows import ABSTAINS

PREFIX = "isentrope/"  # before the name of a column in TRL's dictionary of inputs
_TOTALS = tuple(f"{PREFIX}total_{name}" for name in ("tokens", "rows", "groups"))

# what TRL's forward pass takes besides the token ids
FORWARD_KEYS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


class RewardError(IsentropeError, ValueError):
    """A reward that cannot be used."""


class CompletionError(IsentropeError, ValueError):
    """A completion that cannot be trained on."""


@dataclass(frozen=True)
class SamplerCorrection:
    """TRL's own correction for the gap between vLLM and the trainer (`vllm_importance_sampling_*`), as a rule.

    importance_sampling_ratio: [B,T], from TRL, clipped or masked as its options say. Returns it: a factor on J.
    """

    def __call__(self, *, importance_sampling_ratio: Tensor) -> Tensor:
        return importance_sampling_ratio


def policy_mask(inputs: Mapping[str, Any]) -> Tensor:
    """True [B,T] at tokens the policy wrote: TRL's completion_mask without tool output."""
    mask: Tensor = inputs["completion_mask"].bool()
    return mask & inputs["tool_mask"].bool() if "tool_mask" in inputs else mask


def weighted_reward(per_function: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum over reward functions, [B], as TRL computes it: a NaN (None) counts as 0.

    per_function: [B, functions], checked by `check_rewards`. weights: [functions].
    """
    return (per_function * weights.to(per_function.device)).nansum(dim=1)


def unscored_rows(per_function: Tensor) -> Tensor:
    """True [B] where no reward function gave a number: None or NaN from all."""
    return per_function.isnan().all(dim=1)


def neutral_reward(reward: Tensor, unscored: Tensor, group_size: int) -> Tensor:
    """The rewards [B] with the mean of its group's scored rows for each unscored one, 0 where there is none.

    Groups are consecutive rows. Nothing trains on it: it keeps statistics of whole groups from taking an unscored row
    for a failure.
    """
    g = masked.groups(torch.arange(len(reward), device=reward.device) // group_size)
    total = masked.group_sum(masked.fill(reward, ~unscored), g)
    count = masked.group_sum((~unscored).to(reward.dtype), g)
    return torch.where(unscored, masked.divide(total, count)[g.index], reward)


def without_rows(columns: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """The columns with the rows [B] taken out of every statistic and of the loss: nothing of them is counted.

    Their mask is empty, and they are a group of their own, so that the others' group statistics are without them.
    """
    group = columns["group"]
    return dict(columns) | {
        "mask": columns["mask"] & ~rows[:, None],
        "group": torch.where(rows, group.max() + 1, group),
    }


def check_rewards(per_function: Tensor, names: Sequence[str], functions: Sequence[Any] = ()) -> None:
    """Raise RewardError for an infinite reward, and for a row that no function scored (NaN or None from all).

    per_function: [B, functions], rows of all ranks in prompt order. The message names function, row and value.
    functions: the reward functions. Where None of one of them means that the completion could not be scored, as those
    of `tasks.reward_function` say of themselves, such rows are no error.
    """
    infinite = torch.isinf(per_function).nonzero().tolist()
    if infinite:
        row, function = infinite[0]
        raise RewardError(
            f"reward function {names[function]!r} returned {per_function[row, function].item()} for row {row}: "
            "rewards must be finite; clip it, or return None where the function does not apply"
        )
    unscored = unscored_rows(per_function).nonzero().flatten().tolist()
    if unscored and not any(getattr(function, ABSTAINS, False) for function in functions):
        raise RewardError(
            f"no finite reward for row {unscored[0]} ({len(unscored)} of {len(per_function)} rows): "
            f"{', '.join(map(repr, names))} returned NaN or None; return a number from at least one function"
        )


def refuse_empty(completion_ids: Iterable[Sequence[int]], source: str) -> None:
    """Raise CompletionError where a completion has no token at all, not even one that ends it."""
    for row, ids in enumerate(completion_ids):
        if len(ids) == 0:
            raise CompletionError(
                f"{source} returned a completion of length 0 for row {row}: a completion needs at least one token; "
                "return the end-of-sequence token for an empty answer"
            )


def gather_rows(columns: Mapping[str, Tensor], accelerator: Any) -> dict[str, Tensor]:
    """The columns of all ranks, rank after rank; [B,T] columns are padded at the end to the longest T of any rank."""
    return {name: gather_column(value, accelerator) for name, value in columns.items()}


def gather_column(value: Tensor, accelerator: Any, fill: int = 0, at_start: bool = False) -> Tensor:
    """One column of all ranks; fill, at_start: what [B,T] columns are padded with, and where."""
    if accelerator.num_processes == 1:
        return value
    sent = (
        value.int() if value.dtype == torch.bool else value
    )  # collectives and padding are not defined for bool everywhere
    if sent.ndim > 1:
        sent = accelerator.pad_across_processes(sent, dim=1, pad_index=fill, pad_first=at_start)
    gathered: Tensor = accelerator.gather(sent.contiguous())
    return gathered.bool() if value.dtype == torch.bool else gathered


def own_rows(columns: Mapping[str, Tensor], rank: int, like: Tensor) -> dict[str, Tensor]:
    """This rank's share of gathered columns. like: its mask [B,T], which gives the number of rows and positions."""
    num_rows, num_positions = like.shape
    own = {name: value[rank * num_rows : (rank + 1) * num_rows] for name, value in columns.items()}
    width = columns["mask"].shape[1]
    return {n: v[:, :num_positions] if v.ndim > 1 and v.shape[1] == width else v for n, v in own.items()}


def pack(columns: Mapping[str, Tensor], totals: Totals) -> dict[str, Tensor]:
    """Columns and totals under names for TRL's dictionary. Its shuffle and split leave the totals alone."""
    packed = {PREFIX + name: value for name, value in columns.items()}
    numbers = (totals.tokens, totals.rows, totals.groups)
    return packed | {key: torch.tensor(x, dtype=torch.float64) for key, x in zip(_TOTALS, numbers, strict=True)}


def unpack(inputs: Mapping[str, Any]) -> tuple[dict[str, Tensor], Totals]:
    """The inverse of `pack`, of a slice of rows."""
    ours = {key: value for key, value in inputs.items() if key.startswith(PREFIX)}
    totals = Totals(*(float(ours.pop(key)) for key in _TOTALS))
    return {key.removeprefix(PREFIX): value for key, value in ours.items()}, totals


def current(
    inputs: Mapping[str, Any], logp: Tensor, entropy: Tensor, with_gradient: bool
) -> tuple[dict[str, Tensor], Totals]:
    """`unpack` with the current policy's logp and entropy [B,T]; the entropy's gradient stays where with_gradient."""
    rows, totals = unpack(inputs)
    logp, entropy = logp.float(), entropy.float() if with_gradient else entropy.float().detach()
    rows |= {"logp": logp, "entropy": entropy}
    if "old_per_token_logps" not in inputs:
        # no update since the rollout: the old policy is this one, and its ratio is exactly 1
        rows |= {"old_logp": logp.detach(), "old_entropy": entropy.detach()}
    return rows, totals


class TaskNames:
    """Numbers for the values of the dataset column `task`, equal on all ranks and in a resumed run."""

    def __init__(self, names: Iterable[Any] = ()) -> None:
        self.names: list[str] = []
        self.add(names)

    def add(self, names: Iterable[Any]) -> None:
        """Number the names that are new, in their order."""
        for name in map(str, names):
            if name not in self.names:
                self.names.append(name)

    def ids(self, names: Iterable[Any], device: torch.device) -> Tensor:
        """The numbers [B] of names."""
        index = {name: i for i, name in enumerate(self.names)}
        return torch.tensor([index[str(name)] for name in names], dtype=torch.long, device=device)


def tasks_of(examples: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    """The column `task` of dataset rows; None where there is none, ValueError where only some rows have it."""
    found = [example["task"] for example in examples if example.get("task") is not None]
    if found and len(found) != len(examples):
        raise ValueError(
            f"column `task`: {len(examples) - len(found)} of {len(examples)} rows have none; give every row a task"
        )
    return found or None
