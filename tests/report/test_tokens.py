"""Which tokens a report shows, and with which numbers."""

import math

import pytest
import torch

from isentrope.report import tokens
from isentrope.report.data import RunData, load
from isentrope.report.tokens import Budget
from isentrope.token_dump import TokenWriter

from . import synthetic


def dump(folder, **columns):
    """A run with one dumped step, of the given columns [B, T]."""
    shape = next(x.shape for x in columns.values() if x.ndim == 2)
    defaults = {
        "mask": torch.ones(shape, dtype=torch.bool),
        "token_id": torch.zeros(shape, dtype=torch.int32),
        "row": torch.arange(shape[0]),
        "group": torch.zeros(shape[0], dtype=torch.int64),
    }
    writer = TokenWriter(folder)
    writer(5, defaults | columns)
    writer.close()
    return RunData("a", folder.parent, tokens=folder, dumped=(5,))


def items(run, budget=10_000):
    (view,) = tokens.readable([run], Budget(tokens=budget))
    return view["steps"][0]["items"]


def test_numbers_of_a_completion_are_those_of_the_dump(tmp_path):
    logp = torch.tensor([[-0.5, -1.0, -2.0], [-0.25, math.nan, -math.inf]])
    run = dump(tmp_path / "tokens", logp=logp, advantage=torch.tensor([1.5, -2.0])[:, None].expand(2, 3))
    first, second = items(run)
    assert first["logp"] == [-0.5, -1, -2]
    assert second["logp"] == [-0.25, None, None]
    assert (first["advantage"], second["advantage"]) == (1.5, -2)
    assert "entropy" not in first
    assert (first["row"], second["row"], first["cut"]) == (0, 1, 0)


def test_tokens_that_the_policy_did_not_write_are_marked(tmp_path):
    mask = torch.tensor([[True, False, True]])
    (item,) = items(dump(tmp_path / "tokens", mask=mask, logp=torch.zeros(1, 3)))
    assert item["outside"] == [1]


def test_ranks_and_micro_batches_in_any_order_give_whole_completions(tmp_path):
    shape = (2, 3)
    for rank, row in ((0, 3), (1, 1)):
        writer = TokenWriter(tmp_path, rank)
        rows = torch.tensor([row, row - 1])
        ids = 10 * rows[:, None] + torch.arange(3)
        writer(5, {"mask": torch.ones(shape, dtype=torch.bool), "token_id": ids, "row": rows, "group": rows // 2})
        writer.close()
    found = items(RunData("a", tmp_path, tokens=tmp_path, dumped=(5,)))
    assert [(item["row"], item["ids"]) for item in found] == [(i, [10 * i, 10 * i + 1, 10 * i + 2]) for i in range(4)]


def test_a_long_completion_is_cut_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "MAX_ROW_TOKENS", 4)
    (item,) = items(dump(tmp_path / "tokens", logp=torch.zeros(1, 10)))
    assert (len(item["ids"]), item["cut"]) == (4, 6)


def test_a_budget_gives_whole_blocks_spread_over_the_step(tmp_path):
    run = dump(tmp_path / "tokens", logp=torch.zeros(64, 10))
    assert [item["row"] for item in items(run, budget=160)] == [*range(8), *range(32, 40)]
    assert len(items(run, budget=1)) == 1
    assert len(items(run)) == 64


@pytest.mark.parametrize("size", [1, 7, 10, 64])
def test_the_size_of_the_batches_does_not_matter(size, tmp_path, monkeypatch):
    rows = torch.randperm(40)
    columns = {"logp": -torch.rand(40, 9), "weight": torch.randn(40, 9) * (torch.rand(40, 9) > 0.3)}
    run = dump(tmp_path / "tokens", row=rows, group=rows // 4, mask=torch.rand(40, 9) > 0.2, **columns)
    whole = [tokens.readable([run], Budget(tokens=150)), tokens.scatters([run], Budget(points=50))]
    monkeypatch.setattr("isentrope.token_dump.BATCH_TOKENS", size)
    assert [tokens.readable([run], Budget(tokens=150)), tokens.scatters([run], Budget(points=50))] == whole
    assert len(whole[0][0]["steps"][0]["items"]) >= 8
    assert whole[1][0].series


def test_the_scatter_is_bounded_spread_and_counts_what_there_was(tmp_path):
    run = dump(tmp_path / "tokens", logp=-torch.rand(50, 20), weight=torch.randn(50, 20))
    (chart,) = tokens.scatters([run], Budget(points=100))
    shown = sum(len(series.x) for series in chart.series)
    assert 50 < shown <= 100
    assert chart.notes == (f"{shown} of 1000 tokens with a weight, evenly spread over the dumped steps",)


def test_quadrants_follow_the_sign_of_the_advantage_and_of_logp_plus_entropy(tmp_path):
    columns = {
        "logp": torch.tensor([[-0.25, -2.0, -0.25, -2.0]]),
        "entropy": torch.full((1, 4), 1.0),
        "advantage": torch.tensor([[1.0, 1.0, -1.0, -1.0]]),
        "weight": torch.tensor([[0.5, 0.25, -0.5, -0.25]]),
    }
    (chart,) = tokens.scatters([dump(tmp_path / "tokens", **columns)], Budget())
    found = {series.name: (series.x, series.y) for series in chart.series}
    likely, unlikely = pytest.approx([math.exp(-0.25)]), pytest.approx([math.exp(-2)])
    assert found == {
        "PA&HP": (likely, [0.5]),
        "PA&LP": (unlikely, [0.25]),
        "NA&HP": (likely, [-0.5]),
        "NA&LP": (unlikely, [-0.25]),
    }


def test_tokens_without_weight_or_outside_the_mask_are_no_points(tmp_path):
    columns = {
        "logp": torch.tensor([[-1.0, math.nan, -1.0, -1.0]]),
        "weight": torch.tensor([[0.0, 1.0, 1.0, 1.0]]),
        "mask": torch.tensor([[True, True, False, True]]),
    }
    (chart,) = tokens.scatters([dump(tmp_path / "tokens", **columns)], Budget())
    assert sum(len(series.x) for series in chart.series) == 1


def test_a_dump_without_weights_says_so(tmp_path):
    (chart,) = tokens.scatters([dump(tmp_path / "tokens", logp=torch.zeros(1, 3))], Budget())
    assert chart.series == ()
    assert "no token with a weight" in chart.missing


def test_tasks_of_the_dump_get_the_names_of_the_recipe(tmp_path):
    (run,) = load([synthetic.write_run(tmp_path / "mine")])
    (view,) = tokens.readable([run], Budget())
    assert {item["task"] for item in view["steps"][0]["items"]} == {"addition", "countdown"}
    assert [step["step"] for step in view["steps"]] == [20, 40]
