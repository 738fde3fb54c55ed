"""What each chart takes from the runs, and what it says where there is nothing to take."""

from pathlib import Path

import pytest

from isentrope.diagnostics import QUADRANTS
from isentrope.report import charts
from isentrope.report.data import Curve, Evaluation, RunData

BARE = RunData("bare", Path("bare"))


def run(name="a", **curves):
    """A run whose curves are {name: {step: value}}, with "." for "/" in names that are keywords."""
    return RunData(name, Path(name), curves={key: Curve(tuple(c), tuple(c.values())) for key, c in curves.items()})


@pytest.mark.parametrize(
    ("builder", "advice"),
    [
        (charts.reward, "reward function"),
        (charts.held_out, "evaluation.problems"),
        (charts.entropy, "log one by default"),
        (charts.prediction, charts.LIVE),
        (charts.quadrants, charts.LIVE),
        (charts.clipping, "trainer.minibatches"),
        (charts.controllers, "adapo"),
    ],
)
def test_a_run_without_data_gets_advice_and_no_series(builder, advice):
    found = builder([BARE])
    assert found
    for chart in found:
        assert chart.series == ()
        assert advice in chart.missing


def test_what_nobody_logged_is_no_extra():
    assert charts.extras([BARE]) == []
    (found,) = charts.extras([BARE, run(grad_norm={1: 2.0})])
    assert (found.id, [series.run for series in found.series]) == ("grad-norm", [1])


def test_runs_lie_over_each_other_each_with_its_index():
    (found,) = charts.reward([run("a", reward={1: 0.5, 2: 0.75}), BARE, run("c", reward={1: 0.25})])
    assert [(s.name, s.run, list(s.y), s.dots) for s in found.series] == [
        ("a", 0, [0.5, 0.75], False),
        ("c", 2, [0.25], True),
    ]


def test_entropy_is_drawn_by_task_with_start_and_targets():
    mine = run(
        **{
            "entropy/current_exact": {1: 0.9, 2: 0.8},
            "entropy/old_exact": {1: 0.9},
            "entropy/current_exact/math": {1: 0.5},
            "entropy/current_exact/code": {1: 0.4},
            "controller/surrogate.high.target": {1: 0.7, 2: 0.7},
            "controller/surrogate.high.value": {1: 0.28},
        }
    )
    overall, *tasks = charts.entropy([mine])
    assert [(mark.label, mark.y) for mark in overall.marks] == [("start", 0.9), ("target", 0.7)]
    assert [chart.title for chart in tasks] == ["Entropy: code", "Entropy: math"]
    assert [[(mark.label, mark.y) for mark in chart.marks] for chart in tasks] == [[("start", 0.4)], [("start", 0.5)]]


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (("exact", "exact"), "Exact softmax entropy"),
        (("estimate",), "An estimate of the entropy"),
        (("exact", "estimate"), "an estimate"),
        (("",), "of unknown kind"),
    ],
)
def test_an_entropy_says_its_kind(kinds, said):
    curves = {"entropy": Curve((1,), (0.5,))}
    runs = [RunData(str(i), Path(str(i)), curves=curves, entropy_kind=kind) for i, kind in enumerate(kinds)]
    assert said in charts.entropy(runs)[0].about


def test_prediction_pairs_steps_that_both_have_and_states_the_correlation():
    mine = run(
        **{
            "diagnostics/predicted_change": {1: 0.0, 2: 1.0, 3: 2.0, 4: 3.0, 6: 9.0},
            "diagnostics/measured_change": {1: 0.0, 2: 2.0, 3: 4.0, 4: 6.0, 5: 9.0},
        }
    )
    (found,) = charts.prediction([mine])
    assert (list(found.series[0].x), list(found.series[0].y)) == ([1, 2, 3], [2, 4, 6])
    assert found.notes == ("a: correlation 1.00 over 3 steps",)


def test_two_points_have_no_correlation():
    mine = run(**{f"diagnostics/{name}_change": {2: 1.0, 3: 2.0} for name in ("predicted", "measured")})
    assert "too few points" in charts.prediction([mine])[0].notes[0]


def test_quadrants_keep_their_order_sign_and_steps():
    shares = {name: {1: 0.25, 3: -0.25} for name in QUADRANTS} | {"NA&LP": {1: 0.25, 2: 0.5, 3: -0.25}}
    (found,) = charts.quadrants([run(**{f"diagnostics/change_share/{name}": x for name, x in shares.items()})])
    assert [s.name for s in found.series] == list(QUADRANTS)
    assert all((list(s.x), list(s.y)) == ([1, 3], [0.25, -0.25]) for s in found.series)
    assert found.notes == ()


def test_quadrants_of_one_dumped_step_are_bars_that_say_where_they_are_from():
    (found,) = charts.quadrants([run(**{f"change_share/{name}": {5: 0.25} for name in QUADRANTS})])
    assert list(found.series[0].x) == [4.5, 5.5]
    assert found.notes == ("measured on the dumped tokens of 1 steps",)


def test_clips_are_read_under_the_names_of_either_engine():
    low, high = charts.clipping([run(**{"clip/low": {1: 0.1}}), run("b", clip_low={1: 0.2}, clip_high={1: 0.3})])
    assert [list(s.y) for s in low.series] == [[0.1], [0.2]]
    assert [list(s.y) for s in high.series] == [[0.3]]


def test_a_controller_shows_its_value_or_else_all_its_numbers():
    value, numbers = charts.controllers(
        [
            run(
                **{
                    "controller/a.high.value": {1: 1.0},
                    "controller/a.high.integral": {1: 9.0},
                    "controller/b.low": {1: 2.0},
                    "controller/b.high": {1: 3.0},
                }
            )
        ]
    )
    assert [list(s.y) for s in value.series] == [[1.0]]
    assert [(s.name, list(s.y)) for s in numbers.series] == [("a, high", [3.0]), ("a, low", [2.0])]


def test_evaluations_are_drawn_over_steps_and_over_k():
    points = [(0.0, 0.2, 0.8), (20.0, 0.3, 0.7), (40.0, 0.4, 0.6)]
    evaluations = tuple(
        Evaluation(step, "math", 100, {1: one, 8: many}, (one - 0.1, one + 0.1)) for step, one, many in points
    )
    steps, over_k = charts.held_out([RunData("a", Path("a"), evaluations=evaluations)])
    assert [(s.name, list(s.x), list(s.y)) for s in steps.series] == [
        ("a, pass@1", [0, 20, 40], [0.2, 0.3, 0.4]),
        ("a, pass@8", [0, 20, 40], [0.8, 0.7, 0.6]),
    ]
    assert steps.series[0].low == [0.1, pytest.approx(0.2), pytest.approx(0.3)]
    assert [(s.name, s.dash) for s in over_k.series] == [("a, before", 2), ("a, after step 40", 0)]


def test_tasks_whose_names_look_alike_get_different_ids():
    names = ["a b", "a-b", "A B", "\u00e4", "\u00f6", ""]
    assert len({charts.slug(name) for name in names}) == len(names)
