"""Test an objective, a user's own rules included, against the laws that every objective obeys.

    from isentrope import check, presets
    print(check.check(presets.ce_gppo))
    check.LAWS["rows_in_any_order"](presets.ce_gppo, check.draw(seed=3))     # one law on one batch

Batches are drawn by Hypothesis where it is installed, which looks at odd sizes first and reduces what breaks a law to
the smallest batch that does; else from the seed alone. The laws themselves are in `isentrope.laws`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from isentrope.columns import GLOSSARY
from isentrope.errors import IsentropeError
from isentrope.laws import LAWS, DoesNotApply, LawBroken
from isentrope.objective import Objective

__all__ = ["LAWS", "DoesNotApply", "LawBroken", "Report", "Result", "batches", "check", "draw"]

REWARDS = ("binary", "graded", "equal")


# -- drawing batches ---------------------------------------------------------------------------------------------------


class Drawn(dict[str, Tensor]):
    """A drawn batch; `recipe` is the expression that draws it again."""

    recipe: str = ""


def draw(
    seed: int, rows: int = 8, tokens: int = 6, prompts: int = 3, rewards: str = "binary", extra: Sequence[str] = ()
) -> Drawn:
    """A batch with every column of the glossary, the current policy's included; float64 values that float32 holds.

    seed: of a generator of its own.  rows, tokens: B and T.  prompts: the most groups.  rewards: "binary", "graded"
    (multiples of 1/8) or "equal".  extra: columns outside the glossary, drawn as normal [B,T].
    Log-ratios are 0, of the order of GSPO's bounds (3e-4), inside, around and far outside the usual clip ranges, on
    both sides. Masks have short, empty and interrupted rows; what stands behind them is finite but not zero. Some
    tokens lack `rollout_logp`.

    >>> batch = draw(seed=1, rows=2, tokens=3)
    >>> list(batch["mask"].shape), batch.recipe
    ([2, 3], "draw(1, 2, 3, 3, 'binary')")
    """
    g = torch.Generator().manual_seed(seed)
    shape = (rows, tokens)
    old = (-(torch.randn(shape, generator=g) * 1.2 - 0.5).exp()).clamp(-12, -1e-3)
    old_entropy = (torch.randn(shape, generator=g) * 0.7 - 0.3).exp()
    group = torch.randint(prompts, (rows,), generator=g) * 7 + 3
    known = torch.rand(shape, generator=g) > 0.1
    columns = {
        "reward": _rewards(rewards, rows, g),
        "group": group,
        "task": group % 2,
        "mask": _mask(shape, g),
        "logp": (old + _steps((0, 2e-4, 0.02, 0.15, 0.5, 1.5), shape, g)).clamp(max=-1e-4),
        "old_logp": old,
        "rollout_logp": torch.where(known, old + _steps((0, 0.05, 0.3, 2.0), shape, g), torch.nan),
        "ref_logp": (old + torch.randn(shape, generator=g) * 0.5).clamp(max=-1e-4),
        "entropy": old_entropy * (1 + _steps((0, 0.02, 0.2), shape, g)),
        "old_entropy": old_entropy,
        "value": torch.randn(shape, generator=g),
        "length_limit_hit": torch.rand(rows, generator=g) < 0.3,
        "length_limit": torch.full((rows,), float(tokens)),
        "tempered": torch.rand(rows, generator=g) < 0.25,
        **{name: torch.randn(shape, generator=g) for name in extra},
    }
    batch = Drawn({name: x.double() if x.is_floating_point() else x for name, x in columns.items()})
    batch.recipe = f"draw({seed}, {rows}, {tokens}, {prompts}, {rewards!r}{f', {list(extra)!r}' if extra else ''})"
    return batch


def _rewards(kind: str, rows: int, g: torch.Generator) -> Tensor:
    if kind == "equal":
        return torch.full((rows,), 0.25)
    if kind == "binary":
        return torch.randint(2, (rows,), generator=g).float()
    return torch.randint(-8, 17, (rows,), generator=g) / 8


def _mask(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    length = torch.randint(-1, shape[1] + 2, shape[:1], generator=g)[:, None]
    return (torch.arange(shape[1]) < length) & (torch.rand(shape, generator=g) > 0.15)


def _steps(sizes: Sequence[float], shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """Numbers of either sign around one of the sizes each."""
    size = torch.tensor(sizes)[torch.randint(len(sizes), shape, generator=g)]
    return size * (0.6 + 0.8 * torch.rand(shape, generator=g)) * (torch.randint(2, shape, generator=g) * 2 - 1)


def batches(extra: Sequence[str] = ()) -> Any:
    """A Hypothesis strategy of drawn batches, small ones first. Needs the package hypothesis."""
    from hypothesis import strategies

    return strategies.builds(
        draw,
        seed=strategies.integers(0, 2**31 - 1),
        rows=strategies.integers(1, 9),
        tokens=strategies.integers(1, 7),
        prompts=strategies.integers(1, 4),
        rewards=strategies.sampled_from(REWARDS),
        extra=strategies.just(tuple(extra)),
    )


# -- checking ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What became of one law: "holds" (on `examples` batches), "broken" (with the message) or "not promised" (with the
    reason).
    """

    law: str
    outcome: Literal["holds", "broken", "not promised"]
    examples: int
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """The results of all laws, in the order of LAWS. `drawn` names columns outside the glossary that were drawn as
    normal [B,T].
    """

    results: tuple[Result, ...]
    drawn: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[Result, ...]:
        """The laws that do not hold; empty for a sound objective."""
        return tuple(result for result in self.results if result.outcome == "broken")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"ok": not self.broken} | asdict(self)

    def __str__(self) -> str:
        width = max(len(result.law) for result in self.results)
        lines = [f"{r.law:{width}}  {r.outcome:12}  {r.detail}".rstrip() for r in self.results]
        return "\n".join(lines)


def check(objective: Objective, examples: int = 25, seed: int = 0, laws: Sequence[str] = tuple(LAWS)) -> Report:
    """Run the laws on drawn batches.

    examples: batches for each law, at least 1.  seed: of all draws; the same seed draws the same batches.
    Columns outside the glossary that the objective reads are drawn as normal [B,T].
    Raises IsentropeError for what is not an Objective, no examples, or a law that does not exist.
    """
    if not isinstance(objective, Objective):
        raise IsentropeError(
            f"check takes an Objective; found {type(objective).__name__}: isentrope.spec.load makes one"
        )
    if examples < 1:
        raise IsentropeError(f"examples must be at least 1; found {examples}")
    unknown = sorted(set(laws) - LAWS.keys())
    if unknown:
        raise IsentropeError(f"there is no law {unknown[0]!r}; there are {', '.join(LAWS)}")
    needs = objective.columns()
    extra = tuple(sorted((needs.prepare | needs.loss | needs.optional) - GLOSSARY.keys()))
    search = _explore if find_spec("hypothesis") else _repeat
    return Report(tuple(_result(name, objective, extra, search, examples, seed) for name in laws), extra)


Search = Callable[[Callable[[Drawn], None], tuple[str, ...], int, int], None]


def _result(
    name: str, objective: Objective, extra: tuple[str, ...], search: Search, examples: int, seed: int
) -> Result:
    held: list[str] = []
    reasons: list[str] = []

    def one(batch: Drawn) -> None:
        try:
            LAWS[name](objective, batch)
        except DoesNotApply as reason:
            reasons.append(str(reason))
        else:
            held.append(batch.recipe)

    try:
        search(one, extra, examples, seed)
    except LawBroken as broken:
        return Result(name, "broken", len(held), str(broken))
    return Result(name, "holds", len(held)) if held else Result(name, "not promised", 0, reasons[0])


def _repeat(one: Callable[[Drawn], None], extra: tuple[str, ...], examples: int, seed: int) -> None:
    """Batches from the seed alone, of growing size."""
    for i in range(examples):
        one(draw(seed * 1_000_003 + i, 1 + i % 9, 1 + i % 7, 1 + i % 4, REWARDS[i % 3], extra))


def _explore(one: Callable[[Drawn], None], extra: tuple[str, ...], examples: int, seed: int) -> None:
    """Batches from Hypothesis, reduced to the smallest that breaks the law."""
    import hypothesis

    settings: Any = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    given: Any = hypothesis.given(batches(extra))
    seeded: Any = hypothesis.seed(seed)
    seeded(settings(given(one)))()
