"""The token dump: written whole, read back equal."""

import pytest
import torch

from isentrope import token_dump
from isentrope.errors import IsentropeError
from isentrope.token_dump import TokenWriter


def _micro_batch(first_row=0, **more):
    mask = torch.tensor([[True, False, True, False], [True, False, False, False], [False, False, False, False]])
    logp = torch.where(mask, torch.arange(12.0).view(3, 4) / -8, torch.nan)
    return {
        "mask": mask,
        "token_id": torch.arange(12).view(3, 4),
        "row": torch.arange(3) + first_row,
        "group": torch.tensor([4, 4, 5]),
        "logp": logp.requires_grad_(),
        **more,
    }


def test_tokens_read_back_one_line_a_position_up_to_the_last_token(tmp_path):
    writer = TokenWriter(tmp_path)
    writer(10, _micro_batch())
    writer(10, _micro_batch(first_row=3, task=torch.tensor([1, 1, 0])) | {"task": torch.tensor([1, 1, 0])})
    assert token_dump.token_steps(tmp_path) == [], "a step is written when it is complete"
    writer.close()
    table = token_dump.read_tokens(tmp_path, 10).to_pydict()
    assert list(table) == list(token_dump.TOKEN_COLUMNS)
    assert table["row"] == [0, 0, 0, 1, 3, 3, 3, 4]
    assert table["position"] == [0, 1, 2, 0] * 2
    assert table["mask"] == [True, False, True, True] * 2
    assert table["token_id"] == [0, 1, 2, 4] * 2
    assert table["step"] == [10] * 8
    assert table["group"] == [4] * 8
    assert table["logp"][0] == 0.0
    assert table["logp"][2:4] == [-0.25, -0.5]
    assert table["task"] == [None] * 4 + [1] * 4
    assert table["weight"] == [None] * 8


def test_another_step_writes_the_one_before(tmp_path):
    writer = TokenWriter(tmp_path)
    writer(10, _micro_batch())
    writer(20, _micro_batch())
    assert token_dump.token_steps(tmp_path) == [10]
    writer.close()
    writer.close()
    assert token_dump.token_steps(tmp_path) == [10, 20]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_ranks_write_files_of_their_own_and_are_read_together(tmp_path):
    for rank in (0, 1):
        writer = TokenWriter(tmp_path, rank)
        writer(10, _micro_batch(first_row=3 * rank))
        writer.close()
    assert token_dump.token_steps(tmp_path) == [10]
    assert token_dump.read_tokens(tmp_path, 10, ["row"]).to_pydict() == {"row": [0, 0, 0, 1, 3, 3, 3, 4]}


def test_bfloat16_columns_and_rows_without_tokens_are_written(tmp_path):
    writer = TokenWriter(tmp_path)
    writer(1, _micro_batch() | {"entropy": torch.ones(3, 4, dtype=torch.bfloat16)})
    writer(1, {name: value[:, :0] if value.dim() == 2 else value for name, value in _micro_batch().items()})
    writer.close()
    assert token_dump.read_tokens(tmp_path, 1).to_pydict()["entropy"] == [1.0] * 4


def test_token_columns_that_are_unknown_or_missing_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"unknown columns \['logprob'\]"):
        TokenWriter(tmp_path)(1, _micro_batch(logprob=torch.ones(3, 4)))
    with pytest.raises(ValueError, match=r"missing columns \['mask'\]"):
        TokenWriter(tmp_path)(1, {"token_id": torch.ones(1, 1), "group": torch.ones(1), "row": torch.ones(1)})


def test_reading_tokens_names_what_is_wrong(tmp_path, monkeypatch):
    with pytest.raises(IsentropeError, match="no token dump of step 3; it has none"):
        token_dump.read_tokens(tmp_path, 3)
    token_dump.token_path(tmp_path, 3).write_bytes(b"no parquet")
    with pytest.raises(IsentropeError, match=r"cannot read .*step-000003\.parquet as a token dump"):
        token_dump.read_tokens(tmp_path, 3)
    writer = TokenWriter(tmp_path)
    writer(3, _micro_batch())
    writer.close()
    with pytest.raises(IsentropeError, match="has no column 'reward'"):
        token_dump.read_tokens(tmp_path, 3, ["reward"])
    monkeypatch.setattr(token_dump, "MAX_TOKEN_ROWS", 3)
    with pytest.raises(IsentropeError, match="4 rows, more than 3"):
        token_dump.read_tokens(tmp_path, 3)
