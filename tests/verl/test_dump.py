"""The driver's token dump: the first update on a rollout batch, numbered through the run."""

import pytest
import torch

from isentrope import presets, token_dump
from isentrope.engines.verl_dump import KEY, Dump, dump_of


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 1], [1, 1, 1]], dtype=torch.bool)  # a tool's token within row 2
    logp = -torch.rand(4, 3, generator=generator)
    return {
        "reward": torch.tensor([1.0, 0.0, 0.0, 1.0]),
        "group": torch.tensor([0, 0, 1, 1]),
        "task": torch.tensor([0, 0, 1, 1]),
        "mask": mask,
        "old_logp": logp,
        "rollout_logp": logp + 0.01,
    }


def _written(tmp_path, objective, batch, rollout=3, updates=4):
    prepared, state = objective.prepare(batch, objective.init())
    now = objective.at(state)
    totals = now.count(prepared).scaled(0.5)
    fetched = {"responses": torch.arange(12).reshape(4, 3), "entropy": torch.full((4, 3), 0.5)}
    dump = Dump(str(tmp_path), every=3, updates=updates, prompts=2, rows=4)
    dump.write(rollout, now, prepared, totals, fetched)
    return token_dump.read_tokens(tmp_path, rollout * updates).to_pydict(), now, prepared, totals, fetched


@pytest.mark.parametrize("objective", [presets.grpo, presets.ce_gppo, presets.repo_r])
def test_weights_and_advantages_are_the_objectives_at_ratio_one(tmp_path, batch, objective):
    found, now, prepared, totals, fetched = _written(tmp_path, objective, batch)
    rows = prepared | {"logp": prepared["old_logp"], "entropy": fetched["entropy"]}
    last = torch.where(batch["mask"], torch.arange(3) + 1, 0).amax(-1, keepdim=True)
    kept = torch.arange(3) < last
    assert found["weight"] == pytest.approx(now.weights(rows, totals)[kept].tolist())
    assert found["advantage"] == pytest.approx(now.shaped(rows)[kept].tolist())
    assert any(found["weight"])
    assert found["logp"] == found["old_logp"]
    for name in ("old_logp", "rollout_logp"):
        own = [x for x, is_own in zip(found[name], found["mask"], strict=True) if is_own]
        assert own == pytest.approx(batch[name][batch["mask"]].tolist())
    assert found["entropy"] == [0.5] * 11
    assert found["mask"].count(False) == 1, "the tool's token"
    assert found["token_id"] == torch.arange(12).reshape(4, 3)[kept].tolist()
    assert set(found["task"]) == {0, 1}


def test_rows_and_groups_are_numbered_through_the_run(tmp_path, batch):
    found, *_ = _written(tmp_path, presets.grpo, batch, rollout=3)
    assert sorted(set(found["row"])) == [8, 9, 10, 11]
    assert sorted(set(found["group"])) == [4, 5]
    assert set(found["step"]) == {12}


def test_a_rollout_is_dumped_where_the_recipe_asks():
    dump = Dump("x", every=3, updates=4, prompts=2, rows=4)
    assert [rollout for rollout in range(1, 8) if dump.wants(rollout)] == [3, 6]


def test_without_the_key_nothing_is_dumped():
    fields = {"folder": "x", "every": 3, "updates": 4, "prompts": 2, "rows": 4}
    nested: dict = fields
    for part in reversed(KEY.split(".")):
        nested = {part: nested}
    assert dump_of(nested) == Dump(**fields)
    assert dump_of({"trainer": {"v1": {"trainer_mode": "isentrope"}}}) is None
