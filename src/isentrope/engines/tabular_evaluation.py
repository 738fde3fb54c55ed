"""What a tabular policy can do on held-out problems, exactly, in the shape of an evaluation of a run folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isentrope.engines import tabular_policy as policy
from isentrope.engines.tabular_problems import Problems
from isentrope.engines.tabular_table import Settings
from isentrope.estimates import bootstrap_interval
from isentrope.evaluate import EXACT, NUM_COUNTED, ks


@torch.no_grad()
def evaluate(
    learnt: Tensor, problems: Problems, settings: Settings, *, task: str, samples: int, temperature: float, seed: int
) -> dict[str, Any]:
    """The fields of `isentrope.evaluate.Report` that an exact evaluation has; nothing is sampled.

    pass_at: k -> mean over problems of 1 - (1 - p)^k, p the probability that one completion is accepted. interval: of
    pass@1, over problems. entropy: the policy's, expected over completions, a token. distinct_answers, distinct_right:
    expected numbers of different completions, and of different accepted ones, among `distinct_of`. kl_start: KL
    divergence from the initial policy, a token.
    """
    log_tables = policy.tables(learnt, problems, temperature)
    reached, solved = policy.visits(log_tables), policy.success(log_tables, problems).clamp(0.0, 1.0)
    most = min(NUM_COUNTED, samples)
    answers, right = policy.distinct(log_tables, problems, settings, most)
    initial = policy.tables(torch.zeros_like(learnt), problems, temperature)
    return {
        "task": task,
        "problems": len(problems),
        "samples": samples,
        "temperature": temperature,
        "seed": seed,
        "pass_at": {str(k): float((1 - (1 - solved) ** k).mean()) for k in ks(samples)},
        "interval": list(bootstrap_interval(solved.tolist())),
        "reward": float(solved.mean()),
        "distinct_answers": answers,
        "distinct_right": right,
        "distinct_of": most,
        "entropy": float(policy.entropy(log_tables, reached)),
        "entropy_kind": EXACT,
        "length": float(reached.sum((1, 2)).mean()),
        "kl_start": float(policy.kl(log_tables, initial, reached)),
    }
