"""Problems of the tabular engine: families over tables of a policy, every quantity of which can be computed exactly.

A completion is a chain of at most `length` symbols. The policy is a table: logits of the next symbol for every position
and symbol before, so a completion's probability is a product of at most `length` softmax entries. A **family** (a task
of the recipe) has an initial table of a given entropy and a few good completions of different probability under it. A
**problem** of the family adds its own fixed noise to the logits and accepts a random part of the good completions,
which the policy cannot see. So a policy that knows one good completion solves the problems that accept it, at once, and
never the others: pass@1 rises with certainty, pass@k with variety. Held-out problems are others of the same families.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from isentrope import theory
from isentrope.engines.tabular_table import Settings
from isentrope.errors import IsentropeError
from isentrope.recipe import suggestion

DTYPE = torch.float64
BISECTIONS = 60  # halvings of the bracket of a logit scale: to the last bit of float64
MAX_SCALE = 1e4  # times standard-normal logits: deterministic at any vocabulary


@dataclass(frozen=True, kw_only=True)
class Family:
    """A task of the tabular engine; the fields are the task's `options` in a recipe.

    entropy: of the initial policy in every state, as a share of log(vocabulary), in (0, 1).
    ranks: the good completions, by their place among all completions in order of initial probability; 0 is the most
    likely. accepted: for each the probability that a problem accepts it, in (0, 1]; a problem that would accept none
    accepts the one that came closest. spread: standard deviation of a problem's own logits, nats. table: families with
    the same name here share one table, so that what one learns moves the other; "" is a table of its own.
    """

    entropy: float
    ranks: tuple[int, ...] = (1, 3, 6, 10)
    accepted: tuple[float, ...] = (0.5, 0.5, 0.5, 0.5)
    spread: float = 0.3
    table: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.entropy < 1:
            raise ValueError(f"entropy must be a share of log(vocabulary) in (0, 1); found {self.entropy!r}")
        if not self.ranks or len(set(self.ranks)) < len(self.ranks) or min(self.ranks) < 0:
            raise ValueError(f"ranks must be different whole numbers from 0; found {list(self.ranks)}")
        if len(self.accepted) != len(self.ranks) or not all(0 < a <= 1 for a in self.accepted):
            raise ValueError(f"accepted must be {len(self.ranks)} numbers in (0, 1]; found {list(self.accepted)}")
        if not self.spread >= 0:
            raise ValueError(f"spread must be at least 0; found {self.spread!r}")


def family(name: str, options: Mapping[str, Any]) -> Family:
    """The family that a task of a recipe describes. IsentropeError names the task, the option and what to do."""
    known = [field.name for field in fields(Family)]
    for key in options:
        if key not in known:
            raise IsentropeError(f"task {name}: a family of the tabular engine has no {key!r}{suggestion(key, known)}")
    if "entropy" not in options:
        raise IsentropeError(
            f"task {name}: the tabular engine has no texts, its tasks are families of problems: give it"
            " options.entropy, a share in (0, 1), or train with --engine trl"
        )
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    try:
        return Family(**given)
    except (ValueError, TypeError) as error:
        raise IsentropeError(f"task {name}: {error}") from error


@dataclass(frozen=True)
class World:
    """What all problems of a recipe have in common.

    names, families: the tasks, in alphabetical order of their names. weights: their shares. tables: index of each
    task's table. prior: [tables, length, before, vocabulary], initial logits. good: of each task [K, length], the good
    completions, 0 after their end.
    """

    settings: Settings
    names: tuple[str, ...]
    families: tuple[Family, ...]
    weights: tuple[float, ...]
    tables: Tensor
    prior: Tensor
    good: tuple[Tensor, ...]


@dataclass(frozen=True)
class Problems:
    """P problems. task, table: [P]. logits: [P, length, before, vocabulary], initial ones with the problem's noise.

    good: [P, K, length]. accepts: [P, K] bool, False where a task has fewer than K good completions.
    """

    task: Tensor
    table: Tensor
    logits: Tensor
    good: Tensor
    accepts: Tensor

    def __len__(self) -> int:
        return len(self.task)

    def at(self, index: Tensor) -> Problems:
        """The problems with these numbers."""
        return Problems(*(getattr(self, field.name)[index] for field in fields(self)))


def world(tasks: Sequence[tuple[str, Mapping[str, Any], float]], settings: Settings) -> World:
    """The world of tasks (name, options, weight). IsentropeError for families that do not fit each other or it."""
    ordered = sorted(tasks, key=lambda task: task[0])
    found = [family(name, options) for name, options, _ in ordered]
    own = [one.table or f"\0{name}" for (name, _, _), one in zip(ordered, found, strict=True)]
    keys = sorted(set(own))
    prior = torch.stack([_prior(key, _entropy_of(key, own, found), settings) for key in keys])
    table = [keys.index(key) for key in own]
    sequences = enumerate_completions(settings)
    good = [_good(name, one, prior[t], sequences) for (name, _, _), one, t in zip(ordered, found, table, strict=True)]
    names, weights = tuple(task[0] for task in ordered), tuple(task[2] for task in ordered)
    return World(settings, names, tuple(found), weights, torch.tensor(table), prior, tuple(good))


def _entropy_of(key: str, own: Sequence[str], found: Sequence[Family]) -> float:
    values = {one.entropy for table, one in zip(own, found, strict=True) if table == key}
    if len(values) > 1:
        raise IsentropeError(
            f"families of table {key!r} have entropies {sorted(values)}; one table starts at one entropy"
        )
    return values.pop()


def _prior(key: str, entropy: float, settings: Settings) -> Tensor:
    """Logits [length, before, vocabulary] with `entropy` * log(vocabulary) nats in every state."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{settings.prior}/{key}".encode()))
    before = settings.vocabulary if settings.ends else 1
    shape = settings.length, before, settings.vocabulary
    return scaled_to(torch.randn(shape, generator=generator, dtype=DTYPE), entropy)


def scaled_to(logits: Tensor, entropy: float) -> Tensor:
    """Each state's logits times the factor at which its entropy is `entropy` * log(V); [..., V], found by bisection.

    >>> z = scaled_to(torch.tensor([[0.0, 1.0, 3.0]], dtype=torch.float64), 0.5)
    >>> round(float(theory.entropy(z) / torch.tensor(3.0).log()), 6)
    0.5
    """
    target = entropy * torch.tensor(float(logits.shape[-1]), dtype=DTYPE).log()
    low, high = torch.zeros(logits.shape[:-1], dtype=DTYPE), torch.full(logits.shape[:-1], MAX_SCALE, dtype=DTYPE)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = theory.entropy(logits * middle[..., None]) > target
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return logits * high[..., None]


def enumerate_completions(settings: Settings) -> Tensor:
    """All completions, [N, length], each once; 0 after the end.

    >>> enumerate_completions(Settings(length=2, vocabulary=3)).tolist()
    [[0, 0], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]
    """
    symbols = torch.arange(settings.vocabulary)
    found = torch.cartesian_prod(*[symbols] * settings.length).reshape(-1, settings.length)
    if not settings.ends:
        return found
    ended = (found == 0).cumsum(1) > 0
    return found[~(ended[:, :-1] & (found[:, 1:] != 0)).any(1)]


def written(symbols: Tensor, ends: bool) -> Tensor:
    """Which positions of completions [..., length] the policy wrote: up to the end symbol, which it wrote too."""
    if not ends:
        return torch.ones_like(symbols, dtype=torch.bool)
    ended = (symbols == 0).cumsum(-1)
    return (ended - (symbols == 0).long()) == 0


def before(symbols: Tensor, ends: bool) -> Tensor:
    """The symbol before each position of completions [..., length]; 0 at the first and where there is none."""
    if not ends:
        return torch.zeros_like(symbols)
    return torch.cat([torch.zeros_like(symbols[..., :1]), symbols[..., :-1]], -1)


def completion_logp(log_table: Tensor, symbols: Tensor, ends: bool) -> Tensor:
    """log-probability of completions, summed over what is written.

    log_table: [..., length, before, vocabulary], log-probabilities. symbols: [..., N, length]. Returns [..., N], nats.
    """
    flat = log_table.flatten(-3)
    length, num_before, size = log_table.shape[-3:]
    place = (torch.arange(length) * num_before + before(symbols, ends)) * size + symbols
    picked = flat.unsqueeze(-2).expand(*place.shape[:-1], flat.shape[-1]).gather(-1, place)
    return torch.where(written(symbols, ends), picked, picked.new_zeros(())).sum(-1)


def _good(name: str, one: Family, prior: Tensor, sequences: Tensor) -> Tensor:
    if max(one.ranks) >= len(sequences):
        raise IsentropeError(
            f"task {name}: rank {max(one.ranks)} is not below the {len(sequences)} completions there are; lower it, or"
            " raise [tabular] vocabulary or length"
        )
    likely = completion_logp(theory.log_probabilities(prior), sequences, sequences.shape[1] > 1)
    order = likely.argsort(descending=True, stable=True)
    return sequences[order[torch.tensor(one.ranks)]]


def draw(world: World, counts: Sequence[int], seed: int) -> Problems:
    """`counts[i]` problems of task i, the tasks one after another; the same seed gives the same problems."""
    most = max(len(good) for good in world.good)
    parts = [_draw_task(world, task, count, seed, most) for task, count in enumerate(counts) if count]
    return Problems(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Problems)))


def _draw_task(world: World, task: int, count: int, seed: int, most: int) -> Problems:
    one, name = world.families[task], world.names[task]
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    prior, good = world.prior[world.tables[task]], world.good[task]
    noise = torch.randn((count, *prior.shape), generator=generator, dtype=DTYPE) * one.spread
    chance = torch.tensor(one.accepted, dtype=DTYPE)
    margin = chance - torch.rand((count, len(good)), generator=generator, dtype=DTYPE)
    accepts = (margin > 0) | (margin == margin.amax(1, keepdim=True))
    missing = most - len(good)
    return Problems(
        task=torch.full((count,), task),
        table=world.tables[task].expand(count),
        logits=prior + noise,
        good=torch.cat([good, good[:1].expand(missing, -1)]).expand(count, -1, -1),
        accepts=torch.cat([accepts, torch.zeros((count, missing), dtype=torch.bool)], 1),
    )


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in whole parts proportional to weights, the largest remainders rounded up; earlier ones first.

    >>> shares(8, [1, 1, 1]), shares(4, [1.0, 0.0])
    ([3, 3, 2], [4, 0])
    """
    exact = [total * weight / sum(weights) for weight in weights]
    found = [int(x) for x in exact]
    order = sorted(range(len(exact)), key=lambda i: (found[i] - exact[i], i))
    for i in order[: total - sum(found)]:
        found[i] += 1
    return found
