"""Means over seeds: Student's intervals, checked against tables and by coverage."""

import math

import pytest
import torch

from isentrope import seeds


@pytest.mark.parametrize(
    ("freedom", "expected"),
    # two-sided 95 % and 99 % points of Student's t, from printed tables
    [(1, (12.706, 63.657)), (2, (4.303, 9.925)), (3, (3.182, 5.841)), (4, (2.776, 4.604)), (10, (2.228, 3.169))],
)
def test_quantiles_are_those_of_the_tables(freedom: int, expected: tuple[float, float]) -> None:
    assert [round(seeds.quantile(p, freedom), 3) for p in (0.975, 0.995)] == list(expected)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8])
def test_the_distribution_function_is_the_integral_of_the_density(freedom: int) -> None:
    """By trapezoids on [0, 1.5]: gamma((n+1)/2) / (sqrt(n pi) gamma(n/2)) (1 + t^2/n)^(-(n+1)/2)."""
    t = torch.linspace(0, 1.5, 20_001, dtype=torch.float64)
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    area = torch.trapezoid(scale * (1 + t.square() / freedom) ** (-(freedom + 1) / 2), t)
    assert seeds.cumulative(1.5, freedom) == pytest.approx(0.5 + float(area), abs=1e-8)
    assert seeds.cumulative(-1.5, freedom) == pytest.approx(0.5 - float(area), abs=1e-8)


def test_an_interval_by_hand() -> None:
    """s = 1, n = 3: 4.303 / sqrt(3) = 2.484 on either side."""
    found = seeds.estimate([1.0, 2.0, 3.0])
    assert (found.mean, round(found.half, 3)) == (2.0, 2.484)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    drawn = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3
    found = [seeds.estimate(row) for row in drawn.tolist()]
    covered = sum(one.low <= 3 <= one.high for one in found) / len(found)
    assert covered == pytest.approx(0.95, abs=0.015)


def test_what_makes_a_seed_hard_for_both_cancels() -> None:
    first, second = [0.1, 0.5, 0.9], [0.21, 0.6, 1.0]
    apart = seeds.difference(first, second)
    assert apart.is_above(0.08)
    assert not seeds.estimate(second).is_above(seeds.estimate(first).mean)
    with pytest.raises(ValueError, match="2 and 1 runs; pair those of the same seeds"):
        seeds.difference([1.0, 2.0], [1.0])


def test_figures_that_a_run_lacks_are_left_out() -> None:
    assert seeds.estimate([1.0, math.nan, 3.0]).count == 2
    alone = seeds.estimate([1.0])
    assert alone.mean == 1
    assert math.isnan(alone.low)
    assert not alone.is_above(0)
    assert seeds.estimate([]).count == 0


@pytest.mark.parametrize(("p", "freedom"), [(0.5, 3), (1.0, 3), (0.9, 0)])
def test_quantiles_out_of_range_are_refused(p: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="it takes p in"):
        seeds.quantile(p, freedom)
