"""Still pictures: well-formed SVG whose points stand where the data says."""

import re
from xml.etree import ElementTree

import pytest

from isentrope.report.chart import Axis, Chart, Series
from isentrope.report.still import svg, ticks

SPACE = "{http://www.w3.org/2000/svg}"


def chart_of(kind: str = "lines", **changes: object) -> Chart:
    series = (
        Series("a <b> & 'c'", [0, 10], [0.0, 1.0], 0, low=[0.0, 0.5], high=[0.0, 1.5]),
        Series("d", [0, 10], [1.0, 0.0], 1),
    )
    given = {"id": "x", "title": "Title <1>", "about": "", "y": Axis("nats"), "series": series, "kind": kind}
    return Chart(**(given | changes))


def points(text: str) -> list[tuple[float, float]]:
    return [tuple(map(float, pair.split(","))) for pair in text.split()]


def test_lines_end_where_the_data_ends() -> None:
    root = ElementTree.fromstring(svg(chart_of()))
    first, second = (points(line.get("points", "")) for line in root.iter(f"{SPACE}polyline"))
    assert first[0][0] == 64  # the left edge
    assert first[1][0] == 530  # the right edge: 720 less 190 for the legend
    assert first[0][1] == 354  # 0 at the bottom: 400 less 46
    assert first[1][1] == pytest.approx(354 - 320 / 1.5, abs=0.1)  # 1 of 1.5, the end of the band
    assert second[0][1] == first[1][1]
    (band,) = root.iter(f"{SPACE}polygon")
    assert points(band.get("points", ""))[1] == (530.0, 34.0)


def test_the_ends_of_the_x_axis_can_be_fixed_too() -> None:
    root = ElementTree.fromstring(svg(chart_of(x=Axis("steps", low=-10.0, high=20.0))))
    first = points(next(root.iter(f"{SPACE}polyline")).get("points", ""))
    assert [x for x, _ in first] == pytest.approx([64 + 466 / 3, 64 + 466 * 2 / 3], abs=0.1)


def test_names_are_text_and_the_picture_is_told_in_words() -> None:
    text = svg(chart_of())
    root = ElementTree.fromstring(text)
    assert "a <b> & 'c'" in [element.text for element in root.iter(f"{SPACE}text")]
    assert "Title <1>: nats against optimizer step." in (root.find(f"{SPACE}desc").text or "")
    assert "<script" not in text


def test_a_scatter_has_a_point_each_and_bars() -> None:
    root = ElementTree.fromstring(svg(chart_of("scatter")))
    assert len(list(root.iter(f"{SPACE}circle"))) == 4 + 2  # points, and the legend's
    assert len(re.findall("opacity='0.35'", svg(chart_of("scatter")))) == 2


def test_a_long_legend_makes_a_higher_picture() -> None:
    many = tuple(Series(str(i), [0, 1], [0.0, 1.0], i) for i in range(30))
    root = ElementTree.fromstring(svg(chart_of(series=many)))
    height = float(root.get("viewBox", "").split()[3])
    assert height > 400
    assert max(float(e.get("y", 0)) for e in root.iter(f"{SPACE}text")) < height
    styles = {(e.get("stroke"), e.get("stroke-dasharray")) for e in root.iter(f"{SPACE}polyline")}
    assert len(styles) == 30


def test_a_flat_line_has_an_axis() -> None:
    flat = (Series("a", [3], [2.0], 0),)
    assert "NaN" not in svg(chart_of(series=flat)).replace("nan", "NaN")


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.013, 0.02), (-4.0, 900.0), (1e-9, 3e-9)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 6
    assert low - 1e-9 * high <= min(found)
    assert max(found) <= high * (1 + 1e-9)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="not 'areas'"):
        svg(chart_of("areas"))
    with pytest.raises(ValueError, match="no point to draw"):
        svg(chart_of(series=(Series("a", [], [], 0),)))
