"""The token dump: written whole, read back equal."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from isentrope import token_dump
from isentrope.errors import IsentropeError
from isentrope.readers import _parquet
from isentrope.readers._parquet import ParquetTokens
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


def test_a_large_step_goes_to_disk_in_groups_and_gets_its_name_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(token_dump, "GROUP_TOKENS", 8)  # two rows of a micro-batch at a time
    writer = TokenWriter(tmp_path)
    for first in (0, 3, 6):
        writer(10, _micro_batch(first_row=first))
    assert token_dump.token_steps(tmp_path) == [], "a step is written when it is complete"
    assert sum(table.num_rows for table in writer._tables) < 8
    writer.close()
    with pq.ParquetFile(token_dump.token_path(tmp_path, 10)) as file:
        assert file.metadata.num_row_groups == 2
    assert token_dump.read_tokens(tmp_path, 10).to_pydict()["row"] == [0, 0, 0, 1, 3, 3, 3, 4, 6, 6, 6, 7]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000010.parquet"]


def test_a_step_that_cannot_be_written_leaves_nothing_and_the_writer_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(token_dump, "GROUP_TOKENS", 4)
    writer = TokenWriter(tmp_path)
    writer(10, _micro_batch())

    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(IsentropeError, match=r"cannot write .*step-000010\.parquet: No space left on device"):
            writer(10, _micro_batch())
    assert list(tmp_path.iterdir()) == []
    writer(20, _micro_batch())
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000020.parquet"]


def test_batches_of_a_dump_are_the_whole_of_it_on_all_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(token_dump, "BATCH_TOKENS", 3)
    for rank in (0, 1):
        writer = TokenWriter(tmp_path, rank)
        writer(10, _micro_batch(first_row=3 * rank))
        writer.close()
    batches = list(token_dump.iter_tokens(tmp_path, 10, ["row", "logp"]))
    assert [batch.num_rows for batch in batches] == [3, 1, 3, 1]
    whole = token_dump.read_tokens(tmp_path, 10, ["row", "logp"])
    assert str(pa.Table.from_batches(batches).to_pydict()) == str(whole.to_pydict())  # NaN is not equal to itself
    with pytest.raises(IsentropeError, match="has no column 'reward'"):
        list(token_dump.iter_tokens(tmp_path, 10, ["reward"]))
    with pytest.raises(IsentropeError, match="no token dump of step 3"):
        list(token_dump.iter_tokens(tmp_path, 3))


def test_what_was_read_of_a_dump_is_let_go(tmp_path, monkeypatch):
    """Arrow's own count of bytes is exact, so that the groups kept by a reader show."""
    for module, name in ((token_dump, "GROUP_TOKENS"), (token_dump, "BATCH_TOKENS"), (_parquet, "BATCH_ROWS")):
        monkeypatch.setattr(module, name, 2**14)
    writer = TokenWriter(tmp_path)
    columns = {"mask": torch.ones(2**18, 1, dtype=torch.bool), "token_id": torch.randint(99, (2**18, 1))}
    columns |= {"row": torch.arange(2**18), "group": torch.arange(2**18), "logp": torch.randn(2**18, 1)}
    writer(1, columns | {name: torch.randn(2**18, 1) for name in ("old_logp", "entropy", "weight")})
    writer.close()
    size = token_dump.token_path(tmp_path, 1).stat().st_size
    names = {name: name for name in token_dump.TOKEN_COLUMNS}
    for batches in (
        token_dump.iter_tokens(tmp_path, 1),
        ParquetTokens((token_dump.token_path(tmp_path, 1),), names).batches(),
    ):
        before = pa.total_allocated_bytes()
        held = [pa.total_allocated_bytes() - before for _ in batches]
        assert len(held) == 16
        assert max(held) < size / 2
