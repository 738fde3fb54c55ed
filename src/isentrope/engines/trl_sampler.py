"""A rollout function for TRL that reads a prompt once for all completions of its group.

`GRPOTrainer` hands transformers' `generate` every prompt `num_generations` times, which reads it as often, and
decodes rows that have ended until the last one has. Here a prompt goes through the model once, its key-value cache
serves the group, and ended rows leave the batch. Sampling is exact: from softmax(logits / temperature).

    trainer = ObjectiveTrainer(..., rollout_func=shared_prefill)
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from isentrope.engines.trl_options import OptionError, sampler_mismatches
from isentrope.sampling import continue_ids


def shared_prefill(prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
    """TRL's `rollout_func` for texts or chat messages, a group's side by side; logprobs are None.

    The seed of a batch is drawn from torch's random state, which a checkpoint keeps: a resumed run samples what the
    uninterrupted one would have.
    Raises OptionError where this way of sampling would not be what the options ask for: top-k, top-p and the like,
    generation_kwargs, a sharded model, tools, images.
    """
    check_sampling(trainer)
    encoded, images, _ = trainer._tokenize_prompts(prompts)
    if images is not None:
        raise OptionError("shared_prefill samples texts only: leave rollout_func out for prompts with images")
    groups = [(ids, len(list(rows))) for ids, rows in groupby(map(tuple, encoded))]
    drawn = iter(_completions(trainer, groups))
    completions = [tokens for _, count in groups for tokens in (next(drawn) for _ in range(count))]
    return {"prompt_ids": encoded, "completion_ids": completions, "logprobs": None}


def _completions(trainer: Any, groups: Sequence[tuple[tuple[int, ...], int]]) -> list[list[int]]:
    """The completions of all groups, one after the other; groups of one size are decoded together."""
    found: list[list[list[int]]] = [[] for _ in groups]
    model = trainer.accelerator.unwrap_model(trainer.model)
    for size in sorted({count for _, count in groups}):
        places = [i for i, (_, count) in enumerate(groups) if count == size]
        seed = int(torch.randint(2**62, ()))
        rows = continue_ids(
            model,
            trainer._tokenizer,
            [groups[i][0] for i in places],
            size,
            trainer.max_completion_length,
            temperature=trainer.temperature,
            seed=seed,
            batch_size=len(places) * size,
        )
        for i, samples in zip(places, rows, strict=True):
            found[i] = [list(sample.tokens) for sample in samples]
    return [tokens for group in found for tokens in group]


def serves(args: Any) -> bool:
    """Whether these options ask for nothing that `shared_prefill` would refuse, and no engine samples in its place."""
    return not (args.use_vllm or args.generation_kwargs or sampler_mismatches(args))


def check_sampling(trainer: Any) -> None:
    """OptionError where exact sampling in this process is not what a trainer's options ask for."""
    asked = sampler_mismatches(trainer.args)
    reasons = {
        f"{', '.join(asked)} would be ignored": bool(asked),
        "generation_kwargs would be ignored": bool(trainer.args.generation_kwargs),
        "the model is sharded": trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled,
        "tools need TRL's own loop": bool(trainer.tools),
        "max_completion_length is not set": trainer.max_completion_length is None,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise OptionError(f"shared_prefill cannot sample as asked: {found[0]}; leave rollout_func out")
