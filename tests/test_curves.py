import math

import pytest

from isentrope.curves import correlation, cumulative_entropy


def test_cumulative_entropy_is_the_area_under_the_curve() -> None:
    assert cumulative_entropy([2.0, 1.0, math.nan, 1.0], [0, 10, 15, 20]) == pytest.approx(15 + 10)


def test_correlation_ignores_gaps_and_says_when_it_cannot_tell() -> None:
    assert correlation([1, 2, 3, math.nan], [2, 4, 6, 0]) == pytest.approx(1.0)
    assert math.isnan(correlation([1, 2], [2, 4]))
    assert math.isnan(correlation([1, 1, 1], [2, 4, 6]))
