"""Dynamic sampling (DAPO, arXiv:2503.14476, sec. 3.2): groups without reward variance make room for further prompts.

After a rollout batch is scored, every group whose rewards are all equal is *stale*. Each round samples one further
prompt for each stale group, whole groups of it, and puts those that vary in the stale groups' places; `Rollout.rounds`
bounds the rounds. What is stale then stays, and `VaryingReward` in the slot `select` takes it out of loss and count.
The decision is taken on the rewards of all ranks, so that the batch does not depend on the number of processes.

Further prompts come from the training data in an order of their own, drawn from seed and number of the rollout alone
(a resumed run draws the same), first those that are not yet in the batch, then all over again; in a stage, from its
tasks alone.

TRL's keys (`reward`, `completions/*`, ...) describe what was sampled first; `num_tokens` counts all. What reward
functions log of further rounds is not logged. TRL's table of completions shows the rows that are kept.

| key | meaning |
| --- | --- |
| `dynamic_sampling/rounds` | further rounds |
| `dynamic_sampling/replaced`, `dynamic_sampling/left` | groups replaced, groups that still lack variance |
| `dynamic_sampling/reward` | mean reward of the rows that are kept |
| `dynamic_sampling/sampled_reward` | mean reward of all rows that were sampled, in all rounds |
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from isentrope import masked
from isentrope.engines import trl_batch
from isentrope.engines.trl_rollout import Sampled

_LEFT = ("prompt_ids", "prompt_mask")  # padded at the start; all others at the end
_FILL = {"tool_mask": 1, "importance_sampling_ratio": 1}  # as TRL pads; ids with the pad token, the rest with 0
_SEED_STRIDE = 1_000_003  # keeps the order apart from that of TRL's sampler, whose seed is the run's


@dataclass(frozen=True)
class Outcome:
    """What became of a rollout batch; the fields are what is logged."""

    rounds: int
    replaced: int
    left: int
    reward: float
    sampled_reward: float


def further_prompts(
    dataset: Any, seed: int, rollout: int, taken: Sequence[str], allowed: Sequence[int] | None = None
) -> Iterator[dict[str, Any]]:
    """Examples in an order drawn from seed and rollout: first those whose prompt is not taken, then all, for ever.

    allowed: the rows of the data set to draw from; None is all.
    """
    generator = torch.Generator().manual_seed(seed * _SEED_STRIDE + rollout + 1)
    rows = range(len(dataset)) if allowed is None else allowed
    order = [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]
    seen = set(taken)
    for index in order:
        example = dataset[index]
        key = prompt_key(example)
        if key not in seen:
            seen.add(key)
            yield example
    yield from (dataset[index] for index in cycle(order))


def prompt_key(example: dict[str, Any]) -> str:
    """What tells the prompts of examples apart."""
    return str(example.get("prompt"))


def stale_groups(reward: Tensor, group_size: int) -> list[int]:
    """The numbers of the groups whose rewards [N] are all equal; groups are consecutive rows."""
    group = torch.arange(len(reward), device=reward.device) // group_size
    constant = masked.group_constant(reward, masked.groups(group))
    stale: list[int] = constant[::group_size].nonzero().flatten().tolist()
    return stale


def fill(trainer: Any, examples: Sequence[dict[str, Any]], found: Sampled, rounds: int) -> tuple[Sampled, Outcome]:
    """Replace stale groups in up to `rounds` further rounds. examples: this rank's, of the first sampling.

    Every rank must call it; each gets back as many rows as it gave. The tempered groups are replaced by tempered ones.
    """
    size = trainer._group_size
    first = stale = stale_groups(found.reward, size)
    total, count = float(found.reward.sum()), len(found.reward)
    further = _further(trainer, examples) if stale else iter(())
    done = 0
    while stale and done < rounds:
        extra = _sample_for(trainer, stale, found, further)
        reward = extra.sampled.reward[: len(stale) * size]
        total, count, done = total + float(reward.sum()), count + len(reward), done + 1
        lost = set(stale_groups(reward, size))
        found = splice(trainer, found, extra, {s: c for c, s in enumerate(stale) if c not in lost})
        stale = [s for c, s in enumerate(stale) if c in lost]
    return found, Outcome(done, len(first) - len(stale), len(stale), float(found.reward.mean()), total / count)


def log(pool: Any, outcome: Outcome, device: torch.device) -> None:
    """Put the numbers of a rollout batch where they are averaged until the next log line."""
    for name, number in asdict(outcome).items():
        pool.mean(f"dynamic_sampling/{name}", torch.tensor(float(number), device=device), 1.0)


@dataclass(frozen=True)
class _Extra:
    """A further round: what was sampled, and what TRL wrote into its table of completions."""

    sampled: Sampled
    logs: dict[str, Any]


def _further(trainer: Any, examples: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    taken = gather_object([prompt_key(example) for example in examples])
    dataset = trainer._remove_unused_columns(trainer.train_dataset, description="training")
    number = trainer._num_rollouts
    return further_prompts(dataset, trainer.args.seed, number, taken, trainer._prompts.allowed(number))


def _sample_for(trainer: Any, stale: list[int], found: Sampled, further: Iterator[dict[str, Any]]) -> _Extra:
    """Sample a further group for each stale one, in their order; and some more where ranks must get equal shares."""
    size, world = trainer._group_size, trainer.accelerator.num_processes
    share = world // math.gcd(world, size)  # groups whose rows divide evenly
    num_groups = -(-len(stale) // share) * share
    chosen = [next(further) for _ in range(num_groups)]
    rows = [dict(example) for example in chosen for _ in range(size)]
    own = len(rows) // world
    num_tempered = sum(bool(found.tempered[s * size]) for s in stale) * size
    rank = trainer.accelerator.process_index
    with set_aside(trainer) as logs:
        return _Extra(trainer._sample(rows[rank * own : (rank + 1) * own], num_tempered), logs)


@contextmanager
def set_aside(trainer: Any) -> Iterator[dict[str, Any]]:
    """Within this, TRL's metrics go nowhere and its table of completions is the empty one that is yielded."""
    metrics, logs = trainer._metrics["train"], trainer._logs
    trainer._metrics["train"] = defaultdict(list)
    trainer._logs = {name: _empty(column) for name, column in logs.items()}
    try:
        yield trainer._logs
    finally:
        trainer._metrics["train"], trainer._logs = metrics, logs
        metrics["num_tokens"] = [trainer.state.num_input_tokens_seen]


def _empty(column: Any) -> Any:
    return deque() if isinstance(column, deque) else defaultdict(deque)


def splice(trainer: Any, found: Sampled, extra: _Extra, places: dict[int, int]) -> Sampled:
    """Put groups of a further round in the places of stale ones; places: {stale group: further group}."""
    size = trainer._group_size
    to = [s * size + i for s in places for i in range(size)]
    source = [c * size + i for c in places.values() for i in range(size)]
    reward, unscored, tasks = found.reward.clone(), found.unscored.clone(), found.tasks
    reward[to] = extra.sampled.reward[source]
    unscored[to] = extra.sampled.unscored[source]
    if tasks is not None and extra.sampled.tasks is not None:
        new = dict(zip(to, (extra.sampled.tasks[row] for row in source), strict=True))
        tasks = [new.get(row, task) for row, task in enumerate(tasks)]
    _splice_logs(trainer._logs, extra.logs, to, source, len(reward))
    output = _splice_output(trainer, found.output, extra.sampled.output, to, source)
    return replace(found, output=output, reward=reward, tasks=tasks, unscored=unscored)


def _splice_logs(logs: Any, extra: Any, to: list[int], source: list[int], num_rows: int) -> None:
    """The same in TRL's table of completions, whose last num_rows entries are the rollout batch's."""
    for name, column in extra.items():
        if isinstance(column, dict):
            _splice_logs(logs[name], column, to, source, num_rows)
        elif len(column) > max(source, default=0) and len(logs[name]) >= num_rows:
            start = len(logs[name]) - num_rows
            for target, row in zip(to, source, strict=True):
                logs[name][start + target] = column[row]


def _splice_output(
    trainer: Any, own: dict[str, Any], extra: dict[str, Any], to: list[int], source: list[int]
) -> dict[str, Any]:
    """The same in TRL's dictionary, of this rank's rows; `extra` is spread over all ranks, like the places."""
    if own.keys() != extra.keys():
        raise RuntimeError(f"a further round gave other columns: {sorted(own.keys() ^ extra.keys())}")
    num_rows, rank = len(own["completion_ids"]), trainer.accelerator.process_index
    here = [i for i, row in enumerate(to) if row // num_rows == rank]
    places = [to[i] - rank * num_rows for i in here], [source[i] for i in here]
    spliced = {name: _splice_column(trainer, name, own[name], extra[name], *places) for name in _rows_of(own)}
    total = trainer.accelerator.gather(trl_batch.policy_mask(spliced).sum()).sum()
    return own | spliced | {"num_items_in_batch": total}


def _rows_of(output: dict[str, Any]) -> list[str]:
    return [name for name, value in output.items() if value.ndim]


def _splice_column(trainer: Any, name: str, own: Tensor, extra: Tensor, to: list[int], source: list[int]) -> Tensor:
    fill = trainer._tokenizer.pad_token_id if name.endswith("_ids") else _FILL.get(name, 0)
    rows = trl_batch.gather_column(extra, trainer.accelerator, fill, at_start=name in _LEFT)
    if own.ndim == 2:
        width = max(own.shape[1], rows.shape[1])
        own, rows = (_padded(x, width, fill, at_start=name in _LEFT) for x in (own, rows))
    merged = own.clone()
    merged[to] = rows[source]
    return merged


def _padded(x: Tensor, width: int, fill: int, at_start: bool) -> Tensor:
    missing = width - x.shape[1]
    return torch.nn.functional.pad(x, (missing, 0) if at_start else (0, missing), value=fill)
