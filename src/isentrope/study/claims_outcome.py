"""Claims on what entropy is good for: accuracy, a second task, a mix of tasks, variety."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev

from isentrope import seeds
from isentrope.curves import correlation
from isentrope.seeds import Estimate
from isentrope.study.experiments import OURS, PUBLISHED
from isentrope.study.verdict import (
    ABOVE,
    WORLDS,
    Claim,
    Study,
    across,
    judge,
    rows_of,
    text,
)


def entropy_and_accuracy(study: Study) -> Claim:
    worlds = (
        ("objectives", "bandits, rare is better"),
        ("chains", "chains, rare is better"),
        ("even", "bandits, even"),
    )
    kept = [name for name in PUBLISHED if name in study["even"]]
    found = _with_passes(study, worlds, kept, "entropy_area")
    return Claim(
        "Cumulative entropy goes with final accuracy",
        "REPO, arXiv:2603.11682",
        f"Correlation over {len(kept)} objectives of mean entropy over the run with held-out pass@1 and pass@16, in"
        " each seed.",
        ("", "with pass@1", "with pass@16"),
        _pass_rows(worlds, found),
        judge(*(ABOVE(one) for one, _ in found)),
        "The verdict is on pass@1; with pass@16 the sign is that of the last column.",
        "accuracy",
    )


def collapsed_learns_worse(study: Study) -> Claim:
    results = study["stages"]
    figures = ("stage2/entropy_left", "stage2/mean_reward", "stage2/reward_end", "stage3/mean_reward")
    found = across(results, list(results), figures[0], figures[1])
    return Claim(
        "A collapsed policy learns the second task worse",
        "REPO, arXiv:2603.11682",
        "Task A, then B, then A again, on one table: entropy left by the first stage, mean reward over the second.",
        ("", "entropy left by A", "mean reward of B", "reward of B at its end", "mean reward of A again"),
        tuple(rows_of(results, list(results), figures)),
        judge(ABOVE(found)),
        f"Correlation over {len(results)} objectives {text(found)}.",
        "stages",
    )


LOW, HIGH = ("e05", "e15"), ("e85", "e95")


def low_entropy_dominates(study: Study) -> Claim:
    results = study["mix"]

    def share(name: str) -> Estimate:
        f = results[name].figures
        number = len(f["moved/e05"])
        return seeds.estimate(
            [fmean(f[f"moved/{t}"][s] for t in LOW) / fmean(f[f"moved/{t}"][s] for t in HIGH) for s in range(number)]
        )

    def lost(name: str, tasks: Sequence[str]) -> Estimate:
        f = results[name].figures
        number = len(f["moved/e05"])
        return seeds.estimate(
            [1 - fmean(f[f"entropy_end/{t}"][s] / f[f"entropy_start/{t}"][s] for t in tasks) for s in range(number)]
        )

    return Claim(
        "On a mix of tasks, group-relative advantages let the tasks of low entropy dominate",
        "GEPO, arXiv:2607.16850",
        "Eight tasks under plain gradient steps: how far the tables of the two lowest entropies moved over how far"
        " those of the two highest did, and the share of its entropy that each kind lost.",
        ("", "moved, low over high", "entropy lost, low", "entropy lost, high"),
        tuple((name, text(share(name)), text(lost(name, LOW)), text(lost(name, HIGH))) for name in results),
        judge((share("group-relative"), 1.0, math.inf)),
        f"They dominate where the ratio is above 1; it is {text(share('group-relative'))}, without the"
        f" division by the group's standard deviation {text(share('group-centred'))}.",
    )


def gepo_keeps_regimes(study: Study) -> Claim:
    results = study["objectives"]
    names = ("gepo", "grpo", "adapo", "repo_d", "bonus by PI")
    tasks = [key.split("/")[1] for key in results["gepo"].figures if key.startswith("entropy_end/")]

    def kept(name: str) -> list[float]:
        """Correlation over tasks of entropy at the end with that at the start, seed by seed."""
        f = results[name].figures
        return [
            correlation([f[f"entropy_start/{t}"][s] for t in tasks], [f[f"entropy_end/{t}"][s] for t in tasks])
            for s in range(len(f["entropy_end"]))
        ]

    def spread(name: str) -> Estimate:
        f = results[name].figures
        return seeds.estimate(
            [
                pstdev(f[f"entropy_end/{t}"][s] for t in tasks) / pstdev(f[f"entropy_start/{t}"][s] for t in tasks)
                for s in range(len(f["entropy_end"]))
            ]
        )

    gaps = [seeds.difference(kept(name), kept("gepo")) for name in ("adapo", "repo_d", "bonus by PI")]
    said = ", ".join(f"{name} {text(x)}" for name, x in zip(("adapo", "repo_d", "bonus by PI"), gaps, strict=True))
    return Claim(
        "GEPO keeps the tasks' regimes apart where a global controller forces one pattern",
        "GEPO, arXiv:2607.16850",
        "Entropies of the eight tasks at the end against the start: their correlation, and their spread over that at"
        " the start.",
        ("", "correlation of end with start", "spread, end over start"),
        tuple((name, text(seeds.estimate(kept(name))), text(spread(name))) for name in names),
        judge(*map(ABOVE, gaps)),
        f"Correlation, GEPO minus a global controller: {said}.",
    )


def certainty_costs_variety(study: Study) -> Claim:
    names = [*PUBLISHED, *OURS]
    found = _with_passes(study, WORLDS, names, "entropy_end")
    return Claim(
        "Entropy kept is pass@k kept, whatever it does to pass@1",
        "throughout the papers",
        f"Correlation over {len(names)} objectives of entropy at the end with held-out pass@1 and pass@16, in each"
        " seed.",
        ("", "with pass@1", "with pass@16"),
        _pass_rows(WORLDS, found),
        judge(*(ABOVE(k) for _, k in found)),
        "The verdict is on pass@16.",
        "frontier-bandits-16",
    )


def _with_passes(
    study: Study, worlds: Sequence[tuple[str, str]], names: Sequence[str], figure: str
) -> list[tuple[Estimate, Estimate]]:
    """For each world the correlation over objectives of a figure with held-out pass@1 and with pass@k."""
    return [
        (across(study[w], names, figure, "pass_at_1"), across(study[w], names, figure, "pass_at_k")) for w, _ in worlds
    ]


def _pass_rows(
    worlds: Sequence[tuple[str, str]], found: Sequence[tuple[Estimate, Estimate]]
) -> tuple[tuple[str, ...], ...]:
    return tuple((label, text(one), text(k)) for (_, label), (one, k) in zip(worlds, found, strict=True))
