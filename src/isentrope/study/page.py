"""The page of the study, docs/study.md, written from its results alone: the same results give the same page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isentrope import record
from isentrope.report.still import svg
from isentrope.study import language_page
from isentrope.study.claims import CLAIMS
from isentrope.study.claims_language import FULL
from isentrope.study.experiments import EXPERIMENTS, OURS, PUBLISHED, STEPS
from isentrope.study.pictures import PICTURES
from isentrope.study.runs import Results, results
from isentrope.study.verdict import WORLDS, Claim, Study, gap, text

SPOKEN = ", on a language model"  # what a title has more there, so that it has an anchor of its own

HEAD = """# The study: what the papers claim, and what came out here

{parts}

Results that contradict a paper stand as they came out: other problems, other sizes, another optimizer may well be why.
So may the yardstick: entropy is compared at equal numbers of updates, and what learns faster loses its entropy sooner;
the second claim takes that out.

`python -m isentrope.study` makes the tabular part again, some ten minutes of one core,
`python -m isentrope.study --language-model` the other one, a minute and a half a run; `--runs` names the folder where
its runs lie, finished ones included. Results are kept as JSON in `docs/study/`, pictures beside them, and this page is
written from these alone; what is there is not run again.

**Verdicts** follow from the intervals by a fixed rule: *holds here* where all that the claim rests on lie on its
side, *does not hold here* where one lies on the other, else *cannot tell*. `±` is half of Student's 95 % interval over
seeds. A seed sets the initial policies, the problems and the random numbers, the same for every condition, so
differences are paired. With {claims} claims at 95 %, one interval or another misses.
"""

BOTH = """**What this is.** Two kinds of policies were trained for this page. **Tabular policies**: bandits and short
chains with softmax policies of at most some thousand numbers, of which everything is known; all {claims} claims are
tested on them. **A language model**, the package's embedded one of 0.34 M parameters, in TRL: {judged} of the claims
are tested on it as well, [in a part of their own](#on-the-language-model). It is as small as a language model can be,
so what holds for it need not hold for a large one: `isentrope compare --set model.name=NAME` trains yours.{left}"""

TABULAR_ALONE = """**What this is.** Every result here is of **tabular policies**: bandits and short chains with softmax
policies of at most some thousand numbers, of which everything is known. **No language model was trained for this
page.** What holds here holds of the update rules on such problems; `python -m isentrope.study --language-model` tests
some of the claims on the embedded model."""

TABULAR = """## On tabular policies

**How.** {seeds} seeds a condition, {steps} updates ({others}), 16 on each rollout batch of 512
completions (64 problems, 8 each), Adam at .05 where nothing else is said. Entropy, reward and pass@k are exact.

**Bandits**: eight tasks with 32 actions, initial entropies from 5 to 95 % of the largest; four actions are good, each
problem accepts some of them, the initially less likely ones more often, and the policy cannot see which. So pass@1 is
highest for one action, pass@16 for several. **Chains**: the same with up to four symbols of a vocabulary of six.
`isentrope train tabular` and `isentrope train chains` are these worlds.
"""

FRONTIER = """## Beyond the papers: accuracy against entropy kept, on tabular policies

All objectives at equal budget, {count} of them compositions that no paper has: *gepo + ce_gppo* is GEPO's gate with
CE-GPPO's clip, *PI* a proportional-integral controller in the place of a number, *neutral drift* REPO-D's shaping
normalised so that gain 1 cancels the first-order change of entropy. An objective is on the frontier (◆) where no
other has both a higher mean pass@1 and a higher mean entropy at the end.
"""


def load(folder: Path) -> Study:
    """The results of all experiments on tabular policies. IsentropeError for one that is not there."""
    return {name: results(folder / f"{name}.json") for name in EXPERIMENTS}


def write(folder: Path) -> None:
    """Write pictures into the folder of the results, and the page beside it."""
    study, spoken = load(folder), language_page.load(folder)
    drawn = {name: draw(study) for name, draw in PICTURES.items()} | dict(language_page.pictures(spoken))
    for name, chart in drawn.items():
        record.write_text(folder / f"{name}.svg", svg(chart))
    settings = record.read_json(folder / "objectives.json")
    page = build(study, spoken, seeds=len(settings["seeds"]), steps=settings["steps"], folder=folder.name)
    record.write_text(folder.parent / f"{folder.name}.md", page)


def build(study: Study, spoken: Study, seeds: int, steps: int, folder: str) -> str:
    """The page as Markdown. spoken: the results on the language model, empty where there are none."""
    claims = [make(study) for make in CLAIMS]
    told = {claim.title: claim for claim in (language_page.claims(spoken) if FULL in spoken else [])}
    parts = TABULAR_ALONE
    if told:
        parts = BOTH.format(claims=len(CLAIMS), judged=len(told), left=language_page.left(spoken))
    heads = ("claim", "tabular policies", "language model")
    return "\n".join(
        [
            HEAD.format(parts=parts, claims=len(CLAIMS)),
            "## Verdicts\n",
            table(heads, [_verdicts(claim, told.get(claim.title)) for claim in claims]),
            *([language_page.head(spoken, table, folder)] if told else []),
            *(_section(claim, folder, spoken=True) for claim in told.values()),
            TABULAR.format(seeds=seeds, steps=steps, others=_other_lengths()),
            *(_section(claim, folder) for claim in claims),
            FRONTIER.format(count=len(OURS)),
            *(_frontier(study[world], label, folder) for world, label in WORLDS),
            _compositions(study),
            _closing(study),
        ]
    )


def _verdicts(claim: Claim, spoken: Claim | None) -> tuple[str, str, str]:
    """A row of the table of verdicts: links to where the claim is judged."""
    cell = f"[**{spoken.verdict}**](#{_anchor(spoken.title + SPOKEN)})" if spoken else "–"
    return (claim.title, f"[**{claim.verdict}**](#{_anchor(claim.title)})", cell)


def _section(claim: Claim, folder: str, spoken: bool = False) -> str:
    parts = [
        f"### {claim.title}{SPOKEN if spoken else ''}\n",
        f"{claim.source}. **{claim.verdict[0].upper()}{claim.verdict[1:]}.** {claim.reason}\n",
        f"{claim.experiment}\n",
        table(claim.heads, claim.rows),
    ]
    if claim.picture:
        parts.append(f"![{claim.title}]({folder}/{claim.picture}.svg)\n")
    return "\n".join(parts)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown.

    >>> print(table(("a", "b"), [("1", "2")]), end="")
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _anchor(title: str) -> str:
    """The anchor that a heading gets.

    >>> _anchor("GEPO: a b (c), d's pass@1")
    'gepo-a-b-c-ds-pass1'
    """
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _other_lengths() -> str:
    """The experiments whose runs have another length."""
    by_length: dict[int, list[str]] = {}
    for name, length in STEPS.items():
        by_length.setdefault(length, []).append(name)
    return "; ".join(f"{length} for {', '.join(names)}" for length, names in sorted(by_length.items()))


def _closing(study: Study) -> str:
    """What stands on the frontier of both worlds, and what follows."""
    names = [*PUBLISHED, "rloo, on-policy", *OURS]
    both = set.intersection(*(on_frontier(study[world], names) for world, _ in WORLDS))
    listed = ", ".join(name for name in names if name in both) or "nothing"
    return (
        f"On the frontier of both worlds: {listed}. None of the compositions is a preset of the library: each was"
        " chosen among several on the results it is shown with, on problems like these alone, and none has trained a"
        " language model, where a bonus of this size or a drift held at 0 may do harm that they do not show. [The"
        " frontier](frontier.md) has a search that tunes all alike, and the preset that came of it.\n"
    )


def on_frontier(found: Results, names: Sequence[str]) -> set[str]:
    """The names that no other exceeds in both mean pass@1 and mean entropy at the end."""
    points = {name: (found[name].mean("pass_at_1").mean, found[name].mean("entropy_end").mean) for name in names}
    return {
        name
        for name, (solved, kept) in points.items()
        if not any(other[0] > solved and other[1] > kept for other in points.values())
    }


def _frontier(found: Results, label: str, folder: str) -> str:
    names = [*PUBLISHED, "rloo, on-policy", *OURS]
    best = on_frontier(found, names)
    ordered = sorted(names, key=lambda name: -found[name].mean("pass_at_1").mean)
    rows = [
        (
            f"{'◆ ' if name in best else ''}{f'*{name}*' if name in OURS else name}",
            *(text(found[name].mean(figure)) for figure in ("pass_at_1", "pass_at_k", "entropy_end", "kl_start")),
        )
        for name in ordered
    ]
    heads = (label, "held-out pass@1", "pass@16", "entropy at the end", "KL to the start")
    pictures = [f"![{label}, pass@{k}]({folder}/frontier-{label}-{k}.svg)\n" for k in (1, 16)]
    return "\n".join([f"### {label.capitalize()}\n", table(heads, rows), *pictures])


def _compositions(study: Study) -> str:
    """Every composition against two published ones, paired by seed."""
    rows = []
    for name in OURS:
        cells = [
            text(gap(study[world], base, name, figure))
            for world, _ in WORLDS
            for base in ("grpo", "ce_gppo")
            for figure in ("pass_at_1", "pass_at_k")
        ]
        rows.append((name, *cells))
    heads = ["composition minus"]
    heads += [f"{base}, {label}: pass@{k}" for _, label in WORLDS for base in ("grpo", "ce_gppo") for k in (1, 16)]
    return "### Compositions against published objectives\n\n" + table(heads, rows)
