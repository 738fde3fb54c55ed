"""Parquet of unknown origin, in batches of bounded size: rows as dicts, and tokens as flat tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isentrope.errors import IsentropeError
from isentrope.token_dump import STREAMED, TOKEN_COLUMNS

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from torch import Tensor

BATCH_ROWS = 65_536  # some 10 MB of a token table


@contextmanager
def opened(path: Path) -> Iterator[pq.ParquetFile]:
    """An open parquet file; every error of reading it is an IsentropeError that names the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, **STREAMED) as file:
            yield file
    except (OSError, ValueError, pa.ArrowException) as error:
        raise IsentropeError(f"cannot read {path} as parquet: {error}") from error


def column_names(path: Path) -> list[str]:
    """The names of a file's columns."""
    with opened(path) as file:
        return list(file.schema_arrow.names)


def rows(path: Path, columns: Sequence[str], batch_rows: int = 1024) -> Iterator[dict[str, Any]]:
    """The rows of some columns as dicts."""
    with opened(path) as file:
        for batch in file.iter_batches(batch_rows, columns=list(columns)):
            yield from batch.to_pylist()


@dataclass(frozen=True)
class ParquetTokens:
    """Tokens in parquet files. names: {ours: the file's column}; a file without `step` is of `step_of[path]`."""

    paths: tuple[Path, ...]
    names: Mapping[str, str]
    step_of: Mapping[Path, int] | None = None

    def batches(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Step and unmasked tokens, at most BATCH_ROWS at a time."""
        for path in self.paths:
            with opened(path) as file:
                present = set(file.schema_arrow.names)
                wanted = {ours: theirs for ours, theirs in self.names.items() if theirs in present}
                for batch in file.iter_batches(BATCH_ROWS, columns=list(wanted.values())):
                    yield from self._parts(path, {ours: batch.column(theirs) for ours, theirs in wanted.items()})

    def _parts(self, path: Path, arrays: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """A batch cut by step, without masked tokens."""
        columns = {name: found for name, array in arrays.items() if (found := _tensor(path, name, array)) is not None}
        mask = columns.pop("mask", None)
        if mask is not None:
            columns = {name: column[mask] for name, column in columns.items()}
        step = columns.pop("step", None)
        if step is None:
            if columns and self.step_of:
                yield self.step_of[path], columns
            return
        for one in sorted(set(step.tolist())):
            yield int(one), {name: column[step == one] for name, column in columns.items()}


def _tensor(path: Path, name: str, array: Any) -> Tensor | None:
    """A flat tensor, NaN for null in numbers; None for whole numbers that are null, which say nothing."""
    import pyarrow as pa
    import torch

    kind = TOKEN_COLUMNS.get(name, "float32")
    try:
        if kind == "float32":
            values = array.cast(pa.float32(), safe=False).fill_null(float("nan"))
        elif array.null_count:
            return None if name != "mask" else torch.tensor(array.fill_null(False).to_pylist(), dtype=torch.bool)
        else:
            values = array.cast(pa.bool_() if kind == "bool" else pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise IsentropeError(f"{path}: column {name!r} does not hold {kind}: {error}") from error
    return torch.tensor(values.to_numpy(zero_copy_only=False).copy())
