"""Supervised updates on the references of tasks, before reinforcement learning: the recipe's `[warmup]`.

A policy that never gets a problem right learns nothing from rewards. Where a task has references, some updates on them
show the policy what an answer looks like. The loss is the mean cross-entropy of the tokens that the policy has to
write: the reference and the end token; of a transcript of several turns its own lines, not the environment's.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from isentrope.errors import IsentropeError
from isentrope.sampling import encode_prompt
from isentrope.tasks.base import Example, Task, generator
from isentrope.tasks.mix import Batches, quotas
from isentrope.tasks.turns import TURN, is_interactive

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

IGNORED = -100  # cross_entropy leaves out labels of this value
RISE = 10  # the rate rises over a tenth of the steps


def warm_up(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    mix: Sequence[tuple[Task, float]],
    steps: int,
    batch: int,
    problems: int,
    learning_rate: float,
    seed: int,
    told: Callable[[int, float], None] | None = None,
) -> float:
    """Update the model in place; returns the last update's loss, in nats a token.

    mix: tasks with weights; each batch keeps the weights as nearly as integers allow. batch: rows of an update.
    problems: training problems that are drawn for it, over all tasks. learning_rate: see `rate`. told: called with the
    number of updates made and the latest loss.
    AdamW with betas .9 and .95, weight decay .01, gradients clipped to norm 1. The same arguments, machine and thread
    count give the same weights.
    Raises IsentropeError for a task whose examples have no references.
    """
    rows = _rows(tokenizer, mix, problems, seed)
    batches = Batches([name for name, _ in rows], batch, seed, {task.name: weight for task, weight in mix})
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    was_training, loss = model.training, math.nan
    model.train()
    for step in range(steps):
        rng = generator("warm-up", seed, step)
        chosen = [rng.choice(rows[row][1]) for row in batches(step)]
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, learning_rate)
        loss = _update(model, optimizer, *_padded(chosen, int(tokenizer.pad_token_id or 0), model.device))
        if told is not None:
            told(step + 1, loss)
    model.train(was_training)
    return loss


def rate(step: int, steps: int, peak: float) -> float:
    """Up to the peak over the first tenth of the steps, then down to 0 along a cosine.

    >>> [round(rate(step, 20, 1.0), 3) for step in (0, 1, 2, 11, 19)]
    [0.5, 1.0, 1.0, 0.5, 0.008]
    """
    rise = max(1, steps // RISE)
    if step < rise:
        return peak * (step + 1) / rise
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


Labelled = list[tuple[int, bool]]  # token ids, each with whether the policy has to write it


def labelled(task: Task, tokenizer: Any, example: Example, reference: str) -> Labelled:
    """Prompt, reference and end token; in a transcript the environment's lines are not the policy's to write."""
    lines = reference.split(TURN) if is_interactive(task) else [reference]
    pieces = [(encode_prompt(tokenizer, example.prompt), False)]
    for place, line in enumerate(lines):
        text = line if place == len(lines) - 1 else line + TURN
        pieces.append((list(tokenizer(text, add_special_tokens=False)["input_ids"]), place % 2 == 0))
    pieces.append(([tokenizer.eos_token_id], True))
    return [(token, is_own) for ids, is_own in pieces for token in ids]


def _rows(tokenizer: Any, mix: Sequence[tuple[Task, float]], problems: int, seed: int) -> list[tuple[str, Any]]:
    """Of each drawn problem its task's name and its references as labelled tokens."""
    found = []
    for (task, _), count in zip(mix, next(quotas([weight for _, weight in mix], problems)), strict=True):
        for example in task.examples("train", max(1, count), seed + 1):
            if not example.references:
                raise IsentropeError(f"task {task.name} has no references to warm up on; set warmup.steps = 0")
            found.append((task.name, [labelled(task, tokenizer, example, one) for one in example.references]))
    return found


def _padded(rows: Sequence[Labelled], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, labels), both [B, T], padded on the right, where it reaches no label."""
    width = max(map(len, rows))
    ids = [[token for token, _ in row] + [pad] * (width - len(row)) for row in rows]
    labels = [[t if own else IGNORED for t, own in row] + [IGNORED] * (width - len(row)) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(labels, device=device)


def _update(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor, labels: Tensor) -> float:
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORED)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())
