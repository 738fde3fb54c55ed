"""Findings: what each looks for is found, and nothing else, on synthetic runs of several seeds."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from isentrope.errors import IsentropeError
from isentrope.findings import DETECTORS, Finding, diagnose, measured, robust
from isentrope.findings.knobs import ANY, KNOBS, knob
from isentrope.findings.tokens import measure
from isentrope.run import Facts, Run, Series, merge

from .synthetic_runs import CASES, Memory

SEEDS = range(5)


def alarms(found):
    return {finding.name for finding in found if finding.is_alarm}


def found(name, seed=0):
    return {finding.name: finding for finding in diagnose(CASES[name].build(seed))}


def first(run, points):
    return replace(run, series={name: Series(s.steps[:points], s.values[:points]) for name, s in run.series.items()})


def series(*values):
    return Series(tuple(float(i) for i in range(len(values))), tuple(map(float, values)))


# -- controllers, rewards, stages -------------------------------------------------------------------


def test_a_controller_at_its_bound_is_named_with_its_step_and_its_target():
    finding = found("controller_at_its_upper_bound")["pinned_controller"]
    assert finding.severity == "warning"
    assert finding.numbers["value"] == 1.0
    assert finding.numbers["target"] == 0.5
    assert 0.27 < finding.numbers["entropy"] < 0.33
    assert finding.steps == (49.0, 200.0)  # .28 + 3 t reaches 1 at t = .24, of 199 steps the 48th
    assert "controller/surrogate.high is 1 since step 49" in finding.evidence[0]


def test_a_controller_that_rests_above_its_target_is_a_note():
    finding = found("controller_with_nothing_to_do_above_its_target")["pinned_controller"]
    assert finding.severity == "note"
    assert "above" in finding.title


def test_a_controller_that_stood_for_too_few_rollout_batches_is_not_judged():
    run = CASES["controller_at_its_upper_bound"].build(0)
    names = [finding.name for finding in diagnose(replace(run, facts=replace(run.facts, updates_per_rollout=16)))]
    assert "pinned_controller" in names  # 152 steps, 9 batches
    names = [finding.name for finding in diagnose(replace(run, facts=replace(run.facts, updates_per_rollout=20)))]
    assert "pinned_controller" not in names  # 7 batches


def test_a_number_that_never_moved_and_one_between_its_extremes_are_not_at_a_bound():
    run = CASES["controller_at_its_upper_bound"].build(0)
    name = "controller/surrogate.high.value"
    steps = run.series[name].steps
    for values in ((1.0,) * 200, (0.3,) * 20 + (0.9,) * 20 + (0.5,) * 160):
        changed = replace(run, series={**run.series, name: Series(steps, values)})
        assert "pinned_controller" not in [finding.name for finding in diagnose(changed)]


def test_entropy_on_both_sides_of_its_target_is_met():
    run = CASES["controller_at_its_upper_bound"].build(0)
    course = run.series["entropy"]
    swings = Series(course.steps, tuple(0.3 if i % 10 else 0.6 for i in range(200)))
    changed = replace(run, series={**run.series, "entropy": swings})
    assert "pinned_controller" not in [finding.name for finding in diagnose(changed)]


def test_what_entropy_was_before_the_bound_was_reached_does_not_count():
    run = CASES["controller_at_its_upper_bound"].build(0)
    course = Series(run.series["entropy"].steps, (0.8,) * 40 + (0.3,) * 160)
    changed = replace(run, series={**run.series, "entropy": course})
    assert "pinned_controller" in [finding.name for finding in diagnose(changed)]


def test_a_lost_reward_names_its_level_and_the_step():
    finding = found("reward_that_is_lost")["lost_reward"]
    assert finding.severity == "error"
    assert finding.numbers["level"] == pytest.approx(0.48, abs=0.03)  # means of 12 steps; the last whole one is near .5
    assert finding.steps == (85.0, 120.0)  # t >= .7 of 119 from the 85th step on
    assert "step 85" in finding.turn


@pytest.mark.parametrize(
    ("values", "is_lost"),
    [
        ((0.5,) * 20 + (0.0,) * 8, True),
        ((0.5,) * 20 + (0.0,) * 7, False),  # too short to say
        ((0.5,) * 20 + (0.04,) * 8, True),
        ((0.5,) * 20 + (0.06,) * 8, False),  # 12% of its level
        ((0.5,) * 20 + (0.0,) * 7 + (0.3,), False),  # it is still there at times
        ((0.0,) * 10 + (0.5,) * 8 + (0.0,) * 10, False),  # at one part of the run alone
        ((0.5, 0.0, 0.0, 0.0, 0.0) * 4 + (0.0,) * 8, False),  # it was seldom there: 8 zeros in a row are nothing
        ((-0.1,) + (0.5,) * 19 + (0.0,) * 8, False),  # no level at which it is gone
        ((0.0,) * 28, False),
    ],
)
def test_what_counts_as_a_lost_reward(values, is_lost):
    run = Run("mine", series={"reward": series(*values)})
    assert ("lost_reward" in [finding.name for finding in diagnose(run)]) == is_lost


def test_a_jump_of_the_entropy_is_excused_at_the_beginning_of_a_stage_alone():
    run = CASES["a_second_stage_whose_task_is_new"].build(0)
    assert "definition_change" not in [finding.name for finding in diagnose(run)]
    earlier = Series(run.series["stage"].steps, (1.0,) * 30 + (2.0,) * 90)
    names = [finding.name for finding in diagnose(replace(run, series={**run.series, "stage": earlier}))]
    assert "definition_change" in names


def test_of_several_stages_the_last_one_can_lose_its_reward():
    run = Run("mine", series={"reward": series(*(0.5,) * 20, *(0.3,) * 20, *(0.0,) * 8)})
    stage = series(*(1.0,) * 20, *(2.0,) * 28)
    (finding,) = diagnose(replace(run, series={**run.series, "stage": stage}))
    assert (finding.name, finding.numbers["level"]) == ("lost_reward", pytest.approx(0.3))


# -- the suite --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_synthetic_run_raises_the_expected_alarms_and_no_others(name):
    case = CASES[name]
    wrong = {seed: sorted(got) for seed in SEEDS if (got := alarms(diagnose(case.build(seed)))) != case.alarms}
    assert wrong == {}, f"expected {sorted(case.alarms)}"


def test_the_suite_is_large_half_healthy_and_covers_every_detector():
    expected = Counter(alarm for case in CASES.values() for alarm in case.alarms)
    assert len(CASES) >= 40
    assert sum(case.is_healthy for case in CASES.values()) >= 12
    assert set(expected) == set(DETECTORS)


def test_every_detector_has_its_paragraph(root):
    page = (root / "docs" / "diagnose.md").read_text(encoding="utf-8")
    assert [line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")] != []
    assert {name for name in DETECTORS if f"\n### {name}\n" not in page} == set()


# A fall or a swing that later settles cannot be told from one that goes on; all else must be clean at any time.
UNTOLD = {"falls_then_stabilises_low", "controller_that_settles_slowly"}
HEALTHY = [name for name, case in CASES.items() if case.is_healthy and name not in UNTOLD]


@pytest.mark.parametrize("points", [9, 20, 45, 80])
def test_a_healthy_run_is_clean_at_any_time_while_it_goes_on(points):
    wrong = {name: got for name in HEALTHY if (got := alarms(diagnose(first(CASES[name].build(0), points))))}
    assert wrong == {}


@pytest.mark.parametrize("name", ["collapse_with_a_stalled_reward", "linear_collapse", "noisy_collapse"])
def test_a_collapse_is_flagged_before_it_is_complete(name):
    for seed in SEEDS:
        run = CASES[name].build(seed)
        at = next(n for n in range(20, 121, 5) if "collapse" in alarms(diagnose(first(run, n))))
        entropy = run.series["entropy"]
        assert robust.end(first(run, at).series["entropy"]) > 0.1 * robust.start(entropy), seed


def test_a_collapse_is_flagged_before_the_reward_stalls_with_its_cause():
    run = CASES["collapse_before_the_reward_stalls"].build(0)
    cause = {
        "change_share/PA&HP": -0.7,
        "change_share/PA&LP": 0.1,
        "change_share/NA&HP": 0.1,
        "change_share/NA&LP": -0.1,
    }
    more = {name: Series(run.series["entropy"].steps, (share,) * 120) for name, share in cause.items()}
    (finding,) = diagnose(replace(run, series={**run.series, **more}))
    assert finding.name == "collapse"
    assert "the reward still rises" in finding.evidence
    assert any("PA&HP (likely tokens of good completions) make 70%" in line for line in finding.evidence)


def test_the_cause_of_a_collapse_is_measured_on_its_tokens():
    finding = found("collapse_with_its_tokens")["collapse"]
    assert any("cause: PA&HP" in line for line in finding.evidence)
    assert not any("cause: PA&HP" in line for line in found("collapse_with_a_stalled_reward")["collapse"].evidence)


def test_the_projected_step_of_the_floor_is_that_of_the_curve():
    run = CASES["slow_collapse"].build(0)  # .5 to .22 over 300 steps: .05 after another 300 ln(.22/.05) / ln(.5/.22)
    finding = found("slow_collapse")["collapse"]
    assert finding.numbers["steps_to_floor"] == pytest.approx(541, rel=0.25)
    assert finding.severity == "warning"
    assert finding.steps == (run.series["entropy"].steps[0], 300.0)


@pytest.mark.parametrize(
    ("name", "detector", "words"),
    [
        ("bonus_runs_away", "entropy_bonus", "entropy_coef"),
        ("explosion_with_falling_reward", "explosion", "epsilon_high"),
        ("upper_bound_alone_clips", "starved_quadrant", "epsilon_high"),
        ("controller_that_hunts", "oscillation", "entropy_coef_delta"),
        ("sixteen_updates_far_away", "many_updates", "num_iterations"),
        ("ever_more_truncation", "truncation", "max_completion_length"),
        ("sampler_disagrees", "mismatch", "vllm_importance_sampling_correction"),
        ("log_probabilities_in_bf16", "precision", "cast_lm_head_to_fp32"),
    ],
)
def test_the_knob_is_named_in_the_engine_s_words(name, detector, words):
    assert words in found(name)[detector].turn


def test_many_updates_say_no_distance_that_was_not_measured():
    run = CASES["sixteen_updates_while_the_reward_falls"].build(0)
    unmeasured = {name: x for name, x in run.series.items() if not name.startswith(("kl_old", "clip"))}
    (finding,) = diagnose(replace(run, series=unmeasured))
    assert finding.evidence == ("16 updates a rollout batch", "the reward falls")
    (finding,) = diagnose(replace(run, series=unmeasured | {"clip": run.series["clip_low"]}))
    assert [("nats" in said, "clipped" in said) for said in finding.evidence[1:2]] == [(False, True)]


def test_the_same_fault_names_the_knob_of_another_engine():
    run = replace(CASES["explosion_with_falling_reward"].build(0), engine="verl")
    (finding,) = diagnose(run)
    assert "actor_rollout_ref.actor.clip_ratio_high" in finding.turn


def test_a_bonus_is_named_in_place_of_the_explosion_it_makes():
    run = CASES["bonus_runs_away"].build(0)
    assert set(found("bonus_runs_away")) == {"entropy_bonus"}
    without = replace(run, facts=replace(run.facts, entropy_coef=0.0))
    assert alarms(diagnose(without)) == {"explosion"}


def test_a_hunting_controller_is_named_and_surer_than_an_oscillation_alone():
    hunting, alone = (
        found("controller_that_hunts")["oscillation"],
        found("oscillation_without_a_controller")["oscillation"],
    )
    assert (hunting.confidence, alone.confidence) == ("high", "medium")
    assert "controller/surrogate.high.value moves with it" in hunting.evidence
    assert hunting.numbers["period"] == pytest.approx(200 / 9, rel=0.1)


def test_notes_are_no_alarms():
    inert = found("plain_ppo_on_policy")["inert"]
    solved = found("solved")["equal_rewards"]
    assert {inert.severity, solved.severity} == {"note"}


def test_errors_come_first():
    run = CASES["late_surge_with_sixteen_updates"].build(0)
    severities = [finding.severity for finding in diagnose(run)]
    assert severities == sorted(severities, key=("error", "warning", "note").index)
    assert severities[0] == "error"


def test_where_a_value_cannot_be_the_steps_are_named():
    run = Run("x", series={"entropy": series(*[0.5] * 7, math.nan, 0.5, -0.1)})
    (finding,) = diagnose(run)
    assert finding.evidence == (
        "entropy is not finite at 1 of 10 steps (7)",
        "entropy is negative at 1 of 10 steps (9)",
    )


def test_an_entropy_in_the_rounding_of_zero_is_none_that_cannot_be():
    assert diagnose(Run("x", series={"entropy": series(*[-1e-5] * 10)})) == []


def test_a_run_without_anything_has_no_findings_and_says_what_it_lacks():
    run = Run("x")
    assert diagnose(run) == []
    assert len(run.lacks) == 8


@pytest.mark.parametrize("name", DETECTORS)
def test_every_detector_bears_short_and_constant_curves(name):
    curves = CASES["flat_low_entropy"].build(0).series
    for points in (1, 2, 3, 8):
        for value in (0.0, 0.3, -0.3):
            flat = {n: Series(s.steps[:points], (value,) * points) for n, s in curves.items()}
            result = DETECTORS[name](Run("x", series=flat, facts=Facts(updates_per_rollout=1, vocabulary=10)))
            assert result is None or isinstance(result, Finding)


def test_the_scale_of_the_steps_does_not_matter():
    for name in ("collapse_with_a_stalled_reward", "slow_fall_with_rising_reward", "controller_that_hunts"):
        run = CASES[name].build(0)
        wide = {n: Series(tuple(1000 + 50 * s for s in x.steps), x.values) for n, x in run.series.items()}
        assert alarms(diagnose(replace(run, series=wide))) == CASES[name].alarms


# -- knobs ------------------------------------------------------------------------------------------


def test_every_knob_has_words_for_an_engine_that_is_not_known():
    assert all(words[ANY] for words in KNOBS.values())
    assert knob("isentrope", "clip_high") != knob("", "clip_high") == knob("nobody's", "clip_high")


# -- statistics -------------------------------------------------------------------------------------


def test_a_slope_is_exact_on_a_line_and_bears_wild_points():
    line = [3.0 - 0.5 * i for i in range(40)]
    assert robust.trend(series(*line)).slope == pytest.approx(-0.5)
    for i in (3, 17, 30):
        line[i] = 1000.0
    assert robust.trend(series(*line)).slope == pytest.approx(-0.5, rel=0.05)


def test_noise_is_the_standard_deviation_around_a_course():
    rng = random.Random(1)
    drawn = [0.01 * i + rng.gauss(0, 0.2) for i in range(4000)]
    assert robust.noise(drawn) == pytest.approx(0.2, rel=0.05)


def test_a_trend_of_noise_is_sure_about_once_in_a_hundred():
    rng = random.Random(2)
    sure = sum(robust.trend(series(*(rng.gauss(0, 1) for _ in range(40)))).is_sure for _ in range(600))
    assert 1 <= sure <= 14  # the expectation is 5.6


def test_blocks_keep_the_course_of_a_long_curve():
    long = series(*range(6000))
    few = robust.blocks(long)
    assert len(few) == robust.MAX_BLOCKS
    assert few.values == tuple(sorted(few.values))
    assert robust.blocks(few) is few


def test_a_jump_is_found_where_it_is_and_not_in_a_ramp_or_a_spike():
    rng = random.Random(3)
    flat = [1 + rng.gauss(0, 0.02) for _ in range(60)]
    assert robust.jump(series(*flat)) is None
    jumped = robust.jump(series(*flat[:25], *(0.4 * v for v in flat[25:])))
    assert (jumped.step, jumped.before, jumped.after) == (25, pytest.approx(1, 0.02), pytest.approx(0.4, 0.02))
    assert robust.jump(series(*(v - 0.012 * i for i, v in enumerate(flat)))) is None
    assert robust.jump(series(*flat[:25], 5, 5, *flat[27:])) is None


def test_a_wave_has_its_period_and_noise_has_none():
    rng = random.Random(4)
    swing = [1 + 0.3 * math.sin(2 * math.pi * i / 15) + rng.gauss(0, 0.05) for i in range(120)]
    wave = robust.wave(series(*swing))
    assert wave.period == pytest.approx(15, rel=0.1)
    assert wave.amplitude == pytest.approx(0.3, rel=0.25)
    assert not any(robust.wave(series(*(1 + rng.gauss(0, 0.2) for _ in range(120)))) for _ in range(40))


def test_a_course_stands_only_where_noise_leaves_no_doubt():
    rng = random.Random(5)
    assert robust.course(series(*(1 + rng.gauss(0, 0.01) for _ in range(100)))) == 0
    doubtful = [robust.course(series(*(1 + rng.gauss(0, 0.3) for _ in range(30)))) for _ in range(100)]
    assert doubtful.count(0) <= 10  # a fall that was drawn by chance
    assert robust.course(series(*[1.0] * 16)) is None
    assert robust.course(series(*(0.02 * i for i in range(50)))) == 1
    assert robust.course(series(1, 2, 3)) is None


# -- tokens -----------------------------------------------------------------------------------------


def columns(**more):
    logp = torch.log(torch.tensor([0.9, 0.5, 0.1, 0.05]))
    return {"logp": logp, "old_logp": logp.clone(), "entropy": torch.tensor([0.3, 0.7, 1.0, 2.0])} | more


def test_batches_of_tokens_add_up():
    whole = columns(advantage=torch.tensor([1.0, -1.0, 1.0, -1.0]), weight=torch.tensor([0.1, -0.2, 0.0, 0.3]))
    parts = measure({k: v[:1] for k, v in whole.items()}) + measure({k: v[1:] for k, v in whole.items()})
    together = measure(whole)
    assert set(parts.sums) == set(together.sums)
    for name in together.sums:
        assert parts.sums[name].tolist() == pytest.approx(together.sums[name].tolist(), rel=1e-5, abs=1e-7), name


def test_what_tokens_say_that_cannot_be_is_counted():
    run = Run("x", tokens=Memory(((3, columns(entropy=torch.tensor([-0.5, math.nan, 3.0, 0.5]))),)))
    found_ = measured(replace(run, facts=Facts(vocabulary=8))).series  # log 8 = 2.08
    shares = [found_[f"tokens/{name}"].values[0] for name in ("below_zero", "not_finite", "above_log_v")]
    assert shares == [0.25, 0.25, 0.25]
    assert found_["entropy"].steps == (3.0,)


def test_the_bf16_grid_is_recognised_and_float32_is_not_on_it():
    logp = torch.log(torch.rand(5000, generator=torch.Generator().manual_seed(0)))
    for values, share in ((logp.bfloat16().float(), 1.0), (logp, 0.0)):
        run = measured(Run("x", tokens=Memory(((1, {"logp": values, "old_logp": values}),))))
        assert run.series["tokens/on_grid"].values[0] == pytest.approx(share, abs=1e-3)


def test_a_logged_curve_is_kept_over_the_one_measured_on_tokens():
    run = Run("x", series={"entropy": series(*[0.5] * 10)}, tokens=Memory(((3, columns()),)))
    found_ = measured(run).series
    assert found_["entropy"].values == (0.5,) * 10
    assert found_["tokens/entropy"].values == (pytest.approx(1.0),)


@pytest.mark.parametrize(("name", "value"), [("task", -1), ("task", 10**9), ("position", -5)])
def test_numbers_that_ask_for_absurdly_many_bins_are_refused(name, value):
    bad = columns(**{name: torch.tensor([0, 1, value, 2])})
    with pytest.raises(IsentropeError, match=f"'{name}' must lie from 0"):
        measured(Run("x", tokens=Memory(((1, bad),))))


# -- runs -------------------------------------------------------------------------------------------


def test_parts_of_a_run_complete_each_other():
    a = Run("a", series={"entropy": series(1, 2)}, facts=Facts(vocabulary=10), sources=("log",))
    b = Run(
        "b", "trl", {"entropy": series(9), "distinct": series(1)}, Facts(vocabulary=20, group_size=8), sources=("dump",)
    )
    whole = merge([a, b])
    assert (whole.name, whole.engine, whole.sources) == ("a", "trl", ("log", "dump"))
    assert whole.series["entropy"].values == (1, 2)
    assert (whole.facts.vocabulary, whole.facts.group_size) == (10, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Series((1.0,), ()), "1 steps and 0 values"),
        (lambda: Facts(vocabulary=0), "vocabulary must be at least 1; found 0"),
        (lambda: Facts(entropy_kind="guess"), "entropy_kind must be one of"),
        (lambda: Finding("x", "bad", "high", "", (), "", ""), "severity must be one of"),
    ],
)
def test_values_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
