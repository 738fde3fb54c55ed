"""Verdicts follow the data: results made up to agree with a claim make it hold, their opposite makes it fail."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from isentrope.seeds import Estimate
from isentrope.study import claims_control, claims_entropy, claims_outcome, page
from isentrope.study.claims import CLAIMS
from isentrope.study.pictures import PICTURES
from isentrope.study.runs import Result
from isentrope.study.verdict import FAILS, HOLDS, OPEN, Claim, judge, text

DOCS = Path(__file__).parents[2] / "docs"
NOISE = (-0.01, 0.0, 0.01, 0.005, -0.005)
COURSE = ("entropy_start", "entropy_middle", "entropy_end", "entropy_area", "pass_at_1", "pass_at_k")


def result(**figures: float) -> Result:
    """A condition with the same figure in all seeds, but for a little noise that differs between seeds and figures."""
    every = dict.fromkeys(COURSE, 1.0) | {name.replace("__", "/"): x for name, x in figures.items()}
    return Result({name: [x + NOISE[(s + i) % 5] for s in range(5)] for i, (name, x) in enumerate(every.items())}, {})


def both(**conditions: Result) -> dict[str, dict[str, Result]]:
    return {"objectives": conditions, "chains": conditions}


def areas(**values: float) -> dict[str, dict[str, Result]]:
    return both(**{name: result(entropy_area=x, entropy_end=0.5) for name, x in values.items()})


def levels(**values: float) -> dict[str, dict[str, Result]]:
    names = dict.fromkeys(claims_entropy.AT_EQUAL_REWARD, 1.0) | values
    return both(**{name: result(entropy_at_reward=x) for name, x in names.items()})


@pytest.mark.parametrize(
    ("claim", "agrees", "contradicts"),
    [
        (claims_entropy.grpo_fastest, areas(grpo=1, dapo=2, ce_gppo=2), areas(grpo=1, dapo=2, ce_gppo=0.5)),
        (claims_entropy.more_at_equal_reward, levels(dapo=2, ce_gppo=2), levels(dapo=2, ce_gppo=0.5)),
        (claims_entropy.dapo_keeps_more, areas(grpo=1, dapo=2), areas(grpo=2, dapo=1)),
        (claims_entropy.dapo_overshoots, both(dapo=result(entropy_end=2)), both(dapo=result(entropy_end=0.5))),
        (claims_entropy.ce_gppo_between, areas(grpo=1, ce_gppo=2, dapo=3), areas(grpo=2, ce_gppo=1, dapo=3)),
    ],
)
def test_a_claim_holds_on_data_that_agree_and_fails_on_data_that_contradict(
    claim: Callable[[Mapping[str, Mapping[str, Result]]], Claim],
    agrees: Mapping[str, Mapping[str, Result]],
    contradicts: Mapping[str, Mapping[str, Result]],
) -> None:
    assert claim(agrees).verdict == HOLDS
    assert claim(contradicts).verdict == FAILS


def test_a_knob_must_be_monotone_besides_its_slope() -> None:
    def study(*values: float) -> dict[str, dict[str, Result]]:
        return {"keep": {f"keep_high {x:g}": result(entropy_area=v) for x, v in enumerate(values)}}

    assert claims_entropy.keep_high_raises(study(1, 2, 3, 4)).verdict == HOLDS
    assert claims_entropy.keep_high_raises(study(1, 3, 2, 4)).verdict == OPEN
    assert claims_entropy.keep_high_raises(study(4, 3, 2, 1)).verdict == FAILS
    assert "not in order" in claims_entropy.keep_high_raises(study(1, 3, 2, 4)).reason


def test_comparable_is_a_band_of_ratios() -> None:
    def study(name: str, ratio: float) -> dict[str, dict[str, Result]]:
        norms = {"gradient_norm": 1.0, "kl_start": 1.0, "kl_rollout": 1.0}
        return {"stability": {"PPO's clip": result(**norms), name: result(**{k: ratio * v for k, v in norms.items()})}}

    assert claims_entropy.ce_gppo_stable(study("ce_gppo", 1.1)).verdict == HOLDS
    assert claims_entropy.ce_gppo_stable(study("ce_gppo", 1.4)).verdict == FAILS
    assert claims_entropy.ce_gppo_stable(study("ce_gppo", 1.25)).verdict == OPEN
    assert claims_entropy.cispo_unstable(study("cispo, bounds .05 and .05", 1.4)).verdict == HOLDS
    assert claims_entropy.cispo_unstable(study("cispo, bounds .05 and .05", 1.1)).verdict == FAILS


def test_a_target_is_held_within_a_tenth_from_above_and_below() -> None:
    def study(kept: float, reached: float) -> dict[str, dict[str, Result]]:
        steered = dict.fromkeys(("dapo", "repo_d", "repo_r"), result(entropy_end=0.1))
        return {
            "objectives": steered | {"adapo": result(entropy_start=2.0, entropy_end=2.0 * kept)},
            "target": {"none": result(entropy_end=0.2), "adapo": result(entropy_end=reached)},
        }

    assert claims_control.adapo_holds(study(0.95, 1.05)).verdict == HOLDS
    assert claims_control.adapo_holds(study(0.95, 0.7)).verdict == FAILS
    assert claims_control.adapo_holds(study(0.5, 1.0)).verdict == FAILS


def test_a_second_task_is_learnt_by_what_the_first_left() -> None:
    def study(sign: float) -> dict[str, dict[str, Result]]:
        made = {}
        for i in range(5):
            figures = {"stage2/entropy_left": i, "stage2/mean_reward": sign * i}
            figures |= {"stage2/reward_end": 1.0, "stage3/mean_reward": 1.0}
            made[str(i)] = Result({name: [x + n for n in NOISE] for name, x in figures.items()}, {})
        return {"stages": made}

    assert claims_outcome.collapsed_learns_worse(study(1.0)).verdict == HOLDS
    assert claims_outcome.collapsed_learns_worse(study(-1.0)).verdict == FAILS


def test_wide_intervals_cannot_tell() -> None:
    wide = Estimate(1.0, -1.0, 3.0, 5)
    assert judge((wide, 0.0, math.inf)) == OPEN
    assert judge((Estimate(1.0, math.nan, math.nan, 1), 0.0, math.inf)) == OPEN  # a single seed tells nothing


def test_figures_are_short() -> None:
    assert text(Estimate(0.51234, 0.5, 0.52468, 5)) == ".512 ± .012"
    assert text(Estimate(-0.5, -0.6, -0.4, 5)) == "-.500 ± .100"
    assert text(Estimate(12.345, 11.345, 13.345, 5)) == "12.3 ± 1.0"


def test_the_page_and_its_pictures_are_those_of_the_kept_results(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    for file in (DOCS / "study").glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    page.write(folder)
    assert (tmp_path / "study.md").read_text() == (DOCS / "study.md").read_text(), "run python -m isentrope.study"
    drawn = {path.name: path.read_text() for path in folder.glob("*.svg")}
    assert drawn == {path.name: path.read_text() for path in (DOCS / "study").glob("*.svg")}
    assert {f"{name}.svg" for name in PICTURES} <= set(drawn)


def test_every_claim_stands_on_the_page_with_its_verdict() -> None:
    study, written = page.load(DOCS / "study"), (DOCS / "study.md").read_text()
    for make in CLAIMS:
        claim = make(study)
        assert f"| {claim.title} | [**{claim.verdict}**](#" in written
        assert f"### {claim.title}\n" in written
        assert all(len(row) == len(claim.heads) for row in claim.rows)
        assert not claim.picture or (claim.picture in PICTURES and f"(study/{claim.picture}.svg)" in written)


def test_nothing_on_the_frontier_is_exceeded_in_both() -> None:
    points = {"a": (0.9, 0.1), "b": (0.5, 0.5), "c": (0.4, 0.4), "d": (0.1, 0.9)}
    found = {name: result(pass_at_1=x, entropy_end=y) for name, (x, y) in points.items()}
    assert page.on_frontier(found, list(points)) == {"a", "b", "d"}
