"""The part of the study's page that is of the language model, written from its results alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from isentrope.comparison import FIGURES
from isentrope.report.chart import Axis, Chart, Series
from isentrope.seeds import Estimate
from isentrope.study.claims_language import AUTOCAST, CLAIMS, FULL, PRECISION, STAGES
from isentrope.study.language import EXPERIMENTS, SIX
from isentrope.study.language_runs import results
from isentrope.study.pictures import SOLVED, curves, scatter
from isentrope.study.runs import Results
from isentrope.study.verdict import FAILS, HOLDS, OPEN, Claim, Study, gap, text

ENTROPY = "entropy/current_exact"

SECTION = """## On the language model

The package's embedded model (0.34 M parameters) on its puzzles, recipe `default`: 480 updates of 8 on each rollout
batch of 512 completions, learning rate 5e-5, trained through TRL by `isentrope compare default --objectives
{six} --seeds {number}`. Pass@k is that of 300 held-out problems, 8 samples each, before and after;
before, pass@1 is {before1} and pass@8 {before8}, entropy {entropy} nats. So the model starts from an entropy that is
low already, and a run is short. Entropies are exact, of the tokens of the update at hand. Seconds are of a machine that
other work shared: they say what a run cost there, and compare nothing. Three seeds were planned. Two more were added,
for all six objectives and for rounded ratios, after a look at the three: intervals of runs that were stopped at will
are a little too narrow.

Of {judged} claims {holds} hold for this model, {fails} do not, {open} cannot be told.
"""

TABLE = (
    *("reward", "pass_at_1", "pass_at_k", "entropy_start", "entropy_middle", "entropy_end", "entropy_area"),
    *("kl_start", "kl_rollout", "gradient_norm", "seconds"),
)
GEPO = """### GEPO on one task

With a single task there are no regimes of tasks to keep apart: the gate becomes a filter by prompt. Its thresholds
follow the entropies of that task's own groups, and slowly: at the end the lower one stood at {low} nats, where the mean
entropy was {end}. A group below it counts as unusually sure, and most groups were. So GEPO came to GRPO with a mean
over tokens that takes half of what raises right answers. GEPO minus GRPO: mean entropy {entropy},
pass@1 {one}, pass@8 {k}. The claims about a mix of tasks are judged on tabular policies alone.
"""
LOWER = "controller/shaping.0.low.value"  # GEPO's threshold


def load(folder: Path) -> Study:
    """The results of the experiments on the language model that are there."""
    return {name: results(folder / f"{name}.json") for name in EXPERIMENTS if (folder / f"{name}.json").is_file()}


def claims(study: Study) -> list[Claim]:
    """The claims whose experiments are there."""
    return [make(study) for needed, make in CLAIMS if needed in study]


def head(study: Study, table: Callable[..., str], folder: str) -> str:
    """The section's introduction, with the figures of all runs and of GEPO."""
    found = study[FULL]
    first, judged = found["grpo"], [claim.verdict for claim in claims(study)]
    start = {name: f"{first.mean(f'before/{name}').mean:.3g}" for name in ("pass@1", "pass@8", "entropy")}
    intro = SECTION.format(
        six=",".join(SIX),
        number=len(first.figures["reward"]),
        before1=start["pass@1"],
        before8=start["pass@8"],
        entropy=start["entropy"],
        judged=len(judged),
        holds=judged.count(HOLDS),
        fails=judged.count(FAILS),
        open=judged.count(OPEN),
    )
    labels = [("pass@8" if name == "pass_at_k" else FIGURES[name].label) for name in TABLE]
    means = [(label, *(text(found[o].mean(name)) for o in SIX)) for name, label in zip(TABLE, labels, strict=True)]
    differences = [
        (label, *(marked(gap(found, "grpo", o, name)) for o in SIX[1:]))
        for name, label in zip(TABLE, labels, strict=True)
        if name != "seconds"
    ]
    return "\n".join(
        [
            intro,
            table(("", *SIX), means),
            f"![Entropy]({folder}/language-entropy.svg)\n",
            f"![Held-out pass@1 against entropy kept]({folder}/language-frontier-1.svg)\n",
            "Minus GRPO, paired by seed; * where the interval leaves out 0:\n",
            table(("", *SIX[1:]), differences),
            _gepo(found),
        ]
    )


def _gepo(found: Results) -> str:
    gaps = {name: text(gap(found, "grpo", "gepo", name)) for name in ("entropy_mean", "pass_at_1", "pass_at_k")}
    return GEPO.format(
        low=f"{found['gepo'].curves[LOWER]['mean'][-1]:.3g}",
        end=text(found["gepo"].mean("entropy_end")),
        entropy=gaps["entropy_mean"],
        one=gaps["pass_at_1"],
        k=gaps["pass_at_k"],
    )


def marked(x: Estimate) -> str:
    """A difference, with a star where its interval leaves out 0.

    >>> [marked(Estimate(x, x - 0.5, x + 0.5, 3)) for x in (1.0, -1.0, 0.25)]
    ['1.00 ± .50*', '-1.00 ± .50*', '.250 ± .500']
    """
    return f"{text(x)}*" if x.is_above(0.0) or x.is_below(0.0) else text(x)


def left(study: Study) -> str:
    """What is missing of this part, in words; nothing where all is there."""
    names = {AUTOCAST: "number formats", STAGES: "stages"}
    missing = [word for name, word in names.items() if name not in study]
    return f" Not run there: {', '.join(missing)}." if missing else ""


def _accuracy(found: Results) -> Chart:
    """Every run as a point."""
    series = [
        Series(name, found[name].figures["entropy_area"], found[name].figures["after/pass@1"], i, dots=True)
        for i, name in enumerate(SIX)
    ]
    return Chart(
        "language-accuracy",
        "Held-out pass@1 against cumulative entropy, language model",
        "Every run is a point.",
        SOLVED,
        tuple(series),
        x=Axis("cumulative entropy, nats x steps"),
        kind="scatter",
    )


def _frontier(study: Study, k: int) -> Chart:
    title = f"Held-out pass@{k} against entropy kept, language model"
    kept = ("entropy_end", Axis("entropy at the end, nats"))
    return scatter(f"language-frontier-{k}", title, study[FULL], SIX, kept, (f"after/pass@{k}", SOLVED))


def _lines(id_: str, title: str, found: Results) -> Chart:
    return curves(id_, title, found, list(found), ENTROPY)


def _stages(study: Study) -> Chart:
    left_by = ("stage2/entropy_left", Axis("entropy left by the first task, nats"))
    mean = ("stage2/mean_reward", Axis("mean reward over the second task"))
    title = "Learning the second task against entropy left by the first, language model"
    return scatter("language-stages", title, study[STAGES], list(study[STAGES]), left_by, mean)


PICTURES: Mapping[str, tuple[str, Callable[[Study], Chart]]] = {
    "language-entropy": (FULL, lambda s: _lines("language-entropy", "Entropy, language model", s[FULL])),
    "language-accuracy": (FULL, lambda s: _accuracy(s[FULL])),
    "language-frontier-1": (FULL, lambda s: _frontier(s, 1)),
    "language-frontier-8": (FULL, lambda s: _frontier(s, 8)),
    "language-precision": (
        PRECISION,
        lambda s: _lines("language-precision", "Entropy by number format, language model", s[PRECISION]),
    ),
    "language-stages": (STAGES, _stages),
}  # with the experiment that each one needs


def pictures(study: Study) -> Sequence[tuple[str, Chart]]:
    """The pictures whose experiments are there, by name."""
    return [(name, draw(study)) for name, (needed, draw) in PICTURES.items() if needed in study]
