"""A chart as data: peaks survive, numbers are short and finite, words say what is drawn."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isentrope.report.chart import Axis, Chart, Mark, Series, short, thin
from isentrope.report.data import Curve


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(2, 50))
def test_thinning_keeps_the_peaks_the_order_and_the_budget(values, budget):
    curve = Curve(tuple(range(len(values))), tuple(values))
    kept = thin(curve, budget)
    assert len(kept) <= max(budget, 2)
    assert (min(kept.values), max(kept.values)) == (min(values), max(values))
    assert list(kept.steps) == sorted(kept.steps)
    assert all(values[int(step)] == value for step, value in zip(kept.steps, kept.values, strict=True))


def chart(**more):
    series = Series("a", [1, 2, 3], [0.5, 0.123456789, 2.0], 0)
    return Chart("id", "Title", "About.", Axis("nats"), (series,), **more)


def test_areas_and_dots_take_every_nth_point_alike():
    y = [float(i) for i in range(100)]
    parts = tuple(Series(name, y, y, 0, tone=i) for i, name in enumerate("ab"))
    thinned = Chart("id", "T", "A", Axis("share"), parts, kind="areas").thinned(10)
    assert [list(part.x) for part in thinned.series] == [y[::10], y[::10]]


def test_bars_keep_their_points():
    y = [0.5] * 50
    bars = Series("a", list(range(50)), y, 0, low=y, high=y)
    assert len(Chart("id", "T", "A", Axis("x"), (bars,)).thinned(10).series[0].x) == 50


def test_numbers_go_out_short_and_steps_whole():
    found = chart(marks=(Mark(0.33333333, "start", 0),)).to_dict()
    assert found["series"][0]["y"] == [0.5, 0.12346, 2]
    assert found["series"][0]["x"] == [1, 2, 3]
    assert found["marks"] == [{"y": 0.33333, "label": "start", "run": 0}]
    assert found["overSteps"] is True
    json.dumps(found, allow_nan=False)
    assert Chart("id", "T", "A", Axis("x"), (Series("a", [123456789], [1], 0),)).to_dict()["series"][0]["x"] == [
        123456789
    ]


def test_short_keeps_five_digits_of_the_smallest_and_the_largest():
    assert [short(x) for x in (1.23456789e-12, -9.87654321e17, 0.0)] == [1.2346e-12, -9.8765e17, 0]


def test_the_alternative_says_axes_ends_and_peaks():
    assert chart().alternative == ("Title: nats against optimizer step. a: 0.5 at 1, 2 at 3; lowest 0.123, highest 2.")


def test_a_chart_without_data_must_say_what_to_switch_on():
    with pytest.raises(ValueError, match="does not say what to switch on"):
        Chart("id", "T", "A", Axis("x"))


def test_a_series_needs_as_many_y_as_x():
    with pytest.raises(ValueError, match="2 x and 1 y"):
        Series("a", [1, 2], [1], 0)
