"""The token dump of a run folder: one parquet file for each optimizer step that is dumped, one line for each token.

A file `tokens/step-000010.parquet` holds every token that the trainer scored in step 10; padding at the end of a row
is left out. Columns and units are in `TOKEN_COLUMNS`; a number that the run does not have (no sampler
log-probabilities, say) is null. On several processes each writes its own rows, to `step-000010.rank1.parquet` and so
on; rank 0 has no suffix. A file is written under a temporary name and renamed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from isentrope.errors import IsentropeError
from isentrope.record import replacing

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from torch import Tensor

MAX_TOKEN_ROWS = 20_000_000  # of one file, in `read_tokens`: about 1 GB in memory; `iter_tokens` has no such bound
GROUP_TOKENS = 2**20  # of a row group: 50 MB, which is what a writer collects
BATCH_TOKENS = 2**16  # that `iter_tokens` gives at a time
STREAMED = {"pre_buffer": False, "buffer_size": 2**20}  # bytes of a column; else pyarrow keeps every group it has read

TOKEN_COLUMNS: dict[str, str] = {
    "step": "int32",  # optimizer step, 1 = the first
    "row": "int64",  # counts completions from the start of the run; the same through all updates on a completion
    "group": "int64",  # counts prompts likewise
    "task": "int32",  # index of the task among the recipe's task names in alphabetical order; null for a single task
    "position": "int32",  # 0 = the first token of the completion
    "token_id": "int32",
    "logp": "float32",  # nats, current policy
    "old_logp": "float32",  # nats, policy that the step improves
    "rollout_logp": "float32",  # nats, as the sampler reported it
    "entropy": "float32",  # nats, exact, current policy
    "advantage": "float32",  # after all shaping
    "weight": "float32",  # dJ/dlogp
    "mask": "bool",  # False: not written by the policy (tool output), no part in the loss
}


def token_path(folder: Path, step: int, rank: int = 0) -> Path:
    """Where the token dump of `step` stands.

    >>> token_path(Path("tokens"), 10).name, token_path(Path("tokens"), 10, rank=1).name
    ('step-000010.parquet', 'step-000010.rank1.parquet')
    """
    return folder / (f"step-{step:06d}.parquet" if rank == 0 else f"step-{step:06d}.rank{rank}.parquet")


class TokenWriter:
    """Collects the micro-batches of an optimizer step and writes them as one parquet file.

    Called as `writer(step, columns)` once per micro-batch: `mask` and `token_id` [B, T], `row` and `group` [B], and as
    many of the other `TOKEN_COLUMNS` as there are. A call with another step writes the step before; `close` writes the
    last one. What is held is bounded: every million tokens go to the temporary file, which gets its name at the end of
    the step. Raises ValueError for a column that is unknown or missing.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self.rank = rank
        self._step: int | None = None
        self._tables: list[pa.Table] = []
        self._files = ExitStack()
        self._file: pq.ParquetWriter | None = None

    def __call__(self, step: int, columns: Mapping[str, Tensor]) -> None:
        _check_token_columns(columns)
        if step != self._step:
            self.close()
            self._step = step
        for part in _parts(columns):
            self._tables.append(_token_table(step, part))
            if sum(table.num_rows for table in self._tables) >= GROUP_TOKENS:
                self._write()

    def close(self) -> None:
        """Write what was collected; nothing where nothing was. The writer can go on with another step."""
        if self._step is None:
            return
        if self._tables:
            self._write()
        self._file = self._step = None
        self._files.close()

    def _write(self) -> None:
        """The collected tokens as row groups. A file that could not be written is removed."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert self._step is not None, "there is a step to write"
        try:
            if self._file is None:
                temporary = self._files.enter_context(replacing(token_path(self.folder, self._step, self.rank)))
                self._file = pq.ParquetWriter(temporary, token_schema(), compression="zstd")
                self._files.enter_context(self._file)
            self._file.write_table(pa.concat_tables(self._tables), row_group_size=GROUP_TOKENS)
            self._tables = []
        except BaseException:
            self._file, self._step, self._tables = None, None, []
            self._files.__exit__(*sys.exc_info())  # raises what the file system's error means
            raise


def _parts(columns: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor]]:
    """The same rows, at most GROUP_TOKENS positions at a time."""
    num_rows, num_positions = columns["mask"].shape
    size = max(1, GROUP_TOKENS // max(1, num_positions))
    for start in range(0, num_rows, size):
        yield {name: value[start : start + size] for name, value in columns.items()}


def _token_table(step: int, columns: Mapping[str, Tensor]) -> pa.Table:
    """One micro-batch, a line per token up to the last unmasked position of its row."""
    import pyarrow as pa
    import torch

    mask = columns["mask"].detach().bool().cpu()
    num_rows, num_positions = mask.shape
    position = torch.arange(num_positions).expand_as(mask)
    length = torch.where(mask, position + 1, 0).amax(dim=1, keepdim=True) if num_positions else torch.zeros(num_rows, 1)
    kept = position < length
    grid = {name: value.detach().cpu() for name, value in columns.items()} | {"mask": mask, "position": position}
    grid |= {"step": torch.full_like(position, step)}
    arrays = []
    for name, kind in TOKEN_COLUMNS.items():
        value = grid.get(name)
        arrays.append(_token_array(value, kept, kind) if value is not None else pa.nulls(int(kept.sum()), _arrow(kind)))
    return pa.Table.from_arrays(arrays, schema=token_schema())


def _check_token_columns(columns: Mapping[str, Tensor]) -> None:
    unknown = set(columns) - set(TOKEN_COLUMNS)
    missing = {"mask", "token_id", "row", "group"} - set(columns)
    if unknown or missing:
        raise ValueError(
            f"token dump: unknown columns {sorted(unknown)}, missing columns {sorted(missing)};"
            f" it takes {list(TOKEN_COLUMNS)}"
        )


def _token_array(value: Tensor, kept: Tensor, kind: str) -> pa.Array:
    import pyarrow as pa

    if value.dim() == 1:
        value = value[:, None]
    flat = value.expand_as(kept)[kept]
    return pa.array((flat.float() if kind == "float32" else flat).numpy()).cast(_arrow(kind))


def _arrow(kind: str) -> pa.DataType:
    import pyarrow as pa

    return {"int32": pa.int32(), "int64": pa.int64(), "float32": pa.float32(), "bool": pa.bool_()}[kind]


def token_schema() -> pa.Schema:
    """The arrow schema of a token dump."""
    import pyarrow as pa

    return pa.schema([(name, _arrow(kind)) for name, kind in TOKEN_COLUMNS.items()])


def token_steps(folder: Path) -> list[int]:
    """The optimizer steps that have a token dump in `folder`, in order."""
    matches = (re.fullmatch(r"step-(\d+)(?:\.rank\d+)?\.parquet", path.name) for path in folder.glob("step-*.parquet"))
    return sorted({int(match[1]) for match in matches if match})


def read_tokens(folder: Path, step: int, columns: list[str] | None = None) -> pa.Table:
    """The token dump of one step, all ranks after one another; `columns` selects (default: all).

    IsentropeError where there is none, it is no parquet file, a column is missing, or it holds more than 20 million
    tokens, which `iter_tokens` reads in parts.
    """
    import pyarrow as pa

    return pa.concat_tables([_read_token_file(path, columns) for path in _files(folder, step)])


def iter_tokens(folder: Path, step: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The token dump of one step in batches of at most 65,536 tokens: memory does not grow with the dump.

    Errors are those of `read_tokens`, without its bound.
    """
    for path in _files(folder, step):
        with _opened(path, columns) as file:
            yield from file.iter_batches(BATCH_TOKENS, columns=columns)


def _files(folder: Path, step: int) -> list[Path]:
    paths = sorted(folder.glob(f"step-{step:06d}*.parquet"))
    if not paths:
        raise IsentropeError(f"{folder} holds no token dump of step {step}; it has {token_steps(folder) or 'none'}")
    return paths


def _read_token_file(path: Path, columns: list[str] | None) -> pa.Table:
    with _opened(path, columns) as file:
        if file.metadata.num_rows > MAX_TOKEN_ROWS:
            raise IsentropeError(f"{path} has {file.metadata.num_rows} rows, more than {MAX_TOKEN_ROWS}")
        return file.read(columns=columns)


@contextmanager
def _opened(path: Path, columns: list[str] | None) -> Iterator[pq.ParquetFile]:
    """An open token dump that has the columns; every error of reading it is an IsentropeError that names the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, **STREAMED) as file:
            missing = set(columns or TOKEN_COLUMNS) - set(file.schema_arrow.names)
            if missing:
                raise IsentropeError(f"{path} has no column {sorted(missing)[0]!r}; it has {file.schema_arrow.names}")
            yield file
    except (OSError, ValueError, pa.ArrowException) as error:
        raise IsentropeError(f"cannot read {path} as a token dump: {error}") from error
