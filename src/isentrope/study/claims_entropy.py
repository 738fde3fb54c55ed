"""Claims on which objectives keep entropy, how fast it falls, and how stably."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from isentrope import seeds
from isentrope.seeds import Estimate
from isentrope.study.runs import LEVEL, Result, Results
from isentrope.study.verdict import (
    ABOVE,
    BELOW,
    COMPARABLE,
    COURSE,
    COURSE_HEADS,
    FAILS,
    HOLDS,
    OPEN,
    WORLDS,
    Claim,
    Study,
    course,
    gap,
    judge,
    quotient,
    rows_of,
    text,
)


def grpo_fastest(study: Study) -> Claim:
    gaps = [gap(study[w], "grpo", name, "entropy_area") for w, _ in WORLDS for name in ("dapo", "ce_gppo")]
    said = [f"{name} {text(x)}" for name, x in zip(("dapo", "ce_gppo") * 2, gaps, strict=True)]
    return Claim(
        "GRPO loses entropy fastest of GRPO, DAPO and CE-GPPO",
        "CE-GPPO, arXiv:2509.20712",
        "The three presets on both worlds.",
        COURSE_HEADS,
        course(study, ("grpo", "dapo", "ce_gppo")),
        judge(*map(ABOVE, gaps)),
        f"Mean entropy minus GRPO's: on bandits {said[0]}, {said[1]}; on chains {said[2]}, {said[3]}.",
        "entropy",
    )


AT_EQUAL_REWARD = ("grpo", "dapo", "ce_gppo", "gppo", "cispo", "gepo", "repo_r", "adapo", "clip_cov", "neutral drift")


def more_at_equal_reward(study: Study) -> Claim:
    gaps = [gap(study[w], "grpo", name, "entropy_at_reward") for w, _ in WORLDS for name in ("dapo", "ce_gppo")]
    said = [text(x) for x in gaps]
    return Claim(
        "At equal reward DAPO and CE-GPPO have more entropy left than GRPO",
        "our reading of the first claim",
        f"Entropy when the expected reward first reaches {LEVEL:g}, which takes out how fast each learns.",
        ("", *(label for _, label in WORLDS)),
        tuple((n, *(text(study[w][n].mean("entropy_at_reward")) for w, _ in WORLDS)) for n in AT_EQUAL_REWARD),
        judge(*map(ABOVE, gaps)),
        f"Minus GRPO's: on bandits dapo {said[0]}, ce_gppo {said[1]}; on chains dapo {said[2]}, ce_gppo {said[3]}.",
    )


def dapo_keeps_more(study: Study) -> Claim:
    gaps = [gap(study[w], "grpo", "dapo", "entropy_area") for w, _ in WORLDS]
    return Claim(
        "DAPO keeps more entropy than GRPO",
        "DAPO, arXiv:2503.14476",
        "The two presets on both worlds.",
        COURSE_HEADS,
        course(study, ("grpo", "dapo")),
        judge(*map(ABOVE, gaps)),
        f"Mean entropy, DAPO minus GRPO: bandits {text(gaps[0])}, chains {text(gaps[1])}.",
    )


def dapo_overshoots(study: Study) -> Claim:
    late = [_late(study[w]["dapo"]) for w, _ in WORLDS]
    return Claim(
        "DAPO may overshoot late",
        "CE-GPPO, arXiv:2509.20712",
        "Entropy over the last tenth of a run minus that just after its half.",
        ("", "entropy at the end minus in the middle"),
        tuple((label, text(x)) for (_, label), x in zip(WORLDS, late, strict=True)),
        judge(*map(ABOVE, late)),
        "A rise late in the run would be a positive number.",
    )


def _late(result: Result) -> Estimate:
    return seeds.difference(result.figures["entropy_middle"], result.figures["entropy_end"])


def ce_gppo_between(study: Study) -> Claim:
    tests = []
    for world, _ in WORLDS:
        tests += [
            ABOVE(gap(study[world], "grpo", "ce_gppo", "entropy_area")),
            BELOW(gap(study[world], "dapo", "ce_gppo", "entropy_area")),
            BELOW(_late(study[world]["ce_gppo"])),
        ]
    return Claim(
        "CE-GPPO declines steadily, between GRPO and DAPO",
        "CE-GPPO, arXiv:2509.20712",
        "Mean entropy against both, and the change in the second half of the run.",
        ("", "minus GRPO", "minus DAPO", "end minus middle"),
        tuple((label, *(text(t[0]) for t in tests[3 * i : 3 * i + 3])) for i, (_, label) in enumerate(WORLDS)),
        judge(*tests),
        "It would hold with the first column above 0 and the others below.",
    )


def _slope(results: Results, names: Sequence[str], xs: Sequence[float], figure: str) -> Estimate:
    """Slope of a figure on a number, by least squares in each seed."""
    centre = fmean(xs)
    spread = math.fsum((x - centre) ** 2 for x in xs)
    return seeds.estimate(
        [
            math.fsum((x - centre) * results[name].figures[figure][s] for x, name in zip(xs, names, strict=True))
            / spread
            for s in range(len(results[names[0]].figures[figure]))
        ]
    )


def _knob(study: Study, knob: str, symbol: str, sign: int) -> Claim:
    results = study["keep"]
    names = [name for name in results if name.startswith(knob)]
    xs = [float(name.split()[1]) for name in names]
    slope = _slope(results, names, xs, "entropy_area")
    means = [results[name].mean("entropy_area").mean for name in names]
    is_monotone = all((b - a) * sign > 0 for a, b in pairwise(means))
    verdict = judge((ABOVE if sign > 0 else BELOW)(slope))
    word = "raises" if sign > 0 else "lowers"
    return Claim(
        f"CE-GPPO: more {symbol} ({knob}) {word} entropy, monotonically",
        "CE-GPPO, arXiv:2509.20712",
        f"{knob} at five values, the other factor as published, on bandits.",
        COURSE_HEADS,
        tuple(rows_of(results, names, COURSE)),
        OPEN if verdict == HOLDS and not is_monotone else verdict,
        f"Slope of the mean entropy {text(slope)} nats a unit; the means are {'' if is_monotone else 'not '}in order.",
        knob.replace("_", "-"),
    )


def keep_low_lowers(study: Study) -> Claim:
    return _knob(study, "keep_low", "beta1", -1)


def keep_high_raises(study: Study) -> Claim:
    return _knob(study, "keep_high", "beta2", 1)


DISTANCES = ("gradient_norm", "kl_start", "kl_rollout")


def _stability(study: Study, name: str, title: str, is_comparable: bool) -> Claim:
    results = study["stability"]
    ratios = [quotient(results, "PPO's clip", name, figure) for figure in ("gradient_norm", "kl_start")]
    inside = judge(*((x, *COMPARABLE) for x in ratios))
    outside = {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}
    return Claim(
        title,
        "CE-GPPO, arXiv:2509.20712",
        f"The surrogate alone is changed, on bandits. Comparable: a ratio between {COMPARABLE[0]:g} and"
        f" {COMPARABLE[1]:g}.",
        ("", "gradient norm", "KL to the start", "KL to the rollout's policy"),
        tuple(rows_of(results, list(results), DISTANCES)),
        inside if is_comparable else outside[inside],
        f"{name} over PPO's clip: gradient norm {text(ratios[0])}, KL to the start {text(ratios[1])}.",
    )


def ce_gppo_stable(study: Study) -> Claim:
    title = "CE-GPPO's KL and gradient norm stay comparable to those of PPO's clip"
    return _stability(study, "ce_gppo", title, is_comparable=True)


def cispo_unstable(study: Study) -> Claim:
    title = "CISPO's with tight bounds do not"
    return _stability(study, "cispo, bounds .05 and .05", title, is_comparable=False)


def covariance_keeps(study: Study) -> Claim:
    results = study["covariance"]
    clip = gap(results, "PPO's clip", "clip_cov, 2e-2", "entropy_area")
    kl = gap(results, "no clip", "kl_cov, 2e-2", "entropy_area")
    few = (
        gap(results, "PPO's clip", "clip_cov, 2e-4", "entropy_area"),
        gap(results, "no clip", "kl_cov, 2e-3", "entropy_area"),
    )
    return Claim(
        "Clip-Cov and KL-Cov keep entropy",
        "The Entropy Mechanism, arXiv:2505.22617",
        "Each against the surrogate that it changes, on bandits. A batch has 512 tokens here: at the papers' shares"
        " they reach one.",
        COURSE_HEADS,
        tuple(rows_of(results, list(results), COURSE)),
        judge(ABOVE(clip), ABOVE(kl)),
        f"Mean entropy above that without, at 2 % of the tokens: Clip-Cov {text(clip)}, KL-Cov {text(kl)}; at the"
        f" papers' shares {text(few[0])} and {text(few[1])}.",
    )


def on_policy_falls(study: Study) -> Claim:
    name = "rloo, on-policy"
    rest = [
        seeds.estimate(
            [
                b / a
                for a, b in zip(
                    study[w][name].figures["entropy_start"], study[w][name].figures["entropy_end"], strict=True
                )
            ]
        )
        for w, _ in WORLDS
    ]
    return Claim(
        "Entropy falls on-policy too, without ratios or clips (RLOO as control)",
        "RLOO, arXiv:2402.14740",
        "One update on each rollout batch, with as many rows an update as the others (and so 16 times their"
        " rollouts, twice their completions).",
        COURSE_HEADS,
        course(study, ("grpo", name)),
        judge(*((x, -math.inf, 0.5) for x in rest)),
        f"Entropy left, as a share of the start: bandits {text(rest[0])}, chains {text(rest[1])}; below half counts as"
        " fallen.",
    )
