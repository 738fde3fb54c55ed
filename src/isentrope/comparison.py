"""Objectives side by side: the figures of every run of a comparison, their means over seeds, and paired differences.

out/
  plan.json               recipe, objectives and seeds; a comparison goes on only with the same
  NAME/seed-0/            a run folder of each objective and seed
  NAME/seed-0.log         what that run printed
  comparison.json         every figure of every run, means with intervals, differences
  comparison.html         the same as a page
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from isentrope import record, seeds
from isentrope.curves import cumulative_entropy
from isentrope.record import RunFolder
from isentrope.report.data import Curve, read_curves
from isentrope.seeds import Estimate

PLAN, RESULT, PAGE = "plan.json", "comparison.json", "comparison.html"
ENTROPY = ("exact/entropy", "entropy/current_exact", "entropy")
KL = ("exact/kl_start", "kl")
MISSING = math.nan


@dataclass(frozen=True)
class Measured:
    """What is read of one run: its curves, and the evaluations after it, of each task."""

    curves: Mapping[str, Curve]
    after: Sequence[Mapping[str, Any]]
    seconds: float

    def curve(self, *names: str) -> Curve:
        """The first of these curves that the run logged; an empty one where it logged none."""
        return next((self.curves[name] for name in names if len(self.curves.get(name, ()))), Curve())


@dataclass(frozen=True)
class Figure:
    """A figure of a run. label: with its unit. of: how it is read; NaN where the run does not have it."""

    label: str
    of: Callable[[Measured], float]


def _last_tenth(*names: str) -> Callable[[Measured], float]:
    return lambda run: run.curve(*names).ends[1] if len(run.curve(*names)) else MISSING


def _first(*names: str) -> Callable[[Measured], float]:
    return lambda run: run.curve(*names).values[0] if len(run.curve(*names)) else MISSING


def _middle(run: Measured) -> float:
    """Mean over the middle tenth of the run."""
    values = run.curve(*ENTROPY).values
    tenth, start = max(1, len(values) // 10), max(0, int(0.45 * len(values)))
    return fmean(values[start : start + tenth]) if values else MISSING


def _last(*names: str) -> Callable[[Measured], float]:
    return lambda run: run.curve(*names).values[-1] if len(run.curve(*names)) else MISSING


def _mean(*names: str) -> Callable[[Measured], float]:
    return lambda run: fmean(run.curve(*names).values) if len(run.curve(*names)) else MISSING


def _area(run: Measured) -> float:
    curve = run.curve(*ENTROPY)
    return cumulative_entropy(curve.values, curve.steps) if len(curve) > 1 else MISSING


def _pass(most: bool) -> Callable[[Measured], float]:
    """Mean over tasks of held-out pass@1, or of pass@k at the largest k."""

    def found(run: Measured) -> float:
        values = [report["pass_at"][str(max(map(int, report["pass_at"])) if most else 1)] for report in run.after]
        return fmean(values) if values else MISSING

    return found


FIGURES: Mapping[str, Figure] = {
    "reward": Figure("reward, last tenth", _last_tenth("reward")),
    "pass_at_1": Figure("held-out pass@1", _pass(most=False)),
    "pass_at_k": Figure("held-out pass@k", _pass(most=True)),
    "entropy_start": Figure("entropy at the start, nats", _first(*ENTROPY)),
    "entropy_middle": Figure("entropy in the middle, nats", _middle),
    "entropy_end": Figure("entropy at the end, nats", _last_tenth(*ENTROPY)),
    "entropy_area": Figure("cumulative entropy, nats x steps", _area),
    "kl_start": Figure("KL to the start, nats a token", _last(*KL)),
    "kl_rollout": Figure("KL to the rollout's policy, nats", _mean("kl_old")),
    "gradient_norm": Figure("gradient norm", _mean("grad_norm")),
    "seconds": Figure("seconds", lambda run: run.seconds),
}


def measured(path: Path) -> Measured:
    """What a finished run folder holds. IsentropeError for one that is not."""
    folder = RunFolder(path)
    after = record.read_json(folder.evaluation("after")) if folder.evaluation("after").is_file() else []
    return Measured(
        read_curves(record.iter_metrics(folder.metrics)), after, record.read_json(folder.summary)["seconds"]
    )


def figures(run: Measured) -> dict[str, float]:
    """Every figure of a run."""
    return {name: float(figure.of(run)) for name, figure in FIGURES.items()}


def is_finished(path: Path) -> bool:
    """Whether a run folder holds a run that came to its end: the summary is written last."""
    return RunFolder(path).summary.is_file()


@dataclass(frozen=True)
class Comparison:
    """Objectives by name -> figures of each run, in the order of the seeds."""

    seeds: tuple[int, ...]
    runs: Mapping[str, Sequence[Mapping[str, float]]]

    def values(self, objective: str, figure: str) -> list[float]:
        """One figure of every run of an objective."""
        return [run[figure] for run in self.runs[objective]]

    def mean(self, objective: str, figure: str) -> Estimate:
        """Its mean over seeds."""
        return seeds.estimate(self.values(objective, figure))

    def difference(self, objective: str, figure: str) -> Estimate:
        """To the first objective, paired by seed."""
        return seeds.difference(self.values(next(iter(self.runs)), figure), self.values(objective, figure))

    def known(self) -> list[str]:
        """The figures that some run has."""
        return [
            name for name in FIGURES if any(math.isfinite(run[name]) for runs in self.runs.values() for run in runs)
        ]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: by objective every run's figures, means with intervals, and differences to the first."""
        first = next(iter(self.runs))
        return {
            "seeds": list(self.seeds),
            "first": first,
            "figures": {name: FIGURES[name].label for name in self.known()},
            "objectives": {
                name: {
                    "runs": [dict(run) for run in runs],
                    "mean": {figure: self.mean(name, figure).to_dict() for figure in self.known()},
                    "difference": {}
                    if name == first
                    else {figure: self.difference(name, figure).to_dict() for figure in self.known()},
                }
                for name, runs in self.runs.items()
            },
        }


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Where the run of an objective and a seed lies."""
    return out / name / f"seed-{seed}"


def read(out: Path, names: Sequence[str], seed_list: Sequence[int]) -> Comparison:
    """The comparison of finished runs."""
    runs = {name: [figures(measured(run_folder(out, name, seed))) for seed in seed_list] for name in names}
    return Comparison(tuple(seed_list), runs)
