"""What is measured on a run's dumped tokens: one pass over them in bounded memory, curves by step.

The measurements are those of `isentrope.diagnostics`. Curves get the names of a `Run` where they are the same thing
(entropy, ratio, kl_old, kl_rollout, mismatch, change_share/...), and are called "tokens/..." otherwise:

| name | what |
| --- | --- |
| `tokens/surprisal` | mean of -logp, nats |
| `tokens/is_estimate` | share of tokens whose "entropy" is -logp to 1e-4 nats |
| `tokens/on_grid` | share of log-probabilities (below -0.01) that are bf16 numbers; 1 in 65,536 by chance |
| `tokens/below_zero`, `tokens/above_log_v` | share of tokens with an entropy below 0, above log V |
| `tokens/not_finite` | share of tokens whose entropy is NaN or infinite |
| `tokens/above_one` | share of tokens whose probability is above 1 |
| `tokens/ratio_one` | share of tokens whose ratio is exactly 1 |
| `tokens/clip_low`, `tokens/clip_high` | share of tokens beyond .8 and 1.2 |
| `tokens/silenced/<quadrant>` | share of the quadrant's tokens whose weight is exactly 0 |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from isentrope import diagnostics
from isentrope.diagnostics import QUADRANTS, Tokens
from isentrope.errors import IsentropeError
from isentrope.run import Run, Series
from isentrope.tally import Tally, tally

SAME = 1e-4  # nats; float32 logs of the same number, taken in two ways, differ by less
GRID_ABOVE = -0.01  # nats; log-probabilities nearer to 0 underflow to the grid by themselves
ROUNDING = 1e-3  # nats; what float32 sums over a vocabulary may be off
MAX_TASKS = 1000
MAX_STEPS = 100_000
CURVES = ("entropy", "surprisal", "ratio", "kl_old", "kl_rollout", "mismatch", "bias")
FOUND = {"surprisal": "tokens/surprisal", "bias": "tokens/bias"}


def measured(run: Run) -> Run:
    """The run with the curves of its tokens; what it has already stays. A run without tokens stays as it is."""
    if run.tokens is None:
        return run
    by_step: dict[int, Tally] = {}
    for step, columns in run.tokens.batches():
        _check(columns, f"the tokens of {run.name} at step {step}")
        if len(by_step) >= MAX_STEPS and step not in by_step:
            raise IsentropeError(
                f"the tokens of {run.name} are of more than {MAX_STEPS} steps; is that column the step?"
            )
        by_step[step] = by_step.get(step, Tally()) + measure(columns, run.facts.vocabulary)
    points: dict[str, dict[float, float]] = {}
    for step, found in by_step.items():
        for name, value in numbers(found).items():
            points.setdefault(name, {})[step] = value
    series = {name: Series.of(values) for name, values in points.items()}
    both = {f"tokens/{name}": series[name] for name in ("entropy", "mismatch") if name in series}
    return replace(run, series={**series, **both, **run.series})


def _check(columns: Mapping[str, Tensor], where: str) -> None:
    """IsentropeError for whole numbers that would ask for as many bins."""
    for name, bound in (("task", MAX_TASKS), ("position", 2**31)):
        if name in columns and len(columns[name]):
            low, high = int(columns[name].min()), int(columns[name].max())
            if low < 0 or high >= bound:
                raise IsentropeError(f"{where}: {name!r} must lie from 0 to {bound - 1}; found {low} to {high}")


@torch.no_grad()
def measure(columns: Mapping[str, Tensor], vocabulary: int | None = None) -> Tally:
    """The tally of some tokens, flat columns [N] by name."""
    found = Tokens(columns)
    if not found or not len(next(iter(found.values()))):
        return Tally()
    logp = found.get("logp", found.get("old_logp"))
    whole = diagnostics.ratios(found)
    if "task" in found and "entropy" in found:
        whole = whole + tally({"entropy/task": found["entropy"]}, found["task"], int(found["task"].max()) + 1)
    if {"old_logp", "rollout_logp"} <= found.keys():
        whole = whole + diagnostics.sampler_mismatch(Tokens(found | {"position": _positions(found)}))
    if {"logp", "weight", "advantage"} <= found.keys():
        whole = whole + diagnostics.entropy_change(found) + _silenced(found)
    if "entropy" in found:
        whole = whole + _entropies(found["entropy"], logp, vocabulary)
    return whole if logp is None else whole + _probabilities(found, logp)


def _positions(found: Tokens) -> Tensor:
    return found.get("position", torch.zeros(len(found["old_logp"]), dtype=torch.long)).long()


def _entropies(entropy: Tensor, logp: Tensor | None, vocabulary: int | None) -> Tally:
    share = {
        "entropy": entropy,
        "below_zero": (entropy < -ROUNDING).double(),
        "not_finite": (~torch.isfinite(entropy)).double(),
    }
    if logp is not None:
        share["is_estimate"] = ((entropy + logp).abs() < SAME).double()
    if vocabulary is not None:
        share["above_log_v"] = (entropy > math.log(vocabulary) + ROUNDING).double()
    return tally(share)


def _probabilities(found: Tokens, logp: Tensor) -> Tally:
    share = {"surprisal": -logp, "above_one": (logp > ROUNDING).double()}
    grid = torch.stack([found[name] for name in ("logp", "old_logp") if name in found])
    far = grid < GRID_ABOVE
    share["on_grid"] = torch.where(far, (grid == grid.bfloat16().float()).double(), torch.nan).flatten()
    if {"logp", "old_logp"} <= found.keys():
        gap = found["logp"] - found["old_logp"]
        share |= {
            "ratio_one": (gap == 0).double(),
            "clip_low": (gap < math.log(0.8)).double(),
            "clip_high": (gap > math.log(1.2)).double(),
        }
    return tally(share)


def _silenced(found: Tokens) -> Tally:
    """By quadrant: the share of tokens that got no gradient although their advantage is not 0."""
    h = found["entropy"] if "entropy" in found else -found["logp"].mean()
    quadrant = 2 * (found["advantage"] < 0).long() + (found["logp"] + h <= 0).long()
    silent = torch.where(found["advantage"] != 0, (found["weight"] == 0).double(), torch.nan)
    return tally({"silenced": silent}, quadrant, len(QUADRANTS))


def numbers(found: Tally) -> dict[str, float]:
    """The numbers of a step's tally by the name of their curve."""
    said = {FOUND.get(name, name): found.mean(name) for name in CURVES if name in found}
    for name in ("is_estimate", "on_grid", "below_zero", "above_log_v", "not_finite", "above_one", "ratio_one"):
        if name in found:
            said[f"tokens/{name}"] = found.mean(name)
    for name in ("clip_low", "clip_high"):
        if name in found:
            said[f"tokens/{name}"] = found.mean(name)
    if "entropy/task" in found and len(found.sums["entropy/task"]) > 1:
        said |= {f"entropy/task {k}": float(x) for k, x in enumerate(found.means("entropy/task"))}
    if "change" in found:
        size = float(found.sums["change"].abs().sum())
        for k, quadrant in enumerate(QUADRANTS):
            said[f"change_share/{quadrant}"] = float(found.sums["change"][k]) / size if size else 0.0
            said[f"tokens/silenced/{quadrant}"] = found.mean("silenced", k)
    return {name: x for name, x in said.items() if not math.isnan(x)}
