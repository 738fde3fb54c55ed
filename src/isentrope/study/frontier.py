"""Beyond the papers: published objectives and compositions, tuned alike, then compared on seeds nobody tuned on.

**The yardstick**, fixed before the search. Worlds: bandits, chains, and a mix of sharp families where rare answers are
better and flat ones where all are as good, each at 640 updates; and stages, a task and then another on the same table.

1. Tuning, on bandits and chains with the seeds `TUNING`: every entrant, published or not, gets five settings: its knob
   at three values at the learning rate .05, then the rates .02 and .1 at the best value. Best is the highest `score`,
   the mean over worlds of (pass@1 + pass@16) / 2.
2. The one setting of each entrant runs on all worlds with the seeds `FRESH`, which no choice has seen.
3. An entrant is on the frontier where no other has both a higher mean pass@1 and a higher mean pass@16 (or, for the
   second frontier, a higher pass@1 and more entropy kept), means over the three worlds. Differences are paired by seed.
4. A composition earns a preset where the interval of its score minus that of every published entrant that no other
   published one exceeds in both lies above 0; where none does, that of the highest score is at most experimental.

Results: knobs.json, rates.json and fresh.json of a folder; what is there is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from isentrope import presets, seeds
from isentrope.control import EntropyGain, EntropyServo
from isentrope.engines.tabular import TabularTrainer
from isentrope.objective import Objective
from isentrope.penalty import EntropyBonus
from isentrope.schedule import Linear
from isentrope.seeds import Estimate
from isentrope.shaping import Decorrelate, GroupEntropyGate, RescaleBySurprisal
from isentrope.study.experiments import BASE, pi
from isentrope.study.runs import Condition, Figures, Lab, Result, Results, held_out, results
from isentrope.surrogate import GradientPreservingClip, PPOClip

TUNING, FRESH = (100, 101), (200, 201, 202, 203, 204, 205)
STEPS, BATCHES = 640, 40  # updates of a run, and its rollout batches
EVERY = 32  # steps between two looks at a run
RATE, OTHER_RATES = 0.05, (0.02, 0.1)
COEFFICIENTS = (0.02, 0.05, 0.1)  # of every entropy bonus, published or not

# a mix: sharp families, thrice as frequent, where rare answers are better; flat ones where all are as good
_FLAT = {f"task.{i}.options": {"entropy": share} for i, share in ((4, 0.6), (5, 0.75), (6, 0.85), (7, 0.95))}
MIX: dict[str, Any] = {f"task.{i}.weight": 3.0 for i in range(4)} | _FLAT
WORLDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bandits": ("tabular", {}),
    "chains": ("chains", {}),
    "mix": ("tabular", MIX),
    "stages": ("stages", {"trainer.steps": 960}),
}
TUNED_ON, JUDGED_ON = ("bandits", "chains"), ("bandits", "chains", "mix")


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
    """An entrant at a value of its knob and a learning rate."""

    entrant: str
    value: float
    rate: float = RATE

    @property
    def name(self) -> str:
        return f"{self.entrant}, {ENTRANTS[self.entrant].knob} {self.value:g}, rate {self.rate:g}"

    def conditions(self, worlds: Sequence[str]) -> dict[str, Condition]:
        """By a label of world and setting, what is trained."""
        made = ENTRANTS[self.entrant].make(self.value)
        return {
            f"{world}: {self.name}": Condition(
                made, WORLDS[world][0], {"trainer.learning_rate": self.rate} | dict(WORLDS[world][1])
            )
            for world in worlds
        }


def look(condition: Condition, seed: int, steps: int) -> tuple[Figures, dict[str, Any]]:
    """One run: pass@1 and pass@16 held out, entropy at the start, the end and kept, mean reward; of a run in stages the
    mean reward over the second stage and at its end.
    """
    trainer = TabularTrainer(condition.objective, condition.recipe(seed, steps))
    total = trainer.recipe.trainer.steps
    lines = [trainer.step(log=n % EVERY == EVERY - 1 or n == 0) for n in range(total)]
    entropy, reward = ([line[key] for line in lines if key in line] for key in ("exact/entropy", "exact/reward"))
    found = held_out(trainer) | {"mean_reward": fmean(reward), "entropy_start": entropy[0], "entropy_end": entropy[-1]}
    found["entropy_kept"] = entropy[-1] / entropy[0]
    if len(trainer.recipe.stage) > 1:
        first, second, *_ = trainer.recipe.stage
        own = [
            line[f"exact/reward/{second.tasks[0]}"]
            for line in lines[first.steps : first.steps + second.steps]
            if "exact/reward" in line
        ]
        found |= {"second_mean": fmean(own), "second_end": own[-1]}
    return found, {}


def score(found: Results, setting: Setting, worlds: Sequence[str]) -> list[float]:
    """(pass@1 + pass@16) / 2, mean over worlds, of each seed."""
    pairs = zip(pooled(found, setting, "pass_at_1", worlds), pooled(found, setting, "pass_at_k", worlds), strict=True)
    return [(one + many) / 2 for one, many in pairs]


def pooled(found: Results, setting: Setting, figure: str, worlds: Sequence[str] = JUDGED_ON) -> list[float]:
    """A figure's mean over worlds, of each seed."""
    each = [found[f"{world}: {setting.name}"].figures[figure] for world in worlds]
    return [fmean(values) for values in zip(*each, strict=True)]


def best(found: Results, settings: Sequence[Setting]) -> Setting:
    """The setting of the highest mean score on the worlds of tuning; of equal ones the first."""
    return max(settings, key=lambda s: fmean(score(found, s, TUNED_ON)))


def knob_settings(name: str) -> list[Setting]:
    """The entrant's knob at its three values."""
    return [Setting(name, value) for value in ENTRANTS[name].values]


def rate_settings(knobs: Results, name: str) -> list[Setting]:
    """The other learning rates at the knob's best value."""
    chosen = best(knobs, knob_settings(name))
    return [replace(chosen, rate=rate) for rate in OTHER_RATES]


def chosen(knobs: Results, rates: Results, name: str) -> Setting:
    """The setting that tuning ended at."""
    return best({**knobs, **rates}, [*knob_settings(name), *rate_settings(knobs, name)])


def _conditions(settings: Sequence[Setting], worlds: Sequence[str]) -> dict[str, Condition]:
    return {label: condition for s in settings for label, condition in s.conditions(worlds).items()}


def run(folder: Path, told: Callable[[str], None] = print, names: Sequence[str] = tuple(ENTRANTS)) -> None:
    """Run what is missing: knobs, learning rates, and the chosen settings on fresh seeds."""
    tuning, fresh = (Lab(folder, s, STEPS, told) for s in (TUNING, FRESH))
    knobs = tuning.experiment("knobs", _conditions([s for n in names for s in knob_settings(n)], TUNED_ON), read=look)
    again = [s for n in names for s in rate_settings(knobs, n)]
    rates = tuning.experiment("rates", _conditions(again, TUNED_ON), read=look)
    final = [chosen(knobs, rates, n) for n in names]
    fresh.experiment("fresh", _conditions(final, tuple(WORLDS)), read=look)


@dataclass(frozen=True)
class Outcome:
    """The chosen setting of every entrant by name, and what it did on fresh seeds."""

    settings: Mapping[str, Setting]
    fresh: Results

    def values(self, name: str, figure: str, worlds: Sequence[str] = JUDGED_ON) -> list[float]:
        """A figure of each seed, mean over worlds; "score" is one."""
        setting = self.settings[name]
        return score(self.fresh, setting, worlds) if figure == "score" else pooled(self.fresh, setting, figure, worlds)

    def mean(self, name: str, figure: str, worlds: Sequence[str] = JUDGED_ON) -> Estimate:
        """Over seeds."""
        return seeds.estimate(self.values(name, figure, worlds))

    def gap(self, base: str, name: str, figure: str, worlds: Sequence[str] = JUDGED_ON) -> Estimate:
        """`name` minus `base`, paired by seed."""
        return seeds.difference(self.values(base, figure, worlds), self.values(name, figure, worlds))

    def frontier(
        self, figure: str = "pass_at_k", worlds: Sequence[str] = JUDGED_ON, among: Sequence[str] = ()
    ) -> list[str]:
        """The entrants (those `among`, or all) that no other of them exceeds in both mean pass@1 and this figure."""
        names = among or tuple(self.settings)
        at = {n: (self.mean(n, "pass_at_1", worlds).mean, self.mean(n, figure, worlds).mean) for n in names}
        return [n for n, (x, y) in at.items() if not any(a > x and b > y for a, b in at.values())]

    def leader(self) -> str:
        """The composition of the highest mean score."""
        return max((n for n in self.settings if ENTRANTS[n].ours), key=lambda n: self.mean(n, "score").mean)

    def earned(self, name: str) -> bool:
        """Whether its score lies above that of every published entrant on their frontier by the whole interval."""
        return all(self.gap(rival, name, "score").is_above(0.0) for rival in self.rivals())

    def rivals(self) -> list[str]:
        """The published entrants that no other published one exceeds."""
        return self.frontier(among=[n for n in self.settings if not ENTRANTS[n].ours])


def outcome(folder: Path) -> Outcome:
    """The results of a folder. IsentropeError where some are missing or malformed."""
    knobs, rates, fresh = (dict(results(folder / f"{n}.json")) for n in ("knobs", "rates", "fresh"))
    return Outcome({name: chosen(knobs, rates, name) for name in ENTRANTS}, fresh)


def count(folder: Path) -> tuple[int, int]:
    """Settings tried, and runs made for them, tuning and fresh ones together."""
    files: list[dict[str, Result]] = [results(folder / f"{n}.json") for n in ("knobs", "rates", "fresh")]
    tried = {label.split(": ", 1)[1] for file in files for label in file}
    return len(tried), sum(len(found.figures["pass_at_1"]) for file in files for found in file.values())
