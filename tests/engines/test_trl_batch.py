"""Columns out of TRL's dictionaries, and back into them."""

from typing import Any

import pytest
import torch
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

from isentrope import Totals, presets
from isentrope.engines import trl_batch

from .harness import MARKS

pytestmark = MARKS


def test_packed_columns_survive_trls_shuffle_and_split() -> None:
    columns = {"reward": torch.arange(6.0), "mask": torch.rand(6, 3) > 0.5, "shaping.0/mean_old_logp": torch.arange(6)}
    packed = {"prompt_ids": torch.arange(6)[:, None]} | trl_batch.pack(columns, Totals(11.0, 6.0, 2.0))
    parts = split_tensor_dict(shuffle_sequence_dict(packed), 3)
    seen = []
    for part in parts:
        rows, totals = trl_batch.unpack(part)
        assert totals == Totals(11.0, 6.0, 2.0)
        assert set(rows) == set(columns)
        order = part["prompt_ids"][:, 0]
        for name, value in columns.items():
            assert torch.equal(rows[name], value[order])
        seen += order.tolist()
    assert sorted(seen) == list(range(6))


def test_own_rows_lose_the_padding_of_longer_ranks() -> None:
    gathered = {
        "mask": torch.ones(4, 5, dtype=torch.bool),
        "advantage": torch.arange(20.0).view(4, 5),
        "reward": torch.arange(4.0),
    }
    own = trl_batch.own_rows(gathered, rank=1, like=torch.zeros(2, 3))
    assert own["advantage"].tolist() == [[10, 11, 12], [15, 16, 17]]
    assert own["reward"].tolist() == [2, 3]


def test_the_policy_wrote_neither_padding_nor_tool_output() -> None:
    inputs = {"completion_mask": torch.tensor([[1, 1, 1, 0]])}
    assert trl_batch.policy_mask(inputs).tolist() == [[True, True, True, False]]
    inputs["tool_mask"] = torch.tensor([[1, 0, 1, 1]])  # TRL pads with 1
    assert trl_batch.policy_mask(inputs).tolist() == [[True, False, True, False]]


def test_a_reward_that_does_not_apply_counts_as_nothing() -> None:
    nan = torch.nan
    found = trl_batch.weighted_reward(torch.tensor([[1.0, nan], [2.0, 3.0]]), torch.tensor([0.5, 2.0]))
    assert found.tolist() == [0.5, 7.0]
    trl_batch.check_rewards(torch.tensor([[1.0, nan], [nan, 3.0]]), ["a", "b"])


def test_unscored_rows_are_those_without_any_number_and_get_their_groups_mean() -> None:
    nan = torch.nan
    found = trl_batch.unscored_rows(torch.tensor([[1.0, nan], [nan, nan], [nan, 3.0], [nan, nan]]))
    assert found.tolist() == [False, True, False, True]
    reward = trl_batch.neutral_reward(
        torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0, 0.0]), torch.tensor([0, 1, 0, 0, 1, 1]).bool(), 3
    )
    assert reward.tolist() == [1.0, 1.5, 2.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "name", ["grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "ce_gppo", "gepo", "repo_d", "nsr"]
)
def test_a_row_that_is_taken_out_leaves_the_others_as_if_it_had_never_been(name: str) -> None:
    torch.manual_seed(0)
    objective = getattr(presets, name)
    batch = {
        "reward": torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]),
        "group": torch.arange(8) // 4,
        "mask": torch.rand(8, 5) < 0.8,
        "old_logp": -torch.rand(8, 5),
        "old_entropy": torch.rand(8, 5),
        "length_limit": torch.full((8,), 5.0),
        "length_limit_hit": torch.zeros(8, dtype=torch.bool),
    }
    current = {"logp": batch["old_logp"] + 0.5 * torch.randn(8, 5), "entropy": torch.rand(8, 5)}
    lost = torch.tensor([0, 0, 1, 0, 0, 0, 0, 1]).bool()
    batch["reward"] = trl_batch.neutral_reward(batch["reward"], lost, 4)
    found = []
    for columns, kept in (
        (trl_batch.without_rows(batch, lost), ~lost),
        ({n: x[~lost] for n, x in batch.items()}, slice(None)),
    ):
        prepared, state = objective.prepare(columns, objective.init())
        now = objective.at(state)
        rows = prepared | (current if len(columns["mask"]) == 8 else {n: x[~lost] for n, x in current.items()})
        totals = now.count(prepared)
        found.append((now.loss(rows, totals), now.weights(rows, totals)[kept], prepared["advantage"][kept], totals))
        assert totals.rows == 6
    for with_it, without in zip(*(part[:3] for part in found), strict=True):
        assert torch.allclose(with_it, without, rtol=1e-6, atol=1e-7)
    assert found[0][2].abs().max() > 0


def test_task_numbers_follow_first_appearance_and_stay() -> None:
    names = trl_batch.TaskNames(["countdown", "addition"])
    names.add([3, "addition", "sum"])
    assert names.names == ["countdown", "addition", "3", "sum"]
    assert names.ids(["sum", 3, "countdown"], torch.device("cpu")).tolist() == [3, 2, 0]
    again = trl_batch.TaskNames(names.names)
    assert again.ids(["sum"], torch.device("cpu")).tolist() == [3]


@pytest.mark.parametrize(
    ("examples", "expected"),
    [([{"prompt": "a"}], None), ([{"task": None}], None), ([{"task": 1}, {"task": "x"}], [1, "x"])],
)
def test_a_dataset_may_have_tasks(examples: list[dict[str, Any]], expected: Any) -> None:
    assert trl_batch.tasks_of(examples) == expected
