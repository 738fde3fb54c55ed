"""Verdicts on the language model follow the data, as those on tabular policies do; the page says what there is."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from isentrope.study import claims_language, language_page, page
from isentrope.study.claims import CLAIMS as TABULAR
from isentrope.study.claims_language import AUTOCAST, CLAIMS, FULL, PRECISION, STAGES
from isentrope.study.language import SEQUENCE, SIX
from isentrope.study.runs import Result
from isentrope.study.verdict import FAILS, HOLDS, Claim

DOCS = Path(__file__).parents[2] / "docs"
NOISE = (-0.01, 0.0, 0.01)
EVERY = (
    *("reward", "pass_at_1", "pass_at_k", "entropy_start", "entropy_middle", "entropy_end", "entropy_area"),
    *("kl_start", "kl_rollout", "gradient_norm", "seconds", "entropy_mean", "entropy_at_reward", "clip_low"),
    *("clip_high", "controller_end", "change_correlation", "change_sign", "before/pass@1", "before/pass@8"),
    *("after/pass@1", "after/pass@8", "before/entropy"),
)
CURVE = {"steps": [8.0, 16.0], "mean": [1.0, 0.5], "low": [0.9, 0.4], "high": [1.1, 0.6]}
CURVES = {"entropy/current_exact": CURVE, language_page.LOWER: CURVE}
Study = Mapping[str, Mapping[str, Result]]


def result(figures: Mapping[str, float]) -> Result:
    """The same figures in three seeds, but for a little noise that differs between figures."""
    every = dict.fromkeys(EVERY, 1.0) | dict(figures)
    return Result(
        {name: [x + NOISE[(s + i) % 3] for s in range(3)] for i, (name, x) in enumerate(every.items())}, CURVES
    )


def full(figure: str = "entropy_mean", **values: float) -> Study:
    return {FULL: {name: result({figure: values.get(name, 1.0)}) for name in SIX}}


def rising(x: str, y: str, sign: float) -> Study:
    """Six objectives whose figures x and y rise together, or against each other."""
    return {FULL: {name: result({x: float(i), y: sign * i}) for i, name in enumerate(SIX)}}


def formats(narrow: float) -> Study:
    """Entropies of ratios in bfloat16, where all others are 1."""
    names = ("float32", "ratios in float16", "ratios in bfloat16")
    found = {name: result({"entropy_mean": narrow if name == "ratios in bfloat16" else 1.0}) for name in names}
    return {PRECISION: found, AUTOCAST: {name: result({}) for name in ("float32", "all in bfloat16")}}


def stages(sign: float) -> Study:
    """Objectives whose second stage goes the better, or the worse, the more the first left."""

    def one(x: float) -> Result:
        left = {"stage2/entropy_left": x, "stage2/mean_reward": sign * x}
        return result(left | {"stage2/reward_end": 1.0, "stage3/mean_reward": 1.0})

    return {STAGES: {name: one(float(i)) for i, name in enumerate(SEQUENCE)}}


@pytest.mark.parametrize(
    ("claim", "agrees", "contradicts"),
    [
        (claims_language.grpo_fastest, full(dapo=2, ce_gppo=2), full(dapo=2, ce_gppo=0.5)),
        (
            claims_language.more_at_equal_reward,
            full("entropy_at_reward", dapo=2, ce_gppo=2),
            full("entropy_at_reward", dapo=0.5),
        ),
        (claims_language.dapo_keeps_more, full(dapo=2), full(dapo=0.5)),
        (claims_language.dapo_overshoots, full("entropy_end", dapo=2), full("entropy_end", dapo=0.5)),
        (claims_language.ce_gppo_stable, full("gradient_norm", ce_gppo=1.1), full("gradient_norm", ce_gppo=1.4)),
        (claims_language.repo_r_holds, full("entropy_end", repo_r=1.05), full("entropy_end", repo_r=0.8)),
        (claims_language.adapo_holds, full("entropy_end", adapo=0.95), full("entropy_end", adapo=1.3)),
        (
            claims_language.prediction_goes_along,
            full("change_correlation"),
            full("change_correlation", **dict.fromkeys(SIX, -1.0)),
        ),
        (
            claims_language.entropy_and_accuracy,
            rising("entropy_area", "after/pass@1", 1),
            rising("entropy_area", "after/pass@1", -1),
        ),
        (
            claims_language.certainty_costs_variety,
            rising("entropy_end", "after/pass@8", 1),
            rising("entropy_end", "after/pass@8", -1),
        ),
        (claims_language.precision_lowers, formats(0.5), formats(2.0)),
        (claims_language.collapsed_learns_worse, stages(1.0), stages(-1.0)),
    ],
)
def test_a_claim_holds_on_data_that_agree_and_fails_on_data_that_contradict(
    claim: Callable[[Study], Claim], agrees: Study, contradicts: Study
) -> None:
    assert claim(agrees).verdict == HOLDS
    assert claim(contradicts).verdict == FAILS
    for study in (agrees, contradicts):
        assert all(len(row) == len(claim(study).heads) for row in claim(study).rows)


def test_ce_gppo_is_between_only_if_it_falls_and_lies_between() -> None:
    def study(ce_gppo: float, end: float) -> Study:
        means = {"grpo": 1.0, "ce_gppo": ce_gppo, "dapo": 3.0}
        return {FULL: {name: result({"entropy_mean": x, "entropy_end": end}) for name, x in means.items()}}

    assert claims_language.ce_gppo_between(study(2.0, 0.5)).verdict == HOLDS
    assert claims_language.ce_gppo_between(study(2.0, 2.0)).verdict == FAILS
    assert claims_language.ce_gppo_between(study(0.5, 0.5)).verdict == FAILS
    assert claims_language.ce_gppo_between(study(3.5, 0.5)).verdict == FAILS


def test_the_correlation_over_runs_has_fishers_interval() -> None:
    found = {"a": Result({"x": [1, 2, 3], "y": [1, 3, 2]}, {}), "b": Result({"x": [4, 5, 6], "y": [5, 4, 6]}, {})}
    made = claims_language.over_runs(found, "x", "y")
    assert (made.mean, made.count) == (pytest.approx(1 - 6 * 4 / (6 * 35)), 6)  # Spearman's formula: these are ranks
    assert made.low == pytest.approx(math.tanh(math.atanh(made.mean) - 1.96 / math.sqrt(3)))
    assert made.high == pytest.approx(math.tanh(math.atanh(made.mean) + 1.96 / math.sqrt(3)))


def test_every_claim_on_the_language_model_is_one_on_tabular_policies() -> None:
    tabular = {make(page.load(DOCS / "study")).title for make in TABULAR}
    spoken = full() | formats(1.0) | stages(1.0)
    titles = [make(spoken).title for _, make in CLAIMS]
    assert set(titles) < tabular
    assert len(set(titles)) == len(titles)


def test_the_page_says_which_parts_there_are() -> None:
    study = page.load(DOCS / "study")
    none = page.build(study, {}, seeds=6, steps=640, folder="study")
    assert "**No language model was trained" in none
    assert "on a language model" not in none
    some = page.build(study, full(), seeds=6, steps=640, folder="study")
    assert "No language model was trained" not in some
    assert "11 of the claims\nare tested on it" in some
    assert "Not run there: number formats, stages." in some
    assert "the lower one stood at 0.5 nats" in some
    assert f"### GRPO loses entropy fastest of GRPO, DAPO and CE-GPPO{page.SPOKEN}\n" in some
    every = page.build(study, full() | formats(1.0) | stages(1.0), seeds=6, steps=640, folder="study")
    assert "Not run there" not in every
    assert {name for name, _ in language_page.pictures(full())} < set(language_page.PICTURES)


def test_links_of_the_verdicts_lead_to_headings() -> None:
    study = full() | formats(1.0) | stages(1.0)
    text = page.build(page.load(DOCS / "study"), study, seeds=6, steps=640, folder="study")
    anchors = {page._anchor(line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")}
    links = [part.split(")")[0] for part in text.split("](#")[1:]]
    assert len(links) == len(TABULAR) + len(CLAIMS) + 1
    assert len(set(links)) == len(links)
    assert set(links) <= anchors
