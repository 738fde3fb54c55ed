"""How far a run on a language model moved: KL of its last policy from its first, exact at positions that it visits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isentrope import models, sampling, tasks
from isentrope.errors import IsentropeError
from isentrope.recipe import Recipe
from isentrope.record import RunFolder

PROBLEMS, SAMPLES = 100, 4  # held-out problems of each task, completions of each


def to_start(folder: RunFolder, recipe: Recipe) -> float:
    """KL(last || first) of a run, nats a token. IsentropeError where its last checkpoint is gone."""
    checkpoint = folder.last_checkpoint()
    if checkpoint is None:
        raise IsentropeError(f"{folder.path} has no checkpoint, of which the study takes the distance to the start")
    last, tokenizer = models.load(str(checkpoint))
    first, _ = models.load(recipe.model.name)
    made = [tasks.get(task.name, **task.options) for task in recipe.task]
    prompts = [example.prompt for task in made for example in task.examples("test", PROBLEMS, recipe.seed)]
    return divergence(last, first, tokenizer, prompts, recipe.trainer.max_completion_length, recipe.seed)


@torch.inference_mode()
def divergence(last: Any, first: Any, tokenizer: Any, prompts: Sequence[Any], length: int, seed: int) -> float:
    """Token mean of KL(last(. | s) || first(. | s)) over the prefixes s of completions that `last` writes, in nats."""
    drawn = sampling.sample(last, tokenizer, prompts, num_samples=SAMPLES, max_new_tokens=length, seed=seed)
    total, count = 0.0, 0
    for prompt, completions in zip(prompts, drawn, strict=True):
        ids = sampling.encode_prompt(tokenizer, prompt)
        rows = [torch.tensor([*ids, *completion.tokens]) for completion in completions]
        batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # right: what follows is not attended to
        kl = _kl(last(batch).logits, first(batch).logits)[:, len(ids) - 1 : -1]
        lengths = torch.tensor([len(completion.tokens) for completion in completions])
        mask = torch.arange(kl.shape[1]) < lengths[:, None]
        total, count = total + float(kl[mask].double().sum()), count + int(mask.sum())
    return total / count


def _kl(last: Tensor, first: Tensor) -> Tensor:
    p, q = last.float().log_softmax(-1), first.float().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)
