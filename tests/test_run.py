"""Curves as they are read: every step once, the last word counts, and a long one is thinned."""

import random

import pytest

from isentrope import run
from isentrope.errors import IsentropeError
from isentrope.run import Points, Series, curves


def gathered(points):
    found = Points()
    for step, value in points:
        found.add(step, value)
    return found.series()


def test_a_step_that_comes_twice_counts_as_it_came_last():
    assert gathered([(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0), (3, 30.0)]) == Series((1, 2, 3), (1.0, 20.0, 30.0))


@pytest.mark.parametrize(("every", "first"), [(1, 1), (20, 20), (8, 1), (0.25, 0.5)])
def test_a_long_curve_keeps_every_second_fourth_or_eighth_point(every, first, monkeypatch):
    monkeypatch.setattr(run, "KEPT_POINTS", 100)
    points = [(first + every * i, float(i)) for i in range(700)]
    found = gathered(points)
    apart = {b - a for a, b in zip(found.values, found.values[1:], strict=False)}
    assert apart == {8.0}
    assert found.values[0] == 0.0
    assert found.steps == tuple(first + every * i for i in found.values)
    assert gathered(points[:100]) == Series(tuple(float(s) for s, _ in points[:100]), tuple(v for _, v in points[:100]))


def test_a_long_curve_that_was_resumed_is_that_of_the_resumed_run(monkeypatch):
    monkeypatch.setattr(run, "KEPT_POINTS", 50)
    before, after = [(s, 0.0) for s in range(1, 301)], [(s, 1.0) for s in range(201, 501)]
    found = gathered([*before, *after])
    assert found == gathered([*before[:200], *after])
    assert set(found.values) == {0.0, 1.0}


def test_what_is_held_of_a_curve_is_bounded_whatever_its_steps(monkeypatch):
    monkeypatch.setattr(run, "KEPT_POINTS", 64)
    rng, found = random.Random(0), Points()
    for step in [*range(1000), *(rng.uniform(-1e6, 1e9) for _ in range(2000)), *range(10**12, 10**12 + 1000)]:
        found.add(step, 1.0)
        assert len(found._at) <= 64
    steps = found.series().steps
    assert list(steps) == sorted(set(steps))


def test_rows_become_curves_and_too_many_are_refused(monkeypatch):
    rows = [(1, {"a": 1.0}), (2, {"a": 2.0, "b": 5.0})]
    assert curves(rows, "x") == {"a": Series((1, 2), (1.0, 2.0)), "b": Series((2,), (5.0,))}
    monkeypatch.setattr(run, "MAX_POINTS", 1)
    with pytest.raises(IsentropeError, match="x has more than 1 lines; thin it out"):
        curves(rows, "x")
