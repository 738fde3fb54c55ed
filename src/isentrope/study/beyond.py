"""`python -m isentrope.study.beyond`: run what is missing of the search of `frontier`, and write docs/frontier.md.

The page follows from the results alone: knobs.json, fresh.json, and language.json, where runs of the
embedded language model were read into it with --language.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import typer

from isentrope import comparison, presets, record, seeds
from isentrope.penalty import EntropyBonus
from isentrope.report.chart import Axis
from isentrope.report.still import svg
from isentrope.study import frontier as search
from isentrope.study.frontier import ENTRANTS, FRESH
from isentrope.study.page import table
from isentrope.study.pictures import SOLVED, scatter
from isentrope.study.runs import Results, results, short
from isentrope.study.verdict import gap, text

OURS = "half_drift_bonus"  # the preset that the search led to, by its name on the language model
KEPT = Axis("entropy at the end, as a share of that at the start", low=0.0)
bonus_05 = replace(presets.grpo, penalties=(EntropyBonus(coef=0.05),))  # the control: what its bonus does alone
SPOKEN = ("pass_at_1", "pass_at_k", "entropy_end", "entropy_area")  # figures of a run on the language model

HEAD = """# Beyond the papers: accuracy against entropy kept

Which composition is best, if all get the same tuning? `python -m isentrope.study.beyond` makes this page and its
pictures from results in `docs/study/frontier/`, and first runs what is missing there.

**The yardstick** was written down before the first run, as the docstring of `isentrope.study.frontier`, and shortened
once, for want of time, before any result on fresh seeds was seen: two more learning rates for every entrant, a further
world and a second task were struck out, and fresh seeds run for finalists alone.

- *Worlds.* Bandits and chains are those of [the study](study.md), each a mix of eight families from nearly
  deterministic to nearly uniform; 640 updates with Adam at .05.
- *Equal tuning.* {entrants} entrants, published ({published}) or not, each with a knob at three values, on bandits and
  chains with {tuning} seeds. The score is (pass@1 + pass@16) / 2, mean over worlds. Published objectives so leave their
  papers' numbers where others do better here.
- *Finalists.* The three compositions of the highest score, the published objectives that no other published one exceeds
  in both passes, and {always}.
- *Fresh seeds.* What tuning chose runs on all worlds with {fresh} seeds that no choice has seen. `±` is half of
  Student's 95 % interval; differences are paired by seed.
- *Frontier* (◆): no other finalist has both a higher mean pass@1 and a higher mean pass@16; ◇ the same with the share
  of entropy kept in place of pass@16.
- *A composition earns a preset* where its score lies above that of every published objective on the published ones'
  frontier, by the whole interval.

{tried} settings were tried, {runs} runs in all. Before that, fifteen compositions were looked at on bandits and chains
with two seeds of their own: three of the six that entered were chosen by that look, the other three named beforehand.
"""


def language(folders: Sequence[Path]) -> dict[str, Any]:
    """Figures of the finished runs of comparisons of the embedded model: by objective the seeds, and for each figure
    its values. IsentropeError for a folder that holds no comparison.
    """
    found: dict[str, Any] = {}
    for folder in folders:
        for name in record.read_json(folder / comparison.PLAN)["objectives"]:
            numbers = sorted(int(path.name[5:]) for path in (folder / name).glob("seed-*") if path.is_dir())
            finished = [n for n in numbers if comparison.is_finished(comparison.run_folder(folder, name, n))]
            each = [comparison.figures(comparison.measured(comparison.run_folder(folder, name, n))) for n in finished]
            values = {f: short([run[f] for run in each]) for f in SPOKEN}
            found |= {name: {"seeds": finished} | values} if finished else {}
    return found


def spoken(folder: Path) -> dict[str, dict[int, dict[str, float]]]:
    """language.json as figures by objective and seed; nothing where there is no such file."""
    path = folder / "language.json"
    content = record.read_json(path) if path.is_file() else {}
    return {
        name: {seed: {f: one[f][place] for f in SPOKEN} for place, seed in enumerate(one["seeds"])}
        for name, one in content.items()
    }


def write(folder: Path, page: Path) -> None:
    """Write the page, and its pictures into the folder of the results."""
    settings, fresh = search.settled(folder), results(folder / "fresh.json")
    found = search.over(fresh, settings)
    for name, chart in pictures(found).items():
        record.write_text(folder / f"{name}.svg", svg(chart))
    tried, runs = search.count(folder)
    place = folder.relative_to(page.parent).as_posix()
    parts = [
        HEAD.format(
            entrants=len(ENTRANTS),
            published=sum(not entrant.ours for entrant in ENTRANTS.values()),
            tuning=len(search.TUNING),
            always=", ".join(search.ALWAYS),
            fresh=len(FRESH),
            tried=tried,
            runs=runs,
        ),
        "## What came out\n",
        _verdict(found),
        "## The frontier\n",
        _frontier(found),
        *(f"![{chart.title}]({place}/{name}.svg)\n" for name, chart in pictures(found).items()),
        "## World by world\n",
        _by_world(fresh, settings),
        f"## *{search.leader(found)}* minus every other\n",
        _gaps(found),
        "## What tuning chose\n",
        _tuning(folder, settings),
        "## On the embedded language model\n",
        _language(folder),
    ]
    record.write_text(page, "\n".join(parts))


def pictures(found: Results) -> dict[str, Any]:
    """The two pictures of the frontier."""
    one, k, kept = ("pass_at_1", SOLVED), ("pass_at_k", Axis("held-out pass@16")), ("entropy_kept", KEPT)
    return {
        "passes": scatter("passes", "Held-out pass@1 against pass@16", found, list(found), k, one),
        "kept": scatter("kept", "Held-out pass@1 against entropy kept", found, list(found), kept, one),
    }


def _called(name: str) -> str:
    return f"*{name}*" if ENTRANTS[name].ours else name


def _tuning(folder: Path, settings: dict[str, search.Setting]) -> str:
    """The best setting of every entrant, and its score, by which finalists were chosen."""
    knobs = results(folder / "knobs.json")
    rows = []
    for name, entrant in ENTRANTS.items():
        best = search.best_value(knobs, name)
        final = "yes" if name in settings else "–"
        cells = [fmean(search.pooled(knobs, best, figure)) for figure in ("pass_at_1", "pass_at_k")]
        score = fmean(search.score(knobs, best))
        tried = ", ".join(f"{x:g}" for x in entrant.values)
        rows.append((_called(name), entrant.knob, tried, f"{best.value:g}", final, *map(_short, (score, *cells))))
    heads = ("entrant", "knob", "tried", "best", "finalist", "score", "pass@1", "pass@16")
    return "Means over the seeds of tuning, so higher than on fresh seeds by what choosing adds.\n\n" + table(
        heads, rows
    )


def _short(x: float) -> str:
    return f"{x:.3f}".removeprefix("0")


FIGURES = ("score", "pass_at_1", "pass_at_k", "entropy_kept", "mean_reward")
HEADS = ("score", "pass@1", "pass@16", "entropy kept", "mean reward of the run")


def _frontier(found: Results) -> str:
    """All entrants by score, with what is on a frontier marked."""
    passes, kept = search.frontier(found), search.frontier(found, "entropy_kept")
    rows = []
    for name in sorted(found, key=lambda n: -found[n].mean("score").mean):
        marks = ("◆" if name in passes else "") + ("◇" if name in kept else "")
        cells = [text(found[name].mean(figure)) for figure in FIGURES]
        rows.append((f"{marks} {_called(name)}".strip(), *cells))
    return "Means over bandits and chains; compositions in italics.\n\n" + table(("", *HEADS), rows)


def _verdict(found: Results) -> str:
    """What the rule says of the composition of the highest score."""
    name, rivals = search.leader(found), search.rivals(found)
    held = "earns a preset" if search.earned(found, name) else "does not earn a preset: it is at most experimental"
    parts = []
    for rival in rivals:
        one, k = (text(gap(found, rival, name, figure)) for figure in ("pass_at_1", "pass_at_k"))
        score = text(gap(found, rival, name, "score"))
        parts.append(f"{rival} {score} (pass@1 {one}, pass@16 {k})")
    said = "; ".join(parts)
    return f"By the rule, *{name}* **{held}**. Its score minus that of the published ones on their frontier: {said}.\n"


def _by_world(fresh: Results, settings: dict[str, search.Setting]) -> str:
    """pass@1, pass@16 and entropy kept on each world."""
    worlds = {world: search.over(fresh, settings, (world,)) for world in search.WORLDS}
    heads = ["", *(f"{world}: {head}" for world in worlds for head in ("pass@1", "pass@16", "entropy kept"))]
    figures = ("pass_at_1", "pass_at_k", "entropy_kept")
    rows = [
        (
            _called(name),
            *(_short(found[name].mean(f).mean) for found in worlds.values() for f in figures),
        )
        for name in settings
    ]
    return table(heads, rows)


def _gaps(found: Results) -> str:
    """The composition of the highest score minus every other entrant, paired by seed."""
    name = search.leader(found)
    rows = [
        (
            _called(other),
            *(text(gap(found, other, name, figure)) for figure in FIGURES),
        )
        for other in found
        if other != name
    ]
    return table((f"*{name}* minus", *HEADS), rows)


def _language(folder: Path) -> str:
    """The preset beside published objectives on the embedded model, where such runs were read in."""
    found = spoken(folder)
    if OURS not in found:
        return "Not run: `isentrope compare default`, and its folder given to the command above with `--language`.\n"
    mine = found[OURS]
    rows, gaps = [], []
    for name, runs in found.items():
        label = f"*{name}*" if name == OURS else name
        common = sorted(set(runs) & set(mine))
        rows.append((label, ", ".join(map(str, sorted(runs))), *(_said([r[f] for r in runs.values()]) for f in SPOKEN)))
        if name != OURS and common:
            differences = (_said([mine[s][f] - runs[s][f] for s in common]) for f in SPOKEN)
            gaps.append((name, ", ".join(map(str, common)), *differences))
    heads = ("seeds", "held-out pass@1", "pass@8", "entropy at the end, nats", "entropy, nats times updates")
    alone = "**A single seed of ours: no interval, so an indication and no more.** " if len(mine) == 1 else ""
    control = " `bonus_05` is GRPO with the entropy bonus of .05 alone." if "bonus_05" in found else ""
    return (
        "The recipe `default` as it is: 480 updates on countdown with the embedded model, every objective with its"
        f" preset's numbers. {alone}Means over seeds; differences on the seeds that both have.{control}\n\n"
        + table(("", *heads), rows)
        + "\n"
        + table((f"*{OURS}* minus", *heads), gaps)
    )


def _said(values: Sequence[float]) -> str:
    """Mean and interval; of a single value the value."""
    if len(values) > 1:
        return text(seeds.estimate(values))
    (one,) = values
    return f"{one:.3g}".replace("0.", ".", 1)


def main(
    out: Annotated[Path, typer.Option(help="Folder of results and pictures.")] = Path("docs/study/frontier"),
    page: Annotated[Path, typer.Option(help="The page.")] = Path("docs/frontier.md"),
    spoken_in: Annotated[
        list[Path] | None,
        typer.Option("--language", help="Folder of `isentrope compare default`; may be given several times."),
    ] = None,
) -> None:
    """Run what is missing of the search beyond the papers, and write its page and pictures. Half an hour of a core."""
    torch.set_num_threads(1)
    if spoken_in:
        record.write_json(out / "language.json", language(spoken_in))
    search.run(out, lambda told: print(told, flush=True))
    write(out, page)


if __name__ == "__main__":
    typer.run(main)
