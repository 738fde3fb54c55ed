"""Pooled metrics: token means over everything since the last line, whatever the split."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from isentrope.engines.trl_metrics import MetricPool

from .harness import MARKS

pytestmark = MARKS
ALONE = SimpleNamespace(num_processes=1, device=torch.device("cpu"), reduce=lambda x, **_: x, gather=lambda x: x)


def number(x: float) -> Tensor:
    return torch.tensor(x)


def test_means_are_sums_over_sums_and_not_means_of_means() -> None:
    pool = MetricPool()
    pool.mean("entropy", number(3.0), number(1.0))
    pool.mean("entropy", number(1.0), number(3.0))
    assert pool.flush(ALONE) == {"entropy": 1.0}  # the mean of means would be 1.67
    assert pool.flush(ALONE) == {}


def test_a_name_without_tokens_is_left_out() -> None:
    pool = MetricPool()
    pool.mean("entropy/a", number(0.0), number(0.0))
    pool.mean("entropy/b", number(1.0), 2.0)
    assert pool.flush(ALONE) == {"entropy/b": 0.5}


def test_extremes_go_over_all_micro_batches() -> None:
    pool = MetricPool()
    for values in ([0.5, 0.2], [], [0.9]):
        pool.extreme("low", torch.tensor(values), "min")
        pool.extreme("high", torch.tensor(values), "max")
    assert pool.flush(ALONE) == pytest.approx({"low": 0.2, "high": 0.9})


def test_small_shares_survive_a_long_window() -> None:
    pool = MetricPool()
    pool.mean("share", number(0.0), number(2.0**25))
    for _ in range(8):
        pool.mean("share", number(1.0), number(1.0))  # float32 would drop the denominators' ones
    assert pool.flush(ALONE)["share"] == 8 / (2**25 + 8)


def test_a_saved_pool_goes_on() -> None:
    pool, later = MetricPool(), MetricPool()
    pool.mean("entropy", number(3.0), number(1.0))
    pool.extreme("low", torch.tensor([0.2]), "min")
    later.load(pool.state(), torch.device("cpu"))
    for p in (pool, later):
        p.mean("entropy", number(1.0), number(3.0))
        p.extreme("low", torch.tensor([0.1]), "min")
    assert later.flush(ALONE) == pool.flush(ALONE) == pytest.approx({"entropy": 1.0, "low": 0.1})
