"""Beyond the papers: published objectives and compositions, tuned alike, then compared on seeds nobody tuned on.

**The yardstick**, fixed before the search, and shortened once before any result on fresh seeds was seen (the page says
how). Worlds: bandits and chains, each a mix of eight families from nearly deterministic to nearly uniform, at 640
updates.

1. Tuning, with the seeds `TUNING`: the knob of every entrant, published or not, at three values.
   Best is the highest `score`, the mean over worlds of (pass@1 + pass@16) / 2.
2. Finalists: the three compositions of the highest score, the published entrants that no other published one exceeds in
   both mean pass@1 and mean pass@16, and `ALWAYS`.
3. The best setting of each finalist runs with the seeds `FRESH`, which no choice has seen.
4. A finalist is on the frontier where no other has both a higher mean pass@1 and a higher mean pass@16 (or, for the
   second frontier, a higher pass@1 and more entropy kept), means over the worlds. Differences are paired by seed.
5. A composition earns a preset where the interval of its score minus that of every published finalist that no other
   published one exceeds in both lies above 0; where none does, that of the highest score is at most experimental.

Results: knobs.json and fresh.json of a folder; what is there is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from isentrope import presets
from isentrope.control import EntropyGain, EntropyServo
from isentrope.engines.tabular import TabularTrainer
from isentrope.objective import Objective
from isentrope.penalty import EntropyBonus
from isentrope.schedule import Linear
from isentrope.shaping import Decorrelate, GroupEntropyGate, RescaleBySurprisal
from isentrope.study.experiments import BASE, pi
from isentrope.study.runs import Condition, Figures, Lab, Result, Results, held_out, results
from isentrope.study.verdict import gap
from isentrope.surrogate import GradientPreservingClip, PPOClip

TUNING, FRESH = (100, 101), (200, 201, 202, 203, 204, 205)
STEPS, BATCHES = 640, 40  # updates of a run, and its rollout batches
EVERY = 32  # steps between two looks at a run
RATE = 0.05  # learning rate of every run
COEFFICIENTS = (0.02, 0.05, 0.1)  # of every entropy bonus, published or not

WORLDS = {"bandits": "tabular", "chains": "chains"}  # by name the recipe
ALWAYS = ("grpo", "ce_gppo", "repo_r")  # finalists whatever tuning says of them
NUM_OURS = 3  # compositions among the finalists


@dataclass(frozen=True)
class Entrant:
    """An objective with a knob: `make` gives it at one of `values`. ours: no paper has it."""

    knob: str
    values: tuple[float, ...]
    make: Callable[[float], Objective]
    ours: bool = False


def _gain(high: float, start: float, low: float) -> EntropyGain:
    return EntropyGain(start=start, low=low, high=high)


def _drift(gain: Any, **slots: Any) -> Objective:
    return replace(BASE, shaping=(Decorrelate(zeta=gain, normalise=True),), **slots)


def _gate(low: float) -> GroupEntropyGate:
    return replace(presets.gepo.shaping[0], alpha_low=low)


def _with_bonus(objective: Objective, coef: Any) -> Objective:
    return replace(objective, penalties=(EntropyBonus(coef=coef),))


ENTRANTS: Mapping[str, Entrant] = {
    "grpo": Entrant("low and high", (0.1, 0.2, 0.4), lambda x: replace(presets.grpo, surrogate=PPOClip(x, x))),
    "dapo": Entrant("high", (0.24, 0.28, 0.4), lambda x: replace(presets.dapo, surrogate=PPOClip(0.2, x))),
    "ce_gppo": Entrant(
        "keep_low", (0.0, 0.5, 1.0), lambda x: replace(presets.ce_gppo, surrogate=GradientPreservingClip(keep_low=x))
    ),
    "gepo": Entrant("alpha_low", (0.3, 0.5, 0.8), lambda x: replace(presets.gepo, shaping=(_gate(x),))),
    "repo_d": Entrant(
        "bound of zeta",
        (1.0, 3.0, 10.0),
        lambda x: replace(presets.repo_d, shaping=(Decorrelate(zeta=_gain(x, 1.0, 1e-3)),)),
    ),
    "repo_r": Entrant(
        "bound of zeta",
        (0.05, 0.2, 0.8),
        lambda x: replace(presets.repo_r, shaping=(RescaleBySurprisal(zeta=_gain(x, 1e-3, 1e-4)),)),
    ),
    "adapo": Entrant(
        "bound of high",
        (0.5, 1.0, 3.0),
        lambda x: replace(presets.adapo, surrogate=PPOClip(low=0.2, high=EntropyServo(high=x))),
    ),
    "entropy_bonus": Entrant("coef", COEFFICIENTS, lambda x: _with_bonus(BASE, x)),
    "w_reinforce": Entrant(
        "lambda_pos",
        (0.1, 0.3, 1.0),
        lambda x: replace(presets.w_reinforce, advantage=replace(presets.w_reinforce.advantage, lambda_pos=x)),
    ),
    "qae": Entrant(
        "quantile",
        (0.2, 0.4, 0.6),
        lambda x: replace(presets.qae, advantage=replace(presets.qae.advantage, quantile=x)),
    ),
    "gepo + ce_gppo": Entrant(
        "keep_low",
        (0.0, 0.5, 1.0),
        lambda x: replace(presets.gepo, surrogate=GradientPreservingClip(keep_low=x)),
        ours=True,
    ),
    "ce_gppo, PI on keep_high": Entrant(
        "kp",
        (0.5, 2.0, 8.0),
        lambda x: replace(BASE, surrogate=GradientPreservingClip(keep_low=0.0, keep_high=pi(1.0, 0.0, 4.0, x))),
        ours=True,
    ),
    "neutral drift": Entrant("gain", (0.25, 0.5, 1.0), _drift, ours=True),
    "drift + bonus": Entrant("coef", COEFFICIENTS, lambda x: _with_bonus(_drift(0.5), x), ours=True),
    "qae + bonus": Entrant("coef", COEFFICIENTS, lambda x: _with_bonus(presets.qae, x), ours=True),
    "fading bonus": Entrant(
        "coef at the start", (0.05, 0.1, 0.2), lambda x: _with_bonus(BASE, Linear(x, 0.0, BATCHES)), ours=True
    ),
}


@dataclass(frozen=True)
class Setting:
    """An entrant at a value of its knob."""

    entrant: str
    value: float

    @property
    def name(self) -> str:
        """What it is called in the results."""
        return f"{self.entrant}, {ENTRANTS[self.entrant].knob} {self.value:g}"

    def conditions(self) -> dict[str, Condition]:
        """By a label of world and setting, what is trained."""
        made = ENTRANTS[self.entrant].make(self.value)
        changes = {"trainer.learning_rate": RATE}
        return {f"{world}: {self.name}": Condition(made, recipe, changes) for world, recipe in WORLDS.items()}


def look(condition: Condition, seed: int, steps: int) -> tuple[Figures, dict[str, Any]]:
    """One run: pass@1 and pass@16 held out, entropy at the start, the end and kept, mean reward over the run."""
    trainer = TabularTrainer(condition.objective, condition.recipe(seed, steps))
    lines = [trainer.step(log=n % EVERY == EVERY - 1 or n == 0) for n in range(steps)]
    entropy, reward = ([line[key] for line in lines if key in line] for key in ("exact/entropy", "exact/reward"))
    found = held_out(trainer) | {"mean_reward": fmean(reward), "entropy_start": entropy[0], "entropy_end": entropy[-1]}
    return found | {"entropy_kept": entropy[-1] / entropy[0]}, {}


def score(found: Results, setting: Setting, worlds: Sequence[str] = tuple(WORLDS)) -> list[float]:
    """(pass@1 + pass@16) / 2, mean over worlds, of each seed."""
    pairs = zip(pooled(found, setting, "pass_at_1", worlds), pooled(found, setting, "pass_at_k", worlds), strict=True)
    return [(one + many) / 2 for one, many in pairs]


def pooled(found: Results, setting: Setting, figure: str, worlds: Sequence[str] = tuple(WORLDS)) -> list[float]:
    """A figure's mean over worlds, of each seed."""
    each = [found[f"{world}: {setting.name}"].figures[figure] for world in worlds]
    return [fmean(values) for values in zip(*each, strict=True)]


def knob_settings(name: str) -> list[Setting]:
    """The entrant's knob at its three values."""
    return [Setting(name, value) for value in ENTRANTS[name].values]


def best_value(knobs: Results, name: str) -> Setting:
    """The knob's value of the highest mean score; of equal ones the first."""
    return max(knob_settings(name), key=lambda s: fmean(score(knobs, s)))


def finalists(knobs: Results) -> list[str]:
    """The entrants that go on, in the order of `ENTRANTS`."""
    found = over(knobs, {name: best_value(knobs, name) for name in ENTRANTS})
    ours = sorted((n for n in ENTRANTS if ENTRANTS[n].ours), key=lambda n: -found[n].mean("score").mean)
    going = {*ALWAYS, *rivals(found), *ours[:NUM_OURS]}
    return [name for name in ENTRANTS if name in going]


def settled(folder: Path) -> dict[str, Setting]:
    """The setting of every finalist that tuning ended at. IsentropeError where results are missing or malformed."""
    knobs = results(folder / "knobs.json")
    return {name: best_value(knobs, name) for name in finalists(knobs)}


def conditions(settings: Sequence[Setting]) -> dict[str, Condition]:
    """Every setting on every world."""
    return {label: found for setting in settings for label, found in setting.conditions().items()}


def run(folder: Path, told: Callable[[str], None] = print) -> None:
    """Run what is missing: all entrants' knobs, and the finalists on fresh seeds."""
    every = [setting for name in ENTRANTS for setting in knob_settings(name)]
    Lab(folder, TUNING, STEPS, told).experiment("knobs", conditions(every), read=look)
    Lab(folder, FRESH, STEPS, told).experiment("fresh", conditions([*settled(folder).values()]), read=look)


def over(fresh: Results, settings: Mapping[str, Setting], worlds: Sequence[str] = tuple(WORLDS)) -> dict[str, Result]:
    """By entrant the figures of its setting, mean over worlds, and the score."""
    found = {}
    for name, setting in settings.items():
        known = fresh[f"{worlds[0]}: {setting.name}"].figures
        figures = {figure: pooled(fresh, setting, figure, worlds) for figure in known}
        found[name] = Result(figures | {"score": score(fresh, setting, worlds)}, {})
    return found


def frontier(found: Results, figure: str = "pass_at_k", among: Sequence[str] = ()) -> list[str]:
    """The entrants (those `among`, or all) that no other of them exceeds in both mean pass@1 and this figure's mean."""
    at = {n: (found[n].mean("pass_at_1").mean, found[n].mean(figure).mean) for n in among or found}
    return [n for n, (x, y) in at.items() if not any(a > x and b > y for a, b in at.values())]


def leader(found: Results) -> str:
    """The composition of the highest mean score."""
    return max((n for n in found if ENTRANTS[n].ours), key=lambda n: found[n].mean("score").mean)


def rivals(found: Results) -> list[str]:
    """The published entrants that no other published one exceeds."""
    return frontier(found, among=[n for n in found if not ENTRANTS[n].ours])


def earned(found: Results, name: str) -> bool:
    """Whether the interval of its score minus every rival's lies above 0."""
    return all(gap(found, rival, name, "score").is_above(0.0) for rival in rivals(found))


def count(folder: Path) -> tuple[int, int]:
    """Settings tried, and runs made of them, tuning and fresh seeds together."""
    files = [results(folder / f"{name}.json") for name in ("knobs", "fresh")]
    tried = {label.split(": ", 1)[1] for file in files for label in file}
    return len(tried), sum(len(found.figures["pass_at_1"]) for file in files for found in file.values())
