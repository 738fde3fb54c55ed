"""Synthetic runs with known faults, and healthy ones: a generator each, seeded, and the alarms that it must raise.

`CASES[name].build(seed)` draws a run; `CASES[name].alarms` are the names of the findings of severity warning or error
that it must give, no more and no fewer. Shapes follow public reports; levels those of runs between .05 and 2 nats.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from isentrope.run import Facts, Run, Series

Shape = Callable[[float], float]  # of the run's progress, 0 to 1


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[int], Run]
    alarms: frozenset[str]

    @property
    def is_healthy(self) -> bool:
        return not self.alarms


CASES: dict[str, Case] = {}


def case(*alarms: str):
    """Registers a function `f(rng) -> Run` under its name."""

    def register(function):
        name = function.__name__
        CASES[name] = Case(name, lambda seed: function(random.Random(f"{name} {seed}")), frozenset(alarms))
        return function

    return register


def curve(rng, shape: Shape, noise: float = 0.0, n: int = 120, red: float = 0.0, first: int = 1) -> Series:
    """shape(progress) times 1 + noise; red in [0, 1) makes neighbours alike."""
    drift, values = 0.0, []
    for i in range(n):
        drift = red * drift + math.sqrt(1 - red**2) * rng.gauss(0, noise)
        values.append(shape(i / max(n - 1, 1)) * (1 + drift))
    return Series(tuple(float(first + i) for i in range(n)), tuple(values))


def shares(rng, level: float, noise: float = 0.2, n: int = 120) -> Series:
    """A share that stays near a level."""
    return curve(rng, lambda t: level, noise, n)


def flat(level: float) -> Shape:
    return lambda t: level


def line(a: float, b: float) -> Shape:
    return lambda t: a + (b - a) * t


def decay(a: float, b: float) -> Shape:
    return lambda t: a * (b / a) ** t


def settle(a: float, b: float, rate: float = 6.0) -> Shape:
    return lambda t: b + (a - b) * math.exp(-rate * t)


RISING = settle(0.3, 0.62, 2.0)
STALLED = settle(0.3, 0.5, 12.0)


def run(
    rng, entropy: Shape, reward: Shape = RISING, n: int = 120, noise: float = 0.04, red: float = 0.0, **more
) -> Run:
    """A run that is healthy in all that is not said; `more` replaces curves, None takes one away."""
    series = {
        "entropy": curve(rng, entropy, noise, n, red),
        "reward": curve(rng, reward, 0.05, n),
        "reward_std": shares(rng, 0.4, 0.05, n),
        "zero_std": shares(rng, 0.25, 0.2, n),
        "length": curve(rng, flat(310.0), 0.04, n),
        "truncated": shares(rng, 0.03, 0.3, n),
        "clip_low": shares(rng, 0.002, 0.4, n),
        "clip_high": shares(rng, 0.003, 0.4, n),
        "kl_old": shares(rng, 0.002, 0.4, n),
        "ratio": curve(rng, flat(1.0004), 0.0002, n),
        "kl_rollout": shares(rng, 0.0008, 0.2, n),
        "grad_norm": shares(rng, 0.3, 0.2, n),
        "learning_rate": curve(rng, flat(1e-6), 0.0, n),
        **more,
    }
    facts = Facts(entropy_kind="exact", vocabulary=50_000, entropy_coef=0.0, updates_per_rollout=4, temperature=1.0)
    return Run("synthetic", "trl", {name: s for name, s in series.items() if s is not None}, facts)


def with_facts(made: Run, **facts) -> Run:
    return replace(made, facts=replace(made.facts, **facts))


@dataclass(frozen=True)
class Memory:
    """A token table that is held in memory."""

    held: tuple[tuple[int, dict[str, torch.Tensor]], ...]

    def batches(self):
        yield from self.held


def tokens(rng, n: int = 3000, steps=(10, 40, 80, 110), change=lambda columns, generator: columns) -> Memory:
    """Tokens of policies over 40 words, with small moves since the rollout; weights are those of r A."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    held = []
    for step in steps:
        logits = 2.0 * torch.randn(n, 40, generator=generator)
        old = logits.log_softmax(-1)
        token = torch.multinomial(old.exp(), 1, generator=generator)
        new = (logits + 0.03 * torch.randn(n, 40, generator=generator)).log_softmax(-1)
        advantage = torch.randn(n, generator=generator)
        logp, old_logp = new.gather(1, token)[:, 0], old.gather(1, token)[:, 0]
        columns = {
            "logp": logp,
            "old_logp": old_logp,
            "rollout_logp": old_logp + 0.01 * torch.randn(n, generator=generator),
            "entropy": -(new.exp() * new).sum(-1),
            "advantage": advantage,
            "weight": (logp - old_logp).exp() * advantage / n,
            "position": torch.arange(n) % 100,
        }
        held.append((step, change(columns, generator)))
    return Memory(tuple(held))


# -- healthy ----------------------------------------------------------------------------------------


@case()
def flat_low_entropy(rng):
    return run(rng, flat(0.05), noise=0.06)


@case()
def flat_entropy_and_reward(rng):
    return run(rng, flat(0.4), reward=flat(0.55))


@case()
def slow_fall_with_rising_reward(rng):
    return run(rng, decay(0.5, 0.3))


@case()
def half_gone_with_rising_reward(rng):
    return run(rng, decay(0.84, 0.36), reward=line(0.25, 0.66))


@case()
def noisy(rng):
    return run(rng, decay(0.5, 0.38), noise=0.2)


@case()
def red_noise(rng):
    return run(rng, flat(0.4), noise=0.08, red=0.8)


@case()
def warm_up_transient(rng):
    return run(rng, lambda t: 0.4 * (1 + 1.5 * math.exp(-60 * t)))


@case()
def warm_up_spike_after_start(rng):
    return run(rng, lambda t: 0.4 + 0.5 * math.exp(-(((t - 0.08) / 0.03) ** 2)))


@case()
def falls_then_stabilises(rng):
    return run(rng, settle(0.9, 0.33, 8.0), reward=STALLED)


@case()
def falls_then_stabilises_low(rng):
    return run(rng, settle(0.9, 0.2, 10.0))


@case()
def few_steps(rng):
    return run(rng, line(0.5, 0.35), n=6)


@case()
def dozen_steps(rng):
    return run(rng, line(0.5, 0.42), n=12)


@case()
def controller_settles_at_its_target(rng):
    target = 0.5
    made = run(rng, lambda t: target * (1 - 0.5 * math.exp(-8 * t) * math.cos(40 * t)))
    value = curve(rng, lambda t: 0.28 * (1 + 0.8 * math.exp(-8 * t) * math.sin(40 * t)), 0.01)
    more = {"controller/surrogate.high.value": value, "controller/surrogate.high.target": curve(rng, flat(target))}
    return replace(made, series={**made.series, **more})


@case()
def controller_raises_entropy_to_its_target(rng):
    made = run(rng, settle(0.2, 0.75, 5.0), reward=STALLED)
    return replace(made, series={**made.series, "controller/penalties.0.coef.target": curve(rng, flat(0.75))})


@case()
def entropy_rises_with_reward(rng):
    return run(rng, line(0.3, 0.7))


@case()
def completions_stay_different(rng):
    made = run(rng, flat(0.5), distinct=curve(rng, line(0.95, 0.7), 0.05))
    return Run("dump", "verl", {name: made.series[name] for name in ("reward", "distinct", "length")})


@case()
def several_tasks_steady(rng):
    made = run(rng, decay(0.5, 0.35))
    more = {f"entropy/{t}": curve(rng, decay(h, 0.7 * h), 0.06) for t, h in (("maths", 0.4), ("words", 0.8))}
    more |= {f"reward/{t}": curve(rng, line(r, r + 0.2), 0.08) for t, r in (("maths", 0.3), ("words", 0.5))}
    return replace(made, series={**made.series, **more})


@case()
def one_task_is_solved_first(rng):
    made = run(rng, decay(0.5, 0.33))
    more = {"entropy/easy": curve(rng, settle(0.3, 0.12), 0.06), "entropy/hard": curve(rng, decay(0.8, 0.5), 0.06)}
    more |= {"reward/easy": curve(rng, settle(0.6, 0.97, 9.0), 0.03), "reward/hard": curve(rng, line(0.1, 0.3), 0.1)}
    return replace(made, series={**made.series, **more})


@case()
def shorter_answers_at_steady_entropy(rng):
    return run(rng, flat(0.4), length=curve(rng, decay(600.0, 220.0), 0.05))


@case()
def truncation_that_goes_away(rng):
    return run(rng, decay(0.6, 0.45), truncated=curve(rng, decay(0.4, 0.05), 0.1))


@case()
def entropy_and_reward_alone(rng):
    made = run(rng, decay(0.5, 0.35))
    return Run("bare", "", {name: made.series[name] for name in ("entropy", "reward")})


@case()
def plain_ppo_on_policy(rng):
    n = 120
    still = {name: curve(rng, flat(0.0), 0.0, n) for name in ("clip_low", "clip_high", "kl_old")}
    made = run(rng, decay(0.5, 0.37), ratio=curve(rng, flat(1.0), 0.0, n), **still)
    return with_facts(made, updates_per_rollout=1)


@case()
def solved(rng):
    return run(
        rng,
        settle(0.5, 0.2, 5.0),
        reward=lambda t: 0.97 - 0.6 * math.exp(-5 * t),
        zero_std=curve(rng, settle(0.2, 0.93, 6.0), 0.02),
    )


@case()
def small_bonus_at_steady_entropy(rng):
    return with_facts(run(rng, flat(0.45)), entropy_coef=0.001)


@case()
def adaptive_bonus_at_its_target(rng):
    made = run(rng, settle(0.35, 0.2, 8.0), entropy_coef=curve(rng, line(0.0, 0.002), 0.0))
    return with_facts(made, entropy_coef=None)


@case()
def sixteen_gentle_updates(rng):
    return with_facts(run(rng, decay(0.5, 0.36)), updates_per_rollout=16)


@case()
def sixteen_updates_in_a_narrow_band(rng):
    made = run(rng, decay(0.5, 0.36), clip_low=shares(rng, 0.07), clip_high=shares(rng, 0.08))
    return with_facts(made, updates_per_rollout=16)


@case()
def gaps_and_outliers(rng):
    made = run(rng, decay(0.5, 0.35))
    kept = [i for i in range(120) if rng.random() > 0.2]
    values = [made.series["entropy"].values[i] * (3.0 if rng.random() < 0.04 else 1.0) for i in kept]
    entropy = Series(tuple(float(i + 1) for i in kept), tuple(values))
    return replace(made, series={**made.series, "entropy": entropy})


@case()
def long_run(rng):
    return run(rng, decay(0.5, 0.25), n=1500, noise=0.1)


@case()
def sequence_clipping_on_both_sides(rng):
    return run(rng, decay(0.5, 0.36), clip_low=shares(rng, 0.06), clip_high=shares(rng, 0.07))


@case()
def harder_problems_from_the_middle(rng):
    return run(rng, flat(0.4), reward=lambda t: 0.3 + 0.4 * t if t < 0.5 else 0.2 + 0.3 * (t - 0.5))


@case()
def learning_rate_that_decays(rng):
    return run(rng, lambda t: 0.3 + 0.25 * (1 - t) ** 2, reward=settle(0.3, 0.6, 4.0))


@case()
def logged_every_tenth_step(rng):
    made = run(rng, decay(0.5, 0.36), n=30)
    wide = {name: Series(tuple(10 * s for s in x.steps), x.values) for name, x in made.series.items()}
    return replace(made, series=wide)


@case()
def drift_after_the_reward_has_stalled(rng):
    return run(rng, decay(0.5, 0.36), reward=STALLED, n=300)


@case()
def modest_rise_at_a_flat_reward(rng):
    return run(rng, line(0.15, 0.24), reward=flat(0.55))


@case()
def somewhat_shorter_and_surer(rng):
    return run(rng, decay(0.6, 0.36), length=curve(rng, decay(400.0, 290.0), 0.04))


@case()
def one_task_stands_with_entropy_left(rng):
    made = run(rng, decay(0.5, 0.36))
    more = {"reward/maths": curve(rng, line(0.3, 0.6), 0.05), "reward/words": curve(rng, flat(0.35), 0.05)}
    more |= {"entropy/maths": curve(rng, decay(0.5, 0.4), 0.05), "entropy/words": curve(rng, decay(0.5, 0.3), 0.05)}
    return replace(made, series={**made.series, **more})


@case()
def mismatch_that_grows_a_little(rng):
    return run(rng, decay(0.5, 0.36), kl_rollout=curve(rng, decay(0.0008, 0.0028), 0.1))


@case()
def controller_that_settles_slowly(rng):
    swing = lambda t: math.exp(-3.0 * t) * math.sin(2 * math.pi * 9 * t)  # noqa: E731
    made = run(rng, lambda t: 0.5 * (1 + 1.2 * swing(t)), n=200, noise=0.02)
    value = curve(rng, lambda t: 0.3 * (1 + 0.9 * swing(t + 0.02)), 0.01, 200)
    return replace(made, series={**made.series, "controller/surrogate.high.value": value})


@case()
def live_diagnostics(rng):
    lost = {"lost_gradient_high": shares(rng, 0.06), "lost_gradient_low": shares(rng, 0.04)}
    none = {f"clip_numerical_{side}": curve(rng, flat(0.0)) for side in ("low", "high")}
    return run(rng, decay(0.5, 0.36), **lost, **none)


@case()
def healthy_tokens(rng):
    return replace(run(rng, decay(1.9, 1.5)), tokens=tokens(rng))


@case()
def estimate_that_is_called_one(rng):
    made = run(rng, decay(0.5, 0.36))
    same = {**made.series, "surprisal": made.series["entropy"]}
    return with_facts(replace(made, series=same), entropy_kind="estimate")


# -- collapse ---------------------------------------------------------------------------------------


@case("collapse")
def collapse_with_a_stalled_reward(rng):
    return run(rng, decay(0.5, 0.02), reward=STALLED)


@case("collapse")
def linear_collapse(rng):
    return run(rng, lambda t: max(0.6 * (1 - 1.1 * t), 0.01), reward=STALLED)


@case("collapse")
def early_collapse_then_flat(rng):
    return run(rng, settle(0.6, 0.02, 15.0), reward=flat(0.4))


@case("collapse")
def collapse_before_the_reward_stalls(rng):
    return run(rng, lambda t: 0.5 * (1 - 0.8 * t**1.5), reward=line(0.3, 0.62))


@case("collapse")
def slow_collapse(rng):
    return run(rng, decay(0.5, 0.22), reward=STALLED, n=300)


@case("collapse")
def collapse_without_a_reward(rng):
    made = run(rng, decay(0.7, 0.05))
    return Run("bare", "", {"entropy": made.series["entropy"]})


@case("collapse")
def noisy_collapse(rng):
    return run(rng, decay(0.5, 0.015), reward=STALLED, noise=0.25)


@case("collapse")
def collapse_with_its_tokens(rng):
    def likely_good(columns, generator):
        good = (columns["logp"] + columns["entropy"] > 0) & (columns["advantage"] > 0)
        return columns | {"weight": torch.where(good, 4 * columns["weight"], columns["weight"])}

    return replace(run(rng, decay(0.5, 0.03), reward=STALLED), tokens=tokens(rng, change=likely_good))


@case("collapse")
def completions_become_copies(rng):
    made = run(rng, flat(0.5), distinct=curve(rng, settle(0.95, 0.2, 4.0), 0.05))
    return Run("dump", "verl", {name: made.series[name] for name in ("reward", "distinct", "length")})


# -- explosion --------------------------------------------------------------------------------------


@case("explosion")
def explosion_with_falling_reward(rng):
    return run(rng, lambda t: 0.3 * math.exp(2.0 * t**1.5), reward=lambda t: 0.3 + 0.8 * t * (1 - t))


@case("explosion")
def explosion_without_gain(rng):
    return run(rng, line(0.4, 1.8), reward=flat(0.45))


@case("explosion")
def one_update_breaks_the_policy(rng):
    return run(rng, lambda t: 0.4 if t < 0.6 else 1.3, reward=lambda t: 0.3 + 0.3 * t if t < 0.6 else 0.12)


@case("explosion")
def explosion_to_uniform(rng):
    return run(rng, decay(0.5, 9.0), reward=lambda t: 0.5 * (1 - t) + 0.01)


@case("entropy_bonus")
def bonus_runs_away(rng):
    made = run(rng, lambda t: 0.4 * math.exp(2.5 * t**2), reward=lambda t: 0.5 - 0.35 * t**2)
    return with_facts(made, entropy_coef=0.001)


@case("entropy_bonus")
def logged_bonus_runs_away(rng):
    return run(rng, line(0.5, 1.2), reward=flat(0.4), entropy_coef=curve(rng, flat(0.01)))


# -- oscillation ------------------------------------------------------------------------------------


@case("oscillation")
def oscillation_without_a_controller(rng):
    phase = rng.random()
    return run(rng, lambda t: 0.5 * (1 + 0.4 * math.sin(2 * math.pi * (7 * t + phase))))


@case("oscillation")
def controller_that_hunts(rng):
    made = run(rng, lambda t: 0.5 * (1 + 0.3 * math.sin(2 * math.pi * 9 * t)), n=200)
    value = curve(rng, lambda t: 0.3 * (1 + 0.9 * math.cos(2 * math.pi * 9 * t)), 0.01, 200)
    target = curve(rng, flat(0.5), 0.0, 200)
    more = {"controller/surrogate.high.value": value, "controller/surrogate.high.target": target}
    return replace(made, series={**made.series, **more})


# -- controllers at their bounds, rewards that are gone, stages --------------------------------------


def controlled(rng, made: Run, value: Shape, target: float, n: int = 200) -> Run:
    """The run with a controller whose number is clipped to [.05, 1]."""
    inside = lambda t: min(max(value(t), 0.05), 1.0)  # noqa: E731
    more = {
        "controller/surrogate.high.value": curve(rng, inside, 0.0, n),
        "controller/surrogate.high.target": curve(rng, flat(target), 0.0, n),
    }
    return replace(made, series={**made.series, **more})


@case("pinned_controller")
def controller_at_its_upper_bound(rng):
    return controlled(rng, run(rng, settle(0.5, 0.3, 8.0), n=200), lambda t: 0.28 + 3.0 * t, 0.5)


@case()
def controller_at_its_bound_with_its_target_met(rng):
    return controlled(rng, run(rng, settle(0.6, 0.5, 8.0), n=200), lambda t: 0.28 + 3.0 * t, 0.5)


@case()
def controller_that_still_climbs(rng):
    return controlled(rng, run(rng, settle(0.5, 0.3, 8.0), n=200), lambda t: 0.28 + 0.7 * t, 0.5)


@case()
def controller_that_has_only_just_come_to_its_bound(rng):
    return controlled(rng, run(rng, settle(0.5, 0.3, 8.0), n=200), lambda t: 0.28 + 0.95 * t, 0.5)


@case()
def controller_with_nothing_to_do_above_its_target(rng):
    return controlled(rng, run(rng, decay(0.6, 0.45), n=200), lambda t: 0.5 - 3.0 * t, 0.2)


@case()
def controller_that_rests_in_its_dead_band(rng):
    return controlled(rng, run(rng, settle(0.5, 0.44, 8.0), n=200), lambda t: min(0.28 + 3.0 * t, 0.6), 0.5)


@case("lost_reward")
def reward_that_is_lost(rng):
    return run(rng, flat(0.4), reward=lambda t: 0.3 + 0.3 * t if t < 0.7 else 0.01)


@case("lost_reward")
def reward_that_fades_to_nothing(rng):
    return run(rng, flat(0.4), reward=lambda t: 0.5 * math.exp(-4 * max(0.0, t - 0.2)) if t < 0.8 else 0.004)


@case()
def sparse_reward(rng):
    made = run(rng, flat(0.4))
    hits = tuple(0.0625 if rng.random() < 0.3 else 0.0 for _ in range(120))
    return replace(made, series={**made.series, "reward": Series(made.series["reward"].steps, hits)})


@case()
def reward_with_zeros_in_between(rng):
    made = run(rng, flat(0.4))
    held = [0.0 if rng.random() < 0.1 else x for x in made.series["reward"].values]
    return replace(made, series={**made.series, "reward": Series(made.series["reward"].steps, tuple(held))})


@case()
def a_second_stage_whose_task_is_new(rng):
    made = run(rng, lambda t: 0.45 if t < 0.6 else 0.75, reward=lambda t: 0.5 if t < 0.6 else 0.47)
    return replace(made, series={**made.series, "stage": curve(rng, lambda t: 1.0 if t < 0.6 else 2.0)})


@case()
def a_second_stage_that_begins_at_nothing(rng):
    made = run(rng, flat(0.4), reward=lambda t: 0.55 if t < 0.6 else 0.004)
    return replace(made, series={**made.series, "stage": curve(rng, lambda t: 1.0 if t < 0.6 else 2.0)})


# -- impossible, and not what it is called ----------------------------------------------------------


def spoilt(made: Run, value: float, count: int, rng) -> Run:
    held = list(made.series["entropy"].values)
    for i in rng.sample(range(len(held)), count):
        held[i] = value
    return replace(made, series={**made.series, "entropy": Series(made.series["entropy"].steps, tuple(held))})


@case("impossible")
def nan_entropy(rng):
    return spoilt(run(rng, flat(0.4)), math.nan, 2, rng)


@case("impossible")
def negative_entropy(rng):
    return spoilt(run(rng, flat(0.4)), -0.05, 3, rng)


@case("impossible")
def entropy_above_log_v(rng):
    return with_facts(run(rng, flat(5.5), noise=0.02), vocabulary=100)


@case("impossible")
def negative_entropy_of_single_tokens(rng):
    def padded(columns, generator):
        entropy = columns["entropy"].clone()
        entropy[::50] = -0.3
        return columns | {"entropy": entropy}

    return replace(run(rng, flat(1.7)), tokens=tokens(rng, change=padded))


@case("impossible")
def probability_above_one(rng):
    def wrong(columns, generator):
        logp = columns["logp"].clone()
        logp[:5] = 0.4
        return columns | {"logp": logp}

    return replace(run(rng, flat(1.7)), tokens=tokens(rng, change=wrong))


@case("definition_change")
def definition_that_changes(rng):
    at = rng.uniform(0.3, 0.7)
    return run(rng, lambda t: 0.9 if t < at else 0.35)


@case("definition_change")
def temperature_that_changes(rng):
    return run(rng, lambda t: 0.4 - 0.05 * t if t < 0.5 else 0.75 - 0.05 * t)


@case("estimate")
def estimate_in_the_curves(rng):
    made = run(rng, decay(0.5, 0.36))
    rounded = tuple(round(v, 4) for v in made.series["entropy"].values)
    return replace(made, series={**made.series, "surprisal": Series(made.series["entropy"].steps, rounded)})


@case("estimate")
def estimate_in_the_tokens(rng):
    return replace(
        run(rng, flat(1.7)), tokens=tokens(rng, change=lambda columns, _: columns | {"entropy": -columns["logp"]})
    )


# -- rules without effect, clipping, updates --------------------------------------------------------


@case("inert")
def inert_rule(rng):
    still = {name: curve(rng, flat(0.0), 0.0) for name in ("clip_low", "clip_high", "kl_old")}
    made = run(rng, decay(0.5, 0.37), ratio=curve(rng, flat(1.0), 0.0), **still)
    return with_facts(made, updates_per_rollout=1, inert=("surrogate: GradientPreservingClip does nothing",))


@case("inert", "collapse")
def inert_while_entropy_collapses(rng):
    still = {name: curve(rng, flat(0.0), 0.0) for name in ("clip_low", "clip_high", "kl_old")}
    made = run(rng, decay(0.5, 0.02), reward=STALLED, ratio=curve(rng, flat(1.0), 0.0), **still)
    return with_facts(made, updates_per_rollout=1)


@case("starved_quadrant")
def upper_bound_alone_clips(rng):
    return run(rng, decay(0.6, 0.36), clip_high=shares(rng, 0.06), clip_low=shares(rng, 0.004))


@case("starved_quadrant")
def rare_good_tokens_get_no_gradient(rng):
    def silence(columns, generator):
        rare_good = (columns["logp"] + columns["entropy"] <= 0) & (columns["advantage"] > 0)
        off = rare_good & (torch.rand(len(rare_good), generator=generator) < 0.5)
        return columns | {"weight": torch.where(off, 0, columns["weight"])}

    return replace(run(rng, decay(1.9, 1.4)), tokens=tokens(rng, change=silence))


@case("starved_quadrant")
def gradient_is_lost_beyond_the_upper_bound(rng):
    return run(rng, decay(0.6, 0.4), lost_gradient_high=shares(rng, 0.45), lost_gradient_low=shares(rng, 0.02))


@case("many_updates")
def sixteen_updates_far_away(rng):
    made = run(rng, decay(0.5, 0.36), kl_old=shares(rng, 0.12), clip_low=shares(rng, 0.05), clip_high=shares(rng, 0.07))
    return with_facts(made, updates_per_rollout=16)


@case("many_updates")
def unknown_updates_very_far_away(rng):
    return with_facts(run(rng, decay(0.5, 0.36), kl_old=shares(rng, 0.25)), updates_per_rollout=None)


@case("many_updates")
def sixteen_updates_while_the_reward_falls(rng):
    return with_facts(run(rng, decay(0.5, 0.45), reward=line(0.4, 0.2)), updates_per_rollout=16)


@case("many_updates", "explosion")
def late_surge_with_sixteen_updates(rng):
    made = run(rng, lambda t: 0.4 + 1.6 * max(0.0, t - 0.6) ** 1.2 / 0.4**1.2, reward=lambda t: 0.55 - 0.3 * t**3)
    return with_facts(made, updates_per_rollout=16)


# -- tasks, lengths, rewards ------------------------------------------------------------------------


@case("starved_task")
def one_task_loses_reward(rng):
    made = run(rng, decay(0.5, 0.36))
    more = {"reward/maths": curve(rng, line(0.3, 0.6), 0.06), "reward/words": curve(rng, line(0.6, 0.25), 0.06)}
    return replace(made, series={**made.series, **more})


@case("starved_task")
def one_task_spends_its_entropy(rng):
    made = run(rng, decay(0.5, 0.33))
    more = {"reward/maths": curve(rng, line(0.3, 0.6), 0.05), "reward/words": curve(rng, flat(0.35), 0.03)}
    more |= {"entropy/maths": curve(rng, decay(0.5, 0.4), 0.05), "entropy/words": curve(rng, decay(0.5, 0.08), 0.05)}
    return replace(made, series={**made.series, **more})


@case("length_collapse")
def shorter_and_surer(rng):
    return run(rng, decay(0.6, 0.33), length=curve(rng, decay(700.0, 150.0), 0.05))


@case("length_collapse", "collapse")
def shorter_until_nothing_is_left(rng):
    return run(rng, decay(0.6, 0.03), reward=STALLED, length=curve(rng, decay(700.0, 30.0), 0.05))


@case("truncation")
def ever_more_truncation(rng):
    return run(rng, flat(0.5), reward=line(0.6, 0.4), truncated=curve(rng, line(0.05, 0.45), 0.1))


@case("truncation")
def most_are_cut(rng):
    return run(rng, flat(0.5), truncated=shares(rng, 0.65, 0.05))


@case("equal_rewards")
def rewards_all_equal(rng):
    return run(rng, flat(0.5), reward=flat(0.05), zero_std=shares(rng, 0.92, 0.02))


@case("equal_rewards")
def reward_that_never_changes(rng):
    return run(rng, flat(0.5), reward=flat(0.0), zero_std=None, reward_std=None)


# -- sampler and trainer, number formats ------------------------------------------------------------


@case("mismatch")
def sampler_disagrees(rng):
    return run(rng, decay(0.5, 0.36), kl_rollout=shares(rng, 0.035))


@case("mismatch")
def sampler_drifts_away(rng):
    return run(rng, decay(0.5, 0.36), kl_rollout=curve(rng, decay(0.0006, 0.008), 0.1))


@case("mismatch")
def sampler_disagrees_in_probability(rng):
    return run(rng, decay(0.5, 0.36), kl_rollout=None, mismatch_p=shares(rng, 0.025))


@case("mismatch")
def sampler_disagrees_in_tokens(rng):
    def shifted(columns, generator):
        noise = 0.3 * torch.randn(len(columns["logp"]), generator=generator)
        return columns | {"rollout_logp": columns["old_logp"] + noise}

    return replace(run(rng, flat(1.7), kl_rollout=None), tokens=tokens(rng, change=shifted))


@case("precision")
def log_probabilities_in_bf16(rng):
    def rounded(columns, generator):
        return columns | {name: columns[name].bfloat16().float() for name in ("logp", "old_logp")}

    return replace(run(rng, flat(1.7)), tokens=tokens(rng, change=rounded))


@case("precision")
def clipping_at_learning_rate_zero(rng):
    rate = Series(tuple(map(float, range(1, 121))), (0.0,) * 20 + (1e-6,) * 100)
    return run(rng, flat(0.5), learning_rate=rate, clip_high=shares(rng, 0.046), clip_low=shares(rng, 0.03))


@case("precision")
def clipping_where_every_ratio_should_be_one(rng):
    sides = {f"clip_numerical_{side}": shares(rng, level) for side, level in (("low", 0.01), ("high", 0.03))}
    return run(rng, flat(0.5), **sides)


@case("precision")
def clipping_on_policy(rng):
    return with_facts(run(rng, flat(0.5)), updates_per_rollout=1)
