"""Estimates from samples of problems: pass@k, majority@k, and how sure they are.

A problem is the independent unit everywhere: the samples of one problem are not independent of each other, so
intervals come from resampling problems, never samples. No function here touches a model.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor

LEVEL = 0.95
RESAMPLES = 2000


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples is right: 1 - C(n-c, k) / C(n, k).

    n: samples drawn. c: right ones among them, 0 to n. k: 1 to n.
    Returns the unbiased estimate, in [0, 1]. Integer arithmetic up to the last division: no overflow, no cancellation.
    Raises ValueError for a c or k out of range.
    Source: Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374, eq. 1.

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 0, 4), pass_at_k(4, 3, 2)
    (0.5, 0.0, 1.0)
    """
    if not 0 <= c <= n:
        raise ValueError(f"pass_at_k: {c} right of {n} samples; c must be between 0 and {n}")
    if not 1 <= k <= n:
        raise ValueError(f"pass_at_k: k is {k} with {n} samples; k must be between 1 and {n}: draw more samples")
    subsets = math.comb(n, k)
    return (subsets - math.comb(n - c, k)) / subsets


def avg_at_k(rewards: Sequence[Sequence[float]], k: int) -> float:
    """Mean over problems of the mean reward of the first k samples.

    rewards: one sequence a problem, each of at least k samples.
    Raises ValueError if there is no problem, or a problem has fewer than k samples.

    >>> avg_at_k([[1, 0, 1], [0, 0, 1]], k=2)
    0.25
    """
    if not rewards:
        raise ValueError("avg_at_k: there are no problems; give at least one")
    fewest = min(map(len, rewards))
    if not 1 <= k <= fewest:
        raise ValueError(f"avg_at_k: k is {k}, and a problem has {fewest} samples; k must be between 1 and {fewest}")
    return math.fsum(math.fsum(row[:k]) / k for row in rewards) / len(rewards)


def majority_vote(answers: Sequence[str], is_right: Sequence[bool]) -> float:
    """Probability that the most frequent answer is right: majority@k of one problem, k the number of samples.

    answers: the canonical answer of each sample; "" does not vote. is_right: of each sample.
    Ties: one of the most frequent answers is drawn with equal chances, so the result is the share of right ones among
    them, the expected value over the draw. Samples with one answer and different verdicts (a verifier that looks at
    more than the answer) count with their mean. Nobody votes: 0.

    >>> majority_vote(["7", "7", "8"], [True, True, False]), majority_vote(["7", "8", ""], [True, False, False])
    (1.0, 0.5)
    """
    verdicts: dict[str, list[bool]] = {}
    for answer, right in zip(answers, is_right, strict=True):
        if answer:
            verdicts.setdefault(answer, []).append(right)
    most = max(map(len, verdicts.values()), default=0)
    tied = [sum(votes) / len(votes) for votes in verdicts.values() if len(votes) == most]
    return math.fsum(tied) / len(tied) if tied else 0.0


def bootstrap_interval(
    values: Sequence[float], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over problems: (low, high), in the unit of the values.

    values: one number a problem; problems are the independent unit, the samples of one problem are not. Equal values
    give an interval of width 0.
    Raises ValueError for no values, or a level outside (0, 1).
    Source: Efron, Bootstrap methods: another look at the jackknife, Annals of Statistics 7 (1979).
    """
    return ratio_interval([(value, 1.0) for value in values], level, resamples, seed)


def ratio_interval(
    pairs: Sequence[tuple[float, float]], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of sum(a) / sum(b) over problems, which are drawn whole.

    pairs: (a, b) of each problem, such as the entropies and the number of its tokens; (0, 0) is a problem that the
    figure says nothing about. The same seed draws the same problems, whatever the figure.
    Raises ValueError for no pairs, or a level outside (0, 1). NaN where no problem counts.
    """
    data, drawn = _draw(pairs, level, resamples, seed)
    return _quantiles(_ratios(data, drawn), level)


def paired_interval(
    first: Sequence[tuple[float, float]],
    second: Sequence[tuple[float, float]],
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of second minus first, where both were measured on the same problems in one order.

    Each resample draws problems once and takes both figures of them, so that what makes a problem hard for both
    cancels. See `ratio_interval` for pairs.
    Raises ValueError also for different numbers of problems.
    """
    if len(first) != len(second):
        raise ValueError(f"paired_interval: {len(first)} and {len(second)} problems; pair the same ones in one order")
    data, drawn = _draw(first, level, resamples, seed)
    other = torch.tensor(second, dtype=torch.float64)
    return _quantiles(_ratios(other, drawn) - _ratios(data, drawn), level)


def _draw(pairs: Sequence[tuple[float, float]], level: float, resamples: int, seed: int) -> tuple[Tensor, Tensor]:
    """[P, 2] and the problems of each resample [R, P]."""
    if not pairs:
        raise ValueError("bootstrap_interval: there are no values; give one a problem")
    if not 0 < level < 1:
        raise ValueError(f"bootstrap_interval: level is {level}; it must lie in (0, 1)")
    data = torch.tensor(pairs, dtype=torch.float64)
    return data, torch.randint(len(data), (resamples, len(data)), generator=torch.Generator().manual_seed(seed))


def _ratios(data: Tensor, drawn: Tensor) -> Tensor:
    above, below = (data[:, column][drawn].sum(dim=1) for column in (0, 1))
    return above / below


def _quantiles(values: Tensor, level: float) -> tuple[float, float]:
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = values.nanquantile(tails).tolist()
    return low, high


def ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """sum(a) / sum(b); NaN where no problem counts.

    >>> ratio([(1.0, 2.0), (0.0, 0.0), (1.0, 2.0)])
    0.5
    """
    below = math.fsum(pair[1] for pair in pairs)
    return math.fsum(pair[0] for pair in pairs) / below if below else math.nan


def half_width(share: float, problems: int, level: float = LEVEL) -> float:
    """Half the width of an interval for a share of `problems` that are simply solved or not (Wilson's interval).

    How far a score on a set of this size can be off by the choice of problems alone: 30 problems at a score of one half
    make it .168. Unlike the normal approximation it does not vanish at 0 and 1.
    Raises ValueError for a share outside [0, 1] or no problems.
    Source: Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    >>> round(half_width(0.5, 30), 3), round(half_width(0.0, 30), 3)
    (0.168, 0.057)
    """
    if not 0 <= share <= 1 or problems < 1:
        raise ValueError(f"half_width: {share} of {problems} problems; a share in [0, 1] of at least one is needed")
    z = NormalDist().inv_cdf((1 + level) / 2)
    spread = share * (1 - share) / problems + (z / (2 * problems)) ** 2
    return z / (1 + z**2 / problems) * math.sqrt(spread)
