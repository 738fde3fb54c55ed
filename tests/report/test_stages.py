"""The report on sequential learning: each later stage's speed against the entropy that was left for it."""

import math
from pathlib import Path

import pytest

from isentrope.report import charts
from isentrope.report.data import Curve, Evaluation, RunData
from isentrope.report.stages import learnt, speed

STAGES = {"stage": [{"tasks": ["a"], "steps": 4}, {"tasks": ["b"], "steps": 4}, {"tasks": ["a", "b"], "steps": 4}]}


def run_of(**changes: object) -> RunData:
    steps = tuple(float(i) for i in range(1, 13))
    curves = {
        "entropy": Curve(steps, (2.0, 1.5, 1.0, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.3, 0.3, 0.3)),
        "reward": Curve((1.0, 3.0, 5.0, 7.0, 9.0), (0.0, 0.9, 0.1, 0.5, 0.6)),
    }
    return RunData(**({"name": "mine", "path": Path("mine"), "curves": curves, "recipe": STAGES} | changes))


def test_speed_is_the_mean_gain_and_entropy_that_of_the_stage_before() -> None:
    second, third = learnt(run_of())
    assert (second.number, second.tasks, second.entropy_left) == (2, "b", 0.8)
    assert abs(second.gain - 0.2) < 1e-12  # rewards .1 and .5 in steps 5 to 8, the first of them .1
    assert (third.tasks, third.entropy_left, third.gain) == ("a, b", 0.4, 0.0)


def test_entropy_of_the_stages_own_tasks_is_that_measured_as_it_begins() -> None:
    at = [(4.0, "a", 0.1), (4.0, "b", 0.7), (8.0, "a", 0.2), (8.0, "b", 0.4), (0.0, "b", 0.9)]
    run = run_of(evaluations=tuple(Evaluation(step, task, 9, {1: 0.5}, None, entropy) for step, task, entropy in at))
    second, third = learnt(run)
    assert second.entropy_own == 0.7
    assert abs(third.entropy_own - 0.3) < 1e-12  # of a and b
    left, own = speed([run])
    assert list(left.series[0].x) == [0.8, 0.4]
    assert list(own.series[0].x) == [second.entropy_own, third.entropy_own]
    only = run_of(evaluations=tuple(one for one in run.evaluations if (one.step, one.task) != (8.0, "b")))
    assert math.isnan(learnt(only)[1].entropy_own)
    assert list(speed([only])[1].series[0].y) == [second.gain]


def test_runs_without_stages_have_no_such_chart() -> None:
    assert speed([run_of(recipe={})]) == []
    assert learnt(run_of(curves={})) == []


def test_the_chart_stands_with_learning() -> None:
    (chart,) = speed([run_of(recipe={}), run_of()])
    assert chart.series[0].run == 1
    assert list(chart.series[0].x) == [0.8, 0.4]
    learning = next(builders for id_, _, _, builders in charts.SECTIONS if id_ == "learning")
    assert speed in learning


@pytest.mark.parametrize(
    "stages",
    ["two", [3], [{"tasks": ["a"]}], [{"steps": 4}], [{"tasks": "a", "steps": 4}], [{"tasks": [1], "steps": 4}]],
)
def test_a_recipe_that_somebody_else_wrote_may_hold_anything_there(stages: object) -> None:
    assert learnt(run_of(recipe={"stage": stages})) == []
