"""Curves in braille: the right dots at the right places."""

import math

import pytest

from isentrope.cli._charts import braille, line_chart, smooth


def _dots(lines):
    """(column, row) of every dot, counted from the top left."""
    bits = {
        0x01: (0, 0),
        0x02: (0, 1),
        0x04: (0, 2),
        0x40: (0, 3),
        0x08: (1, 0),
        0x10: (1, 1),
        0x20: (1, 2),
        0x80: (1, 3),
    }
    return {
        (2 * x + dx, 4 * y + dy)
        for y, line in enumerate(lines)
        for x, character in enumerate(line)
        for bit, (dx, dy) in bits.items()
        if (ord(character) - 0x2800) & bit
    }


def test_a_rising_line_goes_from_the_lowest_dot_to_the_highest():
    dots = _dots(braille([0, 1], [0.0, 1.0], width=4, height=2))
    assert dots == {(i, 7 - i) for i in range(8)}


def test_a_jump_is_joined_without_a_gap():
    dots = _dots(braille([0, 3, 4, 7], [0.0, 0.0, 1.0, 1.0], width=4, height=2))
    assert {row for column, row in dots if column == 4} == set(range(7)), "all rows but the one that column 3 has drawn"


def test_every_column_has_a_dot():
    steps = list(range(50))
    dots = _dots(braille(steps, [math.sin(i) for i in steps], width=30, height=5))
    assert {column for column, _ in dots} == set(range(60))


def test_steps_are_to_scale():
    dots = _dots(braille([0, 1, 7], [0.0, 1.0, 1.0], width=4, height=1))
    assert min(column for column, row in dots if row == 0) == 1


@pytest.mark.parametrize(("steps", "values"), [([1], [2.0]), ([1, 2], [2.0, 2.0])])
def test_one_point_and_equal_values_are_a_flat_line(steps, values):
    dots = _dots(braille(steps, values, width=4, height=2))
    assert len({row for _, row in dots}) == 1
    assert len(dots) == 8


def test_the_chart_names_extremes_and_steps():
    lines = line_chart("entropy", [1, 100], [0.25, -1.5], width=20, height=3).split("\n")
    assert lines[0] == "entropy"
    assert lines[1].startswith("0.25 ┤")
    assert lines[3].startswith("-1.5 ┤")
    assert lines[4].split() == ["1", "100"]
    assert len({len(line) for line in lines[1:]}) == 1, "the last step stands under the last column"


def test_a_chart_of_nothing_says_so():
    assert line_chart("entropy", [], []) == "entropy: nothing was recorded"


def test_smoothing_keeps_length_and_constants():
    assert smooth([3.0] * 7, 4) == [3.0] * 7
    assert smooth([0.0, 0.0, 6.0], 3) == [0.0, 0.0, 2.0]
