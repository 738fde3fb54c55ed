"""What is known of a training run, whoever made it: curves over steps, facts, and tokens that are read when asked for.

Readers (`isentrope.readers`) turn files into a `Run`; findings (`isentrope.findings`) are functions of a `Run`. A
`Run` holds only what its files hold: a curve that is not there is absent, a fact that is not known is None, and
`lacks` says in words what follows from that.

**Curves** have the names below; units as in the glossary of columns. Steps are the engine's own (optimizer steps, or
rollout batches in verl and slime).

| name | what |
| --- | --- |
| `entropy` | token mean of the policy's entropy, nats; its kind is `Facts.entropy_kind` |
| `surprisal` | token mean of -logp, nats: an estimate of the entropy |
| `reward`, `reward_std`, `zero_std` | mean, spread; share of groups whose rewards are all equal |
| `length`, `truncated` | tokens (or characters) a completion; share cut by the length limit |
| `clip_low`, `clip_high`, `clip` | share of tokens beyond the lower, the upper, either bound |
| `clip_numerical_low`, `clip_numerical_high` | the same where every ratio should be 1 |
| `lost_gradient_low`, `lost_gradient_high` | share of the gradient lost beyond the bounds |
| `ratio`, `kl_old`, `kl_ref` | mean ratio; KL to the rollout's policy and to the reference, nats |
| `kl_rollout`, `mismatch`, `mismatch_p` | sampler against trainer: KL, mean abs. difference of logp (nats) and of p |
| `grad_norm`, `learning_rate`, `loss`, `entropy_coef` | as named |
| `stage` | which part of its recipe's list of stages a step belongs to, 1 the first |
| `distinct` | share of different completions among those of one prompt |
| `entropy/<task>`, `reward/<task>` | by task |
| `controller/<path>.<number>` | a controller's state |
| `change_share/<quadrant>` | share of the predicted entropy change, signed, by PA/NA x HP/LP |
| `tokens/<name>` | measured on dumped tokens (`isentrope.findings.tokens`) |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from isentrope.errors import IsentropeError

if TYPE_CHECKING:
    from torch import Tensor

MAX_POINTS = 1_000_000  # lines of one metrics file; above, thin it out
KEPT_POINTS = 20_000  # of a curve, at most; of a longer one every second, fourth, ... is kept
KINDS = ("exact", "estimate")

# Curves of which one at least must be there, what they are called, and what cannot be said without.
WANTED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("entropy",), "entropy", "whether it collapses, explodes or oscillates"),
    (("reward",), "reward", "whether a change of entropy costs reward"),
    (("zero_std", "reward_std"), "the spread of rewards", "whether the groups still teach anything"),
    (("length",), "completion length", "whether length moves with entropy"),
    (("truncated",), "the share of cut completions", "whether the length limit is a cause"),
    (
        ("clip_low", "clip_high", "clip", "tokens/clip_low"),
        "clip fractions",
        "whether clipping acts, and on which side",
    ),
    (
        ("kl_rollout", "mismatch", "mismatch_p", "tokens/mismatch"),
        "the sampler's log-probabilities",
        "whether sampler and trainer agree",
    ),
    (("change_share/PA&HP",), "tokens with weights", "which tokens move the entropy"),
)


class TokenTable(Protocol):
    """Tokens of a run that are read in batches of bounded size, as often as asked."""

    def batches(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Step and flat columns [N] (names of `isentrope.token_dump.TOKEN_COLUMNS`, mask left out), unmasked only."""
        ...


@dataclass(frozen=True)
class Series:
    """A curve: equally many steps (rising, no step twice) and values, which may be NaN or infinite."""

    steps: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.values):
            raise ValueError(
                f"Series: {len(self.steps)} steps and {len(self.values)} values; they must be equally many"
            )

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, points: Mapping[float, float]) -> Series:
        """A curve of values by step, in the order of the steps."""
        steps = sorted(points)
        return cls(tuple(map(float, steps)), tuple(float(points[step]) for step in steps))

    def finite(self) -> Series:
        """The points whose value is finite."""
        kept = [(s, v) for s, v in zip(self.steps, self.values, strict=True) if math.isfinite(v)]
        return Series(tuple(s for s, _ in kept), tuple(v for _, v in kept))

    def since(self, step: float) -> Series:
        """The points at `step` and later."""
        first = next((i for i, s in enumerate(self.steps) if s >= step), len(self))
        return Series(self.steps[first:], self.values[first:])

    def last(self, share: float) -> Series:
        """The last `share` of the points, at least one."""
        first = len(self) - max(1, round(share * len(self)))
        return Series(self.steps[max(first, 0) :], self.values[max(first, 0) :])


@dataclass(frozen=True)
class Facts:
    """Single numbers and words about a run; None is unknown.

    vocabulary: number of tokens. updates_per_rollout: optimizer steps on one rollout batch. temperature: of the
    rollouts. entropy_coef: of an entropy bonus in the loss. max_length: tokens a completion may have. group_size:
    completions a prompt. objective: its name or its rules, in words. inert: sentences on rules that cannot act, as
    `Objective.inert` states them, without that on a plain clip. entropy_kind: "exact" or "estimate".
    """

    vocabulary: int | None = None
    updates_per_rollout: int | None = None
    temperature: float | None = None
    entropy_coef: float | None = None
    max_length: int | None = None
    group_size: int | None = None
    objective: str | None = None
    inert: tuple[str, ...] | None = None
    entropy_kind: str | None = None

    def __post_init__(self) -> None:
        if self.entropy_kind not in (None, *KINDS):
            raise ValueError(f"Facts.entropy_kind must be one of {KINDS} or None; found {self.entropy_kind!r}")
        for name in ("vocabulary", "updates_per_rollout", "group_size", "max_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Facts.{name} must be at least 1; found {value}")

    def known(self) -> dict[str, Any]:
        """The facts that are known."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def __or__(self, other: Facts) -> Facts:
        """These facts, those of `other` where it knows them."""
        return replace(self, **other.known())


@dataclass(frozen=True)
class Run:
    """A run: `name` to call it by, `engine` that made it ("" where not known), the files read, what they lack."""

    name: str
    engine: str = ""
    series: Mapping[str, Series] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    tokens: TokenTable | None = None
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what the reader has to say of these files

    def get(self, *names: str) -> Series | None:
        """The finite points of the first of these curves that has any."""
        for name in names:
            if name in self.series and len(found := self.series[name].finite()):
                return found
        return None

    def tasks(self, curve: str) -> dict[str, Series]:
        """The curves of single tasks: `tasks("entropy")` gives those of `entropy/<task>` by task."""
        return {
            name.removeprefix(f"{curve}/"): series.finite()
            for name, series in self.series.items()
            if name.startswith(f"{curve}/")
        }

    @property
    def lacks(self) -> tuple[str, ...]:
        """What the files do not hold, each with what therefore cannot be said."""
        missing = [
            f"without {what} it cannot be said {unsaid}"
            for names, what, unsaid in WANTED
            if not any(name in self.series for name in names)
        ]
        if "entropy" in self.series and self.facts.entropy_kind is None:
            missing.append("the files do not say whether the entropy is exact or an estimate (mean of -logp)")
        return (*missing, *self.notes)

    def __or__(self, other: Run) -> Run:
        """Both as one run: curves of the first where both have one, tokens of the first that has any."""
        return Run(
            name=self.name,
            engine=self.engine or other.engine,
            series={**other.series, **self.series},
            facts=other.facts | self.facts,
            tokens=self.tokens or other.tokens,
            sources=(*self.sources, *other.sources),
            notes=(*self.notes, *(note for note in other.notes if note not in self.notes)),
        )


def merge(runs: Sequence[Run]) -> Run:
    """Several parts of one run as one; see `Run.__or__`."""
    whole = runs[0]
    for part in runs[1:]:
        whole = whole | part
    return whole


class Points:
    """Values by step of one curve as they come, in bounded memory; of a step that comes twice the last counts.

    Once there are more than 20,000, the steps are cut into windows of equal width from the first step on, and of every
    window the point with the lowest step stays; the width doubles whenever there are too many again. Of a curve that is
    logged every k steps that is every second, fourth, ... point.
    """

    def __init__(self) -> None:
        self._at: dict[float, tuple[float, float]] = {}  # by window: step and value
        self._first = math.nan
        self._width = 0.0  # steps; 0 keeps all

    def add(self, step: float, value: float) -> None:
        """One point."""
        window = self._window(step)
        if window not in self._at or step <= self._at[window][0]:
            self._at[window] = step, value
            if len(self._at) > KEPT_POINTS:
                self._widen()

    def _window(self, step: float) -> float:
        return (step - self._first) // self._width if self._width else step

    def _widen(self) -> None:
        points = sorted(self._at.values())
        first, last = points[0][0], points[-1][0]
        if not self._width:
            self._first, self._width = first, (last - first) / (len(points) - 1)
        while len(self._at) > KEPT_POINTS // 2 + 1:
            self._width *= 2
            self._at = {}
            for step, value in points:
                self._at.setdefault(self._window(step), (step, value))

    def series(self) -> Series:
        """The points in the order of their steps."""
        return Series.of(dict(self._at.values()))


def curves(rows: Iterable[tuple[float, Mapping[str, float]]], where: str) -> dict[str, Series]:
    """Curves by name from (step, numbers) rows; of a step that comes twice, as after a resumption, the last counts.

    Curves of more than 20,000 points are thinned (see `Points`). IsentropeError for more than a million rows.
    """
    points: dict[str, Points] = {}
    for count, (step, numbers) in enumerate(rows, start=1):
        if count > MAX_POINTS:
            raise IsentropeError(f"{where} has more than {MAX_POINTS} lines; thin it out, every tenth step will do")
        for name, value in numbers.items():
            points.setdefault(name, Points()).add(step, value)
    return {name: found.series() for name, found in points.items()}
