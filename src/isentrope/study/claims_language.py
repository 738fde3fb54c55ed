"""The claims that runs of a language model can answer, judged by the same rule as those on tabular policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain

from isentrope import seeds
from isentrope.curves import correlation
from isentrope.seeds import Estimate
from isentrope.study.language import SIX
from isentrope.study.language_runs import LEVEL
from isentrope.study.runs import Results
from isentrope.study.verdict import (
    ABOVE,
    BELOW,
    COMPARABLE,
    Claim,
    Study,
    across,
    gap,
    judge,
    quotient,
    rows_of,
    text,
)

FULL, STAGES = "language", "language-stages"  # experiments
PRECISION, AUTOCAST = "language-precision", "language-autocast"
COURSE = ("entropy_start", "entropy_middle", "entropy_end", "entropy_mean")
COURSE_HEADS = ("", "entropy at the start", "in the middle", "at the end", "mean over the run")
THREE = ("grpo", "dapo", "ce_gppo")
CE_GPPO = "CE-GPPO, arXiv:2509.20712"
REPO = "REPO, arXiv:2603.11682"


def grpo_fastest(study: Study) -> Claim:
    results = study[FULL]
    gaps = {name: gap(results, "grpo", name, "entropy_mean") for name in ("dapo", "ce_gppo")}
    return Claim(
        "GRPO loses entropy fastest of GRPO, DAPO and CE-GPPO",
        CE_GPPO,
        "The presets as `compare` ran them; GRPO takes the mean of each sequence, the others that of all tokens.",
        COURSE_HEADS,
        tuple(rows_of(results, SIX, COURSE)),
        judge(*map(ABOVE, gaps.values())),
        f"Mean entropy minus GRPO's: {said(gaps)}.",
        "language-entropy",
    )


def more_at_equal_reward(study: Study) -> Claim:
    results = study[FULL]
    gaps = {name: gap(results, "grpo", name, "entropy_at_reward") for name in ("dapo", "ce_gppo")}
    return Claim(
        "At equal reward DAPO and CE-GPPO have more entropy left than GRPO",
        "our reading of the first claim",
        f"Entropy when the mean reward of five rollout batches first reaches {LEVEL:g}.",
        ("", "entropy there"),
        tuple(rows_of(results, SIX, ("entropy_at_reward",))),
        judge(*map(ABOVE, gaps.values())),
        f"Minus GRPO's: {said(gaps)}.",
    )


def dapo_keeps_more(study: Study) -> Claim:
    found = gap(study[FULL], "grpo", "dapo", "entropy_mean")
    return Claim(
        "DAPO keeps more entropy than GRPO",
        "DAPO, arXiv:2503.14476",
        "The two presets.",
        COURSE_HEADS,
        tuple(rows_of(study[FULL], ("grpo", "dapo"), COURSE)),
        judge(ABOVE(found)),
        f"Mean entropy, DAPO minus GRPO: {text(found)}.",
    )


def dapo_overshoots(study: Study) -> Claim:
    late = {name: _late(study[FULL], name) for name in SIX}
    return Claim(
        "DAPO may overshoot late",
        CE_GPPO,
        "Entropy over the last tenth of a run minus that in its middle.",
        ("", "entropy at the end minus in the middle"),
        tuple((name, text(x)) for name, x in late.items()),
        judge(ABOVE(late["dapo"])),
        "A rise late in the run would be a positive number.",
    )


def _late(results: Results, name: str) -> Estimate:
    return seeds.difference(results[name].figures["entropy_middle"], results[name].figures["entropy_end"])


def ce_gppo_between(study: Study) -> Claim:
    results = study[FULL]
    above, below = (gap(results, other, "ce_gppo", "entropy_mean") for other in ("grpo", "dapo"))
    late = _late(results, "ce_gppo")
    return Claim(
        "CE-GPPO declines steadily, between GRPO and DAPO",
        CE_GPPO,
        "Mean entropy against both, and the change in the second half of the run.",
        ("minus GRPO", "minus DAPO", "end minus middle"),
        ((text(above), text(below), text(late)),),
        judge(ABOVE(above), BELOW(below), BELOW(late)),
        "It would hold with the first column above 0 and the others below.",
    )


def ce_gppo_stable(study: Study) -> Claim:
    results = study[FULL]
    ratios = {f: quotient(results, "grpo", "ce_gppo", f) for f in ("gradient_norm", "kl_start", "kl_rollout")}
    return Claim(
        "CE-GPPO's KL and gradient norm stay comparable to those of PPO's clip",
        CE_GPPO,
        "PPO's clip is GRPO's. KL to the start is exact, at positions that the last policy visits on 100 held-out"
        " problems; KL to the rollout's policy is the k3 estimate of every update, which few tokens can make large."
        f" Comparable: a ratio between {COMPARABLE[0]:g} and {COMPARABLE[1]:g}.",
        ("", "gradient norm", "KL to the start", "KL to the rollout's policy"),
        tuple(rows_of(results, SIX, ("gradient_norm", "kl_start", "kl_rollout"))),
        judge(*((ratios[f], *COMPARABLE) for f in ("gradient_norm", "kl_start"))),
        f"CE-GPPO over GRPO: gradient norm {text(ratios['gradient_norm'])}, KL to the start"
        f" {text(ratios['kl_start'])}; KL to the rollout's policy, on which the verdict does not rest,"
        f" {text(ratios['kl_rollout'])}.",
    )


def _off(results: Results, name: str) -> Estimate:
    """How far the entropy of the end is off that of the start, as a share of it."""
    found = results[name].figures
    return seeds.estimate([abs(b - a) / a for a, b in zip(found["entropy_start"], found["entropy_end"], strict=True)])


def _held(study: Study, name: str, bounds: str) -> Claim:
    results = study[FULL]
    return Claim(
        f"{name} holds a target of entropy",
        REPO,
        "Both presets are told to hold the entropy of the first rollout batch; the other four have no target. Held:"
        " within a tenth of it over the last tenth of the run.",
        ("", "entropy at the start", "at the end", "off the start, share", "the controller's number at the end"),
        tuple(
            (
                one,
                *(text(results[one].mean(figure)) for figure in ("entropy_start", "entropy_end")),
                text(_off(results, one)),
                text(results[one].mean("controller_end")),
            )
            for one in SIX
        ),
        judge((_off(results, name), -math.inf, 0.1)),
        f"At the end it is {text(_off(results, name))} off; without a controller dapo is"
        f" {text(_off(results, 'dapo'))} off. Its number may lie in {bounds}.",
    )


def repo_r_holds(study: Study) -> Claim:
    return _held(study, "repo_r", "[.0001, .05]")


def adapo_holds(study: Study) -> Claim:
    return _held(study, "adapo", "[.05, 1]")


def prediction_goes_along(study: Study) -> Claim:
    results = study[FULL]
    number = len(results["grpo"].figures["change_correlation"])
    found = [[results[name].figures["change_correlation"][s] for name in SIX] for s in range(number)]
    mean = seeds.estimate([seeds.estimate(values).mean for values in found])
    return Claim(
        "Weights and log-probabilities of the sampled tokens alone predict it",
        "covariance of log-probability and advantage, arXiv:2505.22617",
        "Every 20 updates: what first order says of the updates so far on the rollout batch, under plain gradient"
        " steps, against the change since the rollout at the tokens of the update at hand. Its size cannot be compared,"
        " since Adam makes other steps of the gradients; and that both fall most of the time gives right signs by"
        " itself, so the verdict is on the correlation over the steps of a run.",
        ("", "correlation", "share of right signs"),
        tuple(rows_of(results, SIX, ("change_correlation", "change_sign"))),
        judge(ABOVE(mean)),
        f"Correlation, mean over the six objectives in each seed: {text(mean)}.",
    )


def entropy_and_accuracy(study: Study) -> Claim:
    results = study[FULL]
    one, k = (across(results, SIX, "entropy_area", f"after/pass@{n}") for n in (1, 8))
    pooled = {f"pass@{n}": over_runs(results, "entropy_area", f"after/pass@{n}") for n in (1, 8)}
    return Claim(
        "Cumulative entropy goes with final accuracy",
        REPO,
        "Correlation of cumulative entropy with held-out pass@1 and pass@8: over the six objectives in each seed, and"
        " over all runs at once, where seeds differ as well. Runs of a seed share their problems, and most of what"
        " varies lies between objectives: that an objective has both says little of what causes what.",
        ("", "with pass@1", "with pass@8"),
        (("over objectives, in each seed", text(one), text(k)), ("over all runs", *map(text, pooled.values()))),
        judge(ABOVE(one)),
        "The verdict is on pass@1 over objectives in each seed.",
        "language-accuracy",
    )


def over_runs(results: Results, x: str, y: str) -> Estimate:
    """Correlation over all runs of all conditions, with Fisher's interval: tanh(atanh r ± 1.96 / sqrt(n - 3)).

    The interval takes runs for independent. It needs four of them.
    """
    pairs = [list(chain.from_iterable(one.figures[figure] for one in results.values())) for figure in (x, y)]
    number, r = len(pairs[0]), correlation(*pairs)
    if number < 4 or not abs(r) < 1:
        return Estimate(r, math.nan, math.nan, number)
    half = 1.96 / math.sqrt(number - 3)
    return Estimate(r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half), number)


def certainty_costs_variety(study: Study) -> Claim:
    results = study[FULL]
    one, k = (across(results, SIX, "entropy_end", f"after/pass@{n}") for n in (1, 8))
    figures = ("entropy_end", "before/pass@1", "after/pass@1", "before/pass@8", "after/pass@8")
    return Claim(
        "Entropy kept is pass@k kept, whatever it does to pass@1",
        "throughout the papers",
        "Correlation over the six objectives of entropy at the end with held-out pass@1 and pass@8, in each seed.",
        ("", "entropy at the end", "pass@1 before", "pass@1 after", "pass@8 before", "pass@8 after"),
        tuple(rows_of(results, SIX, figures)),
        judge(ABOVE(k)),
        f"With pass@8 {text(k)}, with pass@1 {text(one)}; the verdict is on pass@8.",
        "language-frontier-8",
    )


FORMATS = ("entropy_end", "entropy_mean", "clip_low", "clip_high", "reward")
FORMAT_HEADS = ("", "entropy at the end", "mean over the run", "clipped low", "clipped high", "reward, last tenth")


def precision_lowers(study: Study) -> Claim:
    results, whole = study[PRECISION], study[AUTOCAST]
    narrow = "ratios in bfloat16"
    gaps = {
        f"{narrow} minus {name}": gap(results, name, narrow, "entropy_mean")
        for name in ("float32", "ratios in float16")
    }
    rows = rows_of(results, list(results), FORMATS)
    rows += rows_of(whole, list(whole), FORMATS, f"{len(whole['float32'].figures['reward'])} seeds: ")
    beside = gap(whole, "float32", "all in bfloat16", "entropy_mean")
    return Claim(
        "bf16 ratios lower entropy against fp32 and fp16, by the clip's asymmetry",
        REPO,
        "GRPO on the default recipe. *Ratios in* a format: log-probabilities and ratios are rounded to it on their way"
        " into the loss, as where a framework computes or returns them in it; the model computes in float32. *All in*"
        " bfloat16: the model's products, too (autocast), which is how such frameworks train. All in float16 was not"
        " run: a CPU emulates it, at four times the time. In this library guards refuse log-probabilities in either.",
        FORMAT_HEADS,
        tuple(rows),
        judge(*map(BELOW, gaps.values())),
        f"Mean entropy: {said(gaps)}; all in bfloat16 minus float32, on which the verdict does not rest,"
        f" {text(beside)}.",
        "language-precision",
    )


def collapsed_learns_worse(study: Study) -> Claim:
    results = study[STAGES]
    figures = ("stage2/entropy_left", "stage2/mean_reward", "stage2/reward_end", "stage3/mean_reward")
    found = across(results, list(results), *figures[:2])
    kept, learnt = (gap(results, "grpo", "bonus", figure) for figure in figures[:2])
    return Claim(
        "A collapsed policy learns the second task worse",
        REPO,
        "Recipe `sequence`: task A, then B, then A again, on one model; entropy left by the first stage, mean reward"
        " over the second. *bonus* is GRPO with an entropy bonus of .01.",
        ("", "entropy left by A", "mean reward of B", "reward of B at its end", "mean reward of A again"),
        tuple(rows_of(results, list(results), figures)),
        judge(ABOVE(found)),
        f"Correlation over {len(results)} objectives {text(found)}. With the bonus minus without: entropy left"
        f" {text(kept)}, mean reward of B {text(learnt)}.",
        "language-stages",
    )


def said(gaps: dict[str, Estimate]) -> str:
    """Named estimates in a row."""
    return ", ".join(f"{name} {text(x)}" for name, x in gaps.items())


CLAIMS: Sequence[tuple[str, Callable[[Study], Claim]]] = (
    (FULL, grpo_fastest),
    (FULL, more_at_equal_reward),
    (FULL, dapo_keeps_more),
    (FULL, dapo_overshoots),
    (FULL, ce_gppo_between),
    (FULL, ce_gppo_stable),
    (FULL, repo_r_holds),
    (FULL, adapo_holds),
    (FULL, prediction_goes_along),
    (FULL, entropy_and_accuracy),
    (FULL, certainty_costs_variety),
    (AUTOCAST, precision_lowers),
    (STAGES, collapsed_learns_worse),
)  # with the experiment that each one needs
