"""What a policy can do: pass@k, avg@k, majority@k, distinct answers and entropy, each with its exact meaning.

`evaluate` samples and judges in one call; `summarise` makes the same report from problems judged elsewhere, and
`difference` compares two evaluations problem by problem. The estimators themselves are in `isentrope.estimates`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from isentrope import estimates, results
from isentrope.episodes import sample_task
from isentrope.errors import IsentropeError
from isentrope.estimates import avg_at_k, bootstrap_interval, half_width, pass_at_k
from isentrope.results import Pair, Problem, Sample
from isentrope.sampling import Completion, continue_ids, encode_prompt, sample
from isentrope.tasks.base import Example, Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "Completion",
    "Difference",
    "Report",
    "avg_at_k",
    "bootstrap_interval",
    "continue_ids",
    "difference",
    "encode_prompt",
    "evaluate",
    "pass_at_k",
    "sample",
    "summarise",
]

NUM_COUNTED = 8  # distinct answers are counted among the first eight samples of a problem, so that runs compare
EXACT = "exact"  # kinds of an entropy
ESTIMATE = "estimate from the tokens drawn"


@dataclass(frozen=True)
class Report:
    """What is measured on one task. A figure that nobody could measure is NaN.

    problems, samples: problems, and samples of each (the most, where they differ).
    pass_at: k -> mean over problems of the unbiased pass@k, for k = 1, 2, 4, ... and the number of samples.
    interval: 95% bootstrap interval of pass@1 over problems. intervals: the same for every figure, by name: "pass@8",
    "avg", "majority", "entropy", "length", "truncated", "no_answer", "unscored", and the task's own.
    half_width: how far pass@1 can be off by the choice of so many problems alone, see `estimates.half_width`.
    reward: avg@k, the mean over problems of the mean reward of their samples.
    majority: majority@k, expected over ties, see `estimates.majority_vote`.
    What could not be judged counts neither as right nor as wrong: pass_at, reward and majority are over the judged
    samples, and pass@k over the problems that have k of them (`counted`: k -> how many these are).
    distinct_right, distinct_answers: mean over problems of the number of different right answers, and of different
    answers right or wrong, among the first `distinct_of` samples (8, or all if there are fewer); what has
    no answer or could not be scored is no answer.
    entropy: of the evaluated policy at this temperature, mean over all sampled tokens, in nats; entropy_kind says
    whether exact or an estimate, "" where it is not known.
    length: mean number of tokens, the end token included. truncated, no_answer, unscored: shares in [0, 1] of the
    samples that reached the length limit, gave no answer, and could not be scored.
    right: number of right samples of each problem, in the order of the examples.
    own: figures that the task has beyond these, by name, such as IFEval's by instruction; see `tasks.base.Task`.
    """

    task: str
    problems: int
    samples: int
    temperature: float
    max_new_tokens: int
    seed: int
    pass_at: dict[int, float]
    counted: dict[int, int]
    interval: tuple[float, float]
    intervals: dict[str, tuple[float, float]]
    half_width: float
    reward: float
    majority: float
    distinct_right: float
    distinct_answers: float
    distinct_of: int
    entropy: float
    entropy_kind: str
    length: float
    truncated: float
    no_answer: float
    unscored: float
    right: tuple[int, ...]
    own: dict[str, float] = field(default_factory=dict)

    @property
    def pass_at_1(self) -> float:
        """Share of right samples."""
        return self.pass_at[1]

    def to_dict(self) -> dict[str, Any]:
        """All fields, in types JSON has; the k of pass_at and counted become texts."""
        texts = {name: {str(k): value for k, value in getattr(self, name).items()} for name in ("pass_at", "counted")}
        return asdict(self) | texts


def evaluate(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    task: Task,
    examples: Sequence[Example],
    samples: int = 8,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    seed: int = 0,
    batch_size: int = 256,
) -> Report:
    """Draw `samples` completions of each example, score them, and sum up; see `Report` and `sample`.

    The same arguments give the same numbers.
    Completions of a task of several turns are its transcripts; their tokens and entropies are the policy's alone.
    Raises IsentropeError for no examples, and what `sample` raises.
    """
    if not examples:
        raise IsentropeError(f"there are no examples of task {task.name} to evaluate on; ask for at least one")
    drawn = sample_task(model, tokenizer, task, examples, samples, max_new_tokens, temperature, seed, batch_size)
    problems = [judge(task, example, row) for example, row in zip(examples, drawn, strict=True)]
    return summarise(problems, temperature, max_new_tokens, seed)


def judge(task: Task, example: Example, drawn: Sequence[Completion]) -> Problem:
    """Score the completions that were sampled for one example."""
    known = [
        {"length": len(one.tokens), "truncated": one.is_truncated, "entropy": math.fsum(one.entropies)} for one in drawn
    ]
    return results.judge(task, example, [one.text for one in drawn], known)


def ks(samples: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the number of samples itself.

    >>> ks(6), ks(8)
    ((1, 2, 4, 6), (1, 2, 4, 8))
    """
    return tuple(sorted({2**i for i in range(samples.bit_length())} | {samples}))


def summarise(
    problems: Sequence[Problem], temperature: float, max_new_tokens: int, seed: int, entropy_kind: str = EXACT
) -> Report:
    """The report on problems of one task, each with at least one sample.

    temperature, max_new_tokens, seed: what they were sampled with; NaN and 0 where nobody knows.
    Raises IsentropeError for no problems.
    """
    if not problems:
        raise IsentropeError("there are no problems to sum up; give at least one")
    samples = max(len(problem.samples) for problem in problems)
    pairs = columns(problems, samples)
    found = {name: estimates.ratio(column) for name, column in pairs.items()}
    intervals = {name: estimates.ratio_interval(column) for name, column in pairs.items()}
    passed = {k: found[f"pass@{k}"] for k in ks(samples)}
    names = ("majority", "entropy", "length", "truncated", "no_answer", "unscored")
    shares: dict[str, Any] = {name: found[name] for name in names}
    return Report(
        task=problems[0].task,
        problems=len(problems),
        samples=samples,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        seed=seed,
        pass_at=passed,
        counted={k: sum(one > 0 for _, one in pairs[f"pass@{k}"]) for k in ks(samples)},
        interval=intervals["pass@1"],
        intervals=intervals,
        half_width=math.nan if math.isnan(passed[1]) else half_width(passed[1], len(problems)),
        reward=found["avg"],
        entropy_kind="" if math.isnan(found["entropy"]) else entropy_kind,
        right=tuple(problem.num_right for problem in problems),
        own={name: found[name] for name in own_names(problems)},
        **shares,
        **_distinct(problems, min(NUM_COUNTED, samples)),
    )


def columns(problems: Sequence[Problem], samples: int) -> dict[str, list[Pair]]:
    """Every figure of every problem, by the figure's name; see `Problem.figures`. A problem that was judged before its
    task had a figure of its own says nothing about it.
    """
    rows = [problem.figures(ks(samples)) for problem in problems]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, (0.0, 0.0)) for row in rows] for name in names}


def own_names(problems: Sequence[Problem]) -> list[str]:
    """The figures that the task of these problems has beyond those of all tasks, in the task's order."""
    return list(dict.fromkeys(name for problem in problems for name in problem.own))


def _distinct(problems: Sequence[Problem], counted: int) -> dict[str, Any]:
    def mean(outcomes: tuple[str, ...]) -> float:
        return math.fsum(_num_distinct(problem.samples[:counted], outcomes) for problem in problems) / len(problems)

    return {"distinct_right": mean(("right",)), "distinct_answers": mean(("right", "wrong")), "distinct_of": counted}


def _num_distinct(samples: Sequence[Sample], outcomes: Sequence[str]) -> int:
    return len({one.answer for one in samples if one.answer and one.outcome in outcomes})


@dataclass(frozen=True)
class Difference:
    """A second evaluation minus a first, on the problems that both have.

    problems: how many these are. differences: figure -> second minus first. intervals: 95% bootstrap intervals of
    these, problems drawn for both at once. A difference whose interval holds 0 is not told from chance.
    """

    task: str
    problems: int
    differences: dict[str, float]
    intervals: dict[str, tuple[float, float]]

    def is_clear(self, name: str) -> bool:
        """Whether the interval of a figure lies on one side of 0."""
        low, high = self.intervals[name]
        return low > 0 or high < 0


def difference(
    task: str, first: Mapping[str, Mapping[str, Pair]], second: Mapping[str, Mapping[str, Pair]]
) -> Difference:
    """Compare two evaluations of one task, figure by figure, on the problems that both have.

    first, second: the key of each problem -> its figures (`Problem.figures`); figures that both have are compared.
    Raises IsentropeError where no problem is in both.
    """
    common = [key for key in first if key in second]
    if not common:
        raise IsentropeError(
            f"task {task}: the two evaluations have no problem in common ({len(first)} and {len(second)} problems); "
            "evaluate both on the same ones"
        )
    names = [name for name in first[common[0]] if name in second[common[0]]]
    pairs = {name: ([first[key][name] for key in common], [second[key][name] for key in common]) for name in names}
    return Difference(
        task=task,
        problems=len(common),
        differences=_each(pairs, lambda a, b: estimates.ratio(b) - estimates.ratio(a)),
        intervals=_each(pairs, estimates.paired_interval),
    )


def _each(pairs: Mapping[str, tuple[list[Pair], list[Pair]]], function: Callable[[Any, Any], Any]) -> dict[str, Any]:
    return {name: function(*both) for name, both in pairs.items()}
