"""The tabular policy: log-probabilities of rows with gradient, sampling, and everything that can be known exactly.

logits(problem) = the problem's initial logits + the learnt table of its family, divided by the temperature. The learnt
tables start at 0. Exact quantities are expectations over all completions, by recursion over positions: how likely each
state (position, symbol before) is visited, and what happens there. Entropies and KL in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope import masked
from isentrope.engines.tabular_problems import (
    DTYPE,
    Problems,
    before,
    completion_logp,
    enumerate_completions,
    written,
)
from isentrope.engines.tabular_table import Settings

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def rounded(x: Tensor, precision: str) -> Tensor:
    """x as a number format holds it, in x's own dtype; the gradient passes as if it were not rounded."""
    return x + (x.detach().to(FORMATS[precision]).to(x.dtype) - x.detach())


@dataclass(frozen=True)
class Rows:
    """Sampled completions: problem [B], its number; symbols [B, length], 0 after the end; mask [B, length]."""

    problem: Tensor
    symbols: Tensor
    mask: Tensor


def states(learnt: Tensor, problems: Problems, rows: Rows, temperature: float) -> Tensor:
    """Log-probabilities of all symbols in the states that rows went through, [B, length, vocabulary]."""
    position, place = torch.arange(rows.symbols.shape[1]), before(rows.symbols, rows.symbols.shape[1] > 1)
    fixed = problems.logits[rows.problem[:, None], position, place]
    moved = learnt[problems.table[rows.problem][:, None], position, place]
    return torch.log_softmax((fixed + moved) / temperature, -1)


def chosen(log_states: Tensor, symbols: Tensor) -> Tensor:
    """The log-probability of what was sampled, [B, length]."""
    return log_states.gather(-1, symbols[..., None]).squeeze(-1)


def state_entropy(log_states: Tensor) -> Tensor:
    """Exact entropy of every state, [...]; from log-probabilities [..., vocabulary], which are finite here."""
    return -(log_states.exp() * log_states).sum(-1)


def squared_mass(log_states: Tensor) -> Tensor:
    """S = sum_b pi_b^2 L_b of every state, [...], as `theory.squared_mass`."""
    return (log_states.exp().square() * (log_states + state_entropy(log_states)[..., None])).sum(-1)


@torch.no_grad()
def sample(
    learnt: Tensor, problems: Problems, problem: Tensor, temperature: Tensor, generator: torch.Generator
) -> Rows:
    """One completion for each entry of `problem` [B], at its own temperature [B]."""
    length, ends = problems.logits.shape[1], problems.logits.shape[1] > 1
    previous, alive = torch.zeros_like(problem), torch.ones_like(problem, dtype=torch.bool)
    symbols = []
    for position in range(length):
        z = problems.logits[problem, position, previous] + learnt[problems.table[problem], position, previous]
        probability = torch.softmax(z / temperature[:, None], -1)
        drawn = torch.multinomial(probability, 1, generator=generator).squeeze(1)
        drawn = torch.where(alive, drawn, 0)
        symbols.append(drawn)
        if ends:
            alive, previous = alive & (drawn != 0), drawn
    found = torch.stack(symbols, 1)
    return Rows(problem, found, written(found, ends))


def rewards(problems: Problems, rows: Rows) -> Tensor:
    """1 for a completion that its problem accepts, 0 for any other; [B]."""
    same = (rows.symbols[:, None] == problems.good[rows.problem]).all(-1)
    return (same & problems.accepts[rows.problem]).any(-1).to(DTYPE)


# -- exact -----------------------------------------------------------------------------------------


def tables(learnt: Tensor, problems: Problems, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of every state of every problem, [P, length, before, vocabulary]."""
    return torch.log_softmax((problems.logits + learnt[problems.table]) / temperature, -1)


def visits(log_tables: Tensor) -> Tensor:
    """Probability that a completion reaches each state, [P, length, before]."""
    num, length, num_before, _ = log_tables.shape
    reached = torch.zeros((num, num_before), dtype=log_tables.dtype)
    reached[:, 0] = 1.0
    found = [reached]
    for position in range(length - 1):
        onward = (found[-1][..., None] * log_tables[:, position].exp()).sum(1)
        found.append(torch.cat([torch.zeros_like(onward[:, :1]), onward[:, 1:]], 1))  # symbol 0 has ended it
    return torch.stack(found, 1)


def success(log_tables: Tensor, problems: Problems) -> Tensor:
    """Probability that one completion is accepted, [P]."""
    logp = completion_logp(log_tables, problems.good, log_tables.shape[1] > 1)
    return masked.fill(logp.exp(), problems.accepts).sum(-1)


def entropy(log_tables: Tensor, reached: Tensor) -> Tensor:
    """Exact entropy of the policy over problems, a scalar: expected sum over tokens / expected number of tokens."""
    return (reached * state_entropy(log_tables)).sum() / reached.sum()


def kl(log_tables: Tensor, other: Tensor, reached: Tensor) -> Tensor:
    """Exact KL(policy || other) a token, a scalar; both as log-probabilities of states."""
    gap = (log_tables.exp() * (log_tables - other)).sum(-1)
    return (reached * gap).sum() / reached.sum()


def value(learnt: Tensor, problems: Problems, rows: Rows, temperature: float) -> Tensor:
    """The exact critic: probability of acceptance before each symbol of rows, given those before it; [B, length]."""
    ends, length = rows.symbols.shape[1] > 1, rows.symbols.shape[1]
    good, accepts = problems.good[rows.problem], problems.accepts[rows.problem]
    log_tables = tables(learnt, problems, temperature)[rows.problem]
    wrote = written(good, ends)
    place = before(good, ends)
    each = log_tables[torch.arange(len(good))[:, None, None], torch.arange(length), place, good]
    rest = torch.where(wrote, each, 0.0).flip(-1).cumsum(-1).flip(-1)  # from each position to the end
    same = (good == rows.symbols[:, None]).long().cumprod(-1)
    fits = torch.cat([torch.ones_like(same[..., :1]), same[..., :-1]], -1).bool()  # agrees before the position
    return torch.where(fits & accepts[..., None], rest.exp(), 0.0).sum(1)


@torch.no_grad()
def distinct(log_tables: Tensor, problems: Problems, settings: Settings, samples: int) -> tuple[float, float]:
    """Expected numbers of different completions, and of different accepted ones, among `samples`; problem means."""
    every = enumerate_completions(settings)
    p = torch.cat([completion_logp(part[None], every[None], settings.ends) for part in log_tables]).exp()
    good = completion_logp(log_tables, problems.good, settings.ends).exp()
    seen, right = (1 - (1 - x.clamp(max=1.0)) ** samples for x in (p, good))
    return float(seen.sum(1).mean()), float(masked.fill(right, problems.accepts).sum(1).mean())


def policy_entropy(learnt: Tensor, problems: Problems, temperature: float = 1.0) -> Tensor:
    """`entropy` of the policy with these tables, differentiable."""
    log_tables = tables(learnt, problems, temperature)
    return entropy(log_tables, visits(log_tables))


def expected_reward(learnt: Tensor, problems: Problems, temperature: float = 1.0) -> Tensor:
    """Mean probability of acceptance over problems, a scalar, differentiable: what training maximises."""
    return success(tables(learnt, problems, temperature), problems).mean()
