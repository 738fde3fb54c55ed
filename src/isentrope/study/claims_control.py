"""Claims on theory, controllers, coefficients and number formats."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isentrope import seeds
from isentrope.seeds import Estimate
from isentrope.study.experiments import COEFFICIENTS, GAINS, TARGET
from isentrope.study.runs import Results
from isentrope.study.verdict import (
    ABOVE,
    BELOW,
    COMPARABLE,
    COURSE,
    COURSE_HEADS,
    Claim,
    Study,
    Test,
    gap,
    judge,
    rows_of,
    text,
)


def neutral_step(study: Study) -> Claim:
    results = study["neutral"]
    shares = ("0.15", "0.45", "0.85")

    def left(rule: str, kind: str) -> Estimate:
        """Sizes of the changes with a rule over those without, summed over regimes, seed by seed."""
        number = len(results[f"{rule}, entropy 0.15"].figures[kind])
        total = {
            r: [math.fsum(abs(results[f"{r}, entropy {e}"].figures[kind][s]) for e in shares) for s in range(number)]
            for r in (rule, "no shaping")
        }
        return seeds.estimate([a / b for a, b in zip(total[rule], total["no shaping"], strict=True)])

    rules = ("gain 1, normalised", "gain 1, as published")
    kept = left(rules[0], "predicted")
    return Claim(
        "REPO-D at gain 1 cancels the first-order change of entropy",
        "REPO, arXiv:2603.11682",
        "One plain gradient step on 8,192 samples of one problem, in three regimes of entropy: size of the change with"
        " the rule over that without.",
        ("", "first order", "measured"),
        tuple((rule, text(left(rule, "predicted")), text(left(rule, "measured"))) for rule in rules),
        judge((kept, -math.inf, 0.1)),
        f"Normalised by E[p L²], gain 1 leaves {text(kept)} of it (below a tenth counts as cancelled); at the published"
        f" scale, where gain 1 is another amount, {text(left(rules[1], 'predicted'))} is left.",
    )


STEERED = ("dapo", "repo_d", "repo_r", "adapo")  # dapo has no controller


def _held(study: Study, name: str) -> Claim:
    lower, initial = study["target"], study["objectives"]

    def off(condition: str) -> Estimate:
        return seeds.estimate([abs(x - TARGET) for x in lower[condition].figures["entropy_end"]])

    def drift(condition: str) -> Estimate:
        found = initial[condition].figures
        pairs = zip(found["entropy_start"], found["entropy_end"], strict=True)
        return seeds.estimate([abs(b - a) / a for a, b in pairs])

    rows = [(f"target at the start: {c}", text(initial[c].mean("entropy_end")), text(drift(c))) for c in STEERED]
    rows += [(f"target {TARGET:g}: {c}", text(lower[c].mean("entropy_end")), text(off(c))) for c in lower]
    return Claim(
        f"{name} holds a target of entropy",
        "REPO, arXiv:2603.11682",
        f"The presets, told to hold the entropy of the start, and the same told to bring it to {TARGET:g} nat, below"
        " the start's; distance from the target at the end as a share of it. Held: within a tenth, in both, after 40"
        " observations, one a rollout batch.",
        ("", "entropy at the end, nats", "off the target"),
        tuple(rows),
        judge((drift(name), -math.inf, 0.1), (off(name), -math.inf, 0.1 * TARGET)),
        f"At the end it is {text(drift(name))} off the start's entropy, and {text(off(name))} off {TARGET:g} nat;"
        f" without a controller {text(drift(STEERED[0]))} and {text(off(next(iter(lower))))}.",
        "target",
    )


def repo_r_holds(study: Study) -> Claim:
    return _held(study, "repo_r")


def adapo_holds(study: Study) -> Claim:
    return _held(study, "adapo")


def prediction_matches(study: Study) -> Claim:
    results = study["prediction"]
    tests: list[Test] = []
    for one in results.values():
        tests += [(one.mean("correlation"), 0.9, math.inf), (one.mean("sign"), 0.9, math.inf)]
        tests.append((one.mean("slope"), *COMPARABLE))
    figures = ("correlation", "slope", "sign")
    return Claim(
        "Sign and size of the predicted entropy change match the measured one",
        "theory of softmax policies; arXiv:2505.22617, arXiv:2603.11682",
        "Every update of 160: the first-order change along the step that was made, against what happened on its"
        " problems. It matches with correlation and share of right signs above .9 and a slope between .8 and 1.25.",
        ("", "correlation", "slope", "share of right signs"),
        tuple(rows_of(results, list(results), figures)),
        judge(*tests),
        "The prediction knows the step, also where Adam made another one of the gradient.",
    )


def prediction_from_samples(study: Study) -> Claim:
    results = study["prediction"]
    figures = ("sampled_correlation", "sampled_sign")
    plain = [name for name in results if "sgd" in name]
    return Claim(
        "Weights and log-probabilities of the sampled tokens alone predict it",
        "covariance of log-probability and advantage, arXiv:2505.22617",
        "The same updates: the sum over sampled tokens of what each would do to its own state, under plain gradient"
        " steps (Adam beside it).",
        ("", "correlation", "share of right signs"),
        tuple(rows_of(results, list(results), figures)),
        judge(*((results[name].mean("sampled_sign"), 0.5, math.inf) for name in plain)),
        "It holds where the sign is right more often than by chance under plain gradient steps.",
    )


def precision_lowers(study: Study) -> Claim:
    results = study["precision"]
    clip = gap(results, "clip, fp32", "clip, bf16", "entropy_area")
    half = gap(results, "clip, fp32", "clip, fp16", "entropy_area")
    free = gap(results, "no clip, fp32", "no clip, bf16", "entropy_area")
    return Claim(
        "bf16 ratios lower entropy against fp32 and fp16, by the clip's asymmetry",
        "REPO, arXiv:2603.11682",
        "Log-probabilities rounded to the format in both policies, 256 actions; with PPO's clip and without.",
        ("", "entropy at the end", "mean over the run", "clipped low", "clipped high"),
        tuple(rows_of(results, list(results), ("entropy_end", "entropy_area", "clip_low", "clip_high"))),
        judge(BELOW(clip), BELOW(seeds.difference(_gaps(results, "no clip"), _gaps(results, "clip")))),
        f"bf16 minus fp32: {text(clip)} nats with the clip, {text(free)} without; fp16 minus fp32 {text(half)}.",
    )


def _gaps(results: Results, rule: str) -> list[float]:
    """bf16 minus fp32, seed by seed."""
    pairs = zip(*(results[f"{rule}, {p}"].figures["entropy_area"] for p in ("fp32", "bf16")), strict=True)
    return [b - a for a, b in pairs]


def bonus_is_sensitive(study: Study) -> Claim:
    results = study["bonus"]

    def reach(name: str, values: Sequence[float]) -> list[float]:
        """The largest change of the mean entropy by a tenfold number, seed by seed."""
        tenfold = [(a, b) for a in values for b in values if math.isclose(b, 10 * a)]
        found = [[results[f"{name} {x:g}"].figures["entropy_area"] for x in pair] for pair in tenfold]
        return [max(abs(high[s] - low[s]) for low, high in found) for s in range(len(found[0][0]))]

    fixed, moved = reach("coefficient", COEFFICIENTS), reach("PI, gain", GAINS)
    return Claim(
        "A fixed entropy bonus is sensitive to its coefficient",
        "Skywork-OR1, arXiv:2505.22312",
        "Coefficients over two decades and a half; beside it the same bonus moved by a controller towards"
        f" {TARGET:g} nat, its gain over a decade and a half. Sensitive: the largest change of the mean entropy by"
        " ten times the coefficient exceeds that by ten times the gain.",
        ("", *COURSE_HEADS[1:], "held-out pass@1"),
        tuple(rows_of(results, list(results), (*COURSE, "pass_at_1"))),
        judge(ABOVE(seeds.difference(moved, fixed))),
        f"Ten times the coefficient moves the mean entropy by up to {text(seeds.estimate(fixed))} nats, ten times the"
        f" gain by up to {text(seeds.estimate(moved))}.",
        "bonus",
    )
