"""Tables of numbers over steps: verl's file logger, ms-swift's `logging.jsonl`, W&B exports, and anybody's own.

CSV with a line of names, JSON Lines, a JSON array of objects (or an object of arrays), and parquet. A column map
{ours: theirs} says which column is what where the names are not known ones. A table that has a line a token instead
of a line a step (columns such as `old_logp`, `position`) is read as tokens, in batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isentrope.errors import IsentropeError
from isentrope.readers import _keys, _parquet, _text, completions, prime_rl, trl
from isentrope.readers._parquet import ParquetTokens
from isentrope.run import Facts, Run, curves
from isentrope.token_dump import TOKEN_COLUMNS

if TYPE_CHECKING:
    from torch import Tensor

Row = tuple[str, Mapping[str, Any]]  # where it stands, its values
Rows = Callable[[], Iterator[Row]]

SUFFIXES = (".csv", ".jsonl", ".json", ".parquet")
SWIFT_STEP = "global_step/max_steps"
TOKEN_MARKS = {"logp", "old_logp", "rollout_logp", "weight", "token_id"}  # no curve has such a name
EXPORT = re.compile(r"(?P<run>.+) - (?P<metric>.+)")  # how W&B's charts name the columns of their CSV
BOUNDS = re.compile(r"__(MIN|MAX)$")
BATCH_ROWS = 8192


def read(path: Path, given: Mapping[str, str]) -> list[Run]:
    """The runs of one file: one, or as many as a W&B chart's CSV shows."""
    if path.suffix == ".parquet":
        return [_parquet_run(path, given)]
    if path.suffix == ".csv":
        return _csv_runs(path, given)
    if path.suffix == ".json":
        return [_json_run(path, given)]
    return [_lines_run(path, given)]


def is_metrics(path: Path) -> bool:
    """Whether a JSON Lines file looks like a log of metrics: its first line is an object with a step."""
    try:
        first = next(_text.objects(path), None)
    except IsentropeError:
        return False
    return first is not None and not prime_rl.is_export(first[1]) and _text.step_name(_flat(first[1])) is not None


# -- by kind of file --------------------------------------------------------------------------------


def _lines_run(path: Path, given: Mapping[str, str]) -> Run:
    first = next(_text.objects(path), None)
    if first is None:
        raise IsentropeError(f"{path} holds no lines")
    _, row = first
    if prime_rl.is_export(row):
        return prime_rl.read([path], path.stem)
    if {"input", "output", "score"} <= row.keys() and path.stem.isdecimal():
        return completions.read_verl([path], path.stem)

    def rows() -> Iterator[Row]:
        return ((f"{path} line {n}", _flat(row)) for n, row in _text.objects(path) if _is_step(row))

    return _run(path, rows, given)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of verl's file logger lie under "data"; ms-swift has the step in a text "12/100"."""
    data = row.get("data")
    flat = {**data, "step": row.get("step")} if isinstance(data, dict) else dict(row)
    if SWIFT_STEP in flat and "step" not in flat:
        flat["step"] = flat[SWIFT_STEP]
    return flat


def _is_step(row: Mapping[str, Any]) -> bool:
    """False for what loggers add at the end: a summary, the path of the best checkpoint, an evaluation."""
    return trl.is_step(row) and "last_model_checkpoint" not in row


def _json_run(path: Path, given: Mapping[str, str]) -> Run:
    value = _text.document(path)
    if isinstance(value, dict) and "log_history" in value:
        return trl.read(path, given)
    if isinstance(value, dict) and value and all(isinstance(column, list) for column in value.values()):
        value = [dict(zip(value, cells, strict=False)) for cells in zip(*value.values(), strict=False)]
    if not isinstance(value, list) or not value or not all(isinstance(row, dict) for row in value):
        raise IsentropeError(f"{path} is neither a list of objects nor an object of equally long lists")
    return _run(path, lambda: ((f"{path} entry {i}", _flat(row)) for i, row in enumerate(value)), given)


def _parquet_run(path: Path, given: Mapping[str, str]) -> Run:
    if completions.TRL_FILE.search(path.name):
        return completions.read_trl([path], path.stem)
    names = _parquet.column_names(path)

    def rows() -> Iterator[Row]:
        return ((f"{path} row {i}", row) for i, row in enumerate(_parquet.rows(path, names)))

    tokens = _token_names(names, given)
    if tokens:
        return Run(path.stem, tokens=ParquetTokens((path,), tokens, {path: 0}), sources=(path.name,))
    return _run(path, rows, given)


def _csv_runs(path: Path, given: Mapping[str, str]) -> list[Run]:
    first = next(_text.csv_rows(path), None)
    if first is None:
        raise IsentropeError(f"{path} holds no line of numbers below its line of names")
    exported = sorted({m["run"] for name in first[1] if (m := EXPORT.fullmatch(name)) and not BOUNDS.search(name)})

    def rows(run: str = "") -> Iterator[Row]:
        prefix = f"{run} - " if run else ""
        for number, row in _text.csv_rows(path):
            if any(cell and name.startswith(prefix) for name, cell in row.items()):
                yield f"{path} line {number}", {name.removeprefix(prefix): x for name, x in row.items()}

    if not exported:
        return [_run(path, rows, given)]
    return [replace(_run(path, lambda run=run: rows(run), given), name=run) for run in exported]  # type: ignore[misc]


# -- rows to curves or tokens -----------------------------------------------------------------------


def _run(path: Path, rows: Rows, given: Mapping[str, str]) -> Run:
    names = {name: None for _, row in islice(rows(), 1000) for name in row}
    if tokens := _token_names(names, given):
        return Run(path.stem, tokens=RowTokens(rows, tokens), sources=(path.name,))
    engine = _keys.engine_of(names)
    step = _text.step_name(names, given.get("step"))
    if step is None or step not in names:
        raise IsentropeError(
            f"{path} has no column {step or 'for the step'!r}; it has {', '.join(sorted(names)[:12])}."
            " Say which counts the steps with --column step=NAME"
        )
    chosen = _keys.plan(names, engine, {ours: theirs for ours, theirs in given.items() if ours != "step"})
    _require(path, chosen, given, names)
    theirs = next((name for name, ours in chosen.items() if ours == "entropy"), None)
    return Run(
        name=path.stem,
        engine=engine,
        series=curves(_points(rows(), step, chosen), str(path)),
        facts=Facts(entropy_kind=_keys.entropy_kind(engine, theirs)),
        sources=(f"{path.name} ({len(chosen)} known columns of {len(names)})",),
    )


def _require(path: Path, chosen: Mapping[str, str], given: Mapping[str, str], names: Mapping[str, None]) -> None:
    missing = [theirs for theirs in given.values() if theirs not in names]
    if missing:
        raise IsentropeError(f"{path} has no column {missing[0]!r}; it has {', '.join(sorted(names)[:12])}")
    if not chosen:
        raise IsentropeError(
            f"{path}: no column has a known name ({', '.join(sorted(names)[:12])});"
            " say which is what, such as --column entropy=policy_entropy --column reward=score"
        )


def _points(rows: Iterable[Row], step: str, chosen: Mapping[str, str]) -> Iterator[tuple[float, dict[str, float]]]:
    for where, row in rows:
        found = {ours: x for name, ours in chosen.items() if (x := _text.number(row.get(name))) is not None}
        if found:
            yield _text.step_of(row, step, where), found


def _token_names(names: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Which column of a token table is which of ours; empty for a table of metrics."""
    have = set(names)
    mapped = {ours: theirs for ours, theirs in given.items() if ours in TOKEN_COLUMNS}
    found = {ours: mapped.get(ours, ours) for ours in TOKEN_COLUMNS}
    found = {ours: theirs for ours, theirs in found.items() if theirs in have}
    return found if TOKEN_MARKS & found.keys() else {}


@dataclass(frozen=True)
class RowTokens:
    """Tokens of a CSV, JSON or JSON Lines table, a line a token; `names` as in `ParquetTokens`."""

    rows: Rows
    names: Mapping[str, str]

    def batches(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Step and unmasked tokens of at most BATCH_ROWS lines; a table without steps is step 0."""
        rows = self.rows()
        while batch := list(islice(rows, BATCH_ROWS)):
            by_step: dict[int, list[Mapping[str, Any]]] = {}
            for where, row in batch:
                step = int(_text.step_of(row, self.names["step"], where)) if "step" in self.names else 0
                by_step.setdefault(step, []).append(row)
            for step, some in by_step.items():
                yield step, self._columns(some)

    def _columns(self, rows: list[Mapping[str, Any]]) -> dict[str, Tensor]:
        import torch

        columns = {
            ours: torch.tensor([_cell(row.get(theirs)) for row in rows])
            for ours, theirs in self.names.items()
            if ours != "step"
        }
        mask = columns.pop("mask", None)
        for name in [name for name in columns if TOKEN_COLUMNS[name] != "float32"]:
            whole = columns.pop(name)
            if bool(torch.isfinite(whole).all()):  # a whole number that is missing says nothing
                columns[name] = whole.long()
        return columns if mask is None else {name: column[mask > 0] for name, column in columns.items()}


def _cell(value: Any) -> float:
    if isinstance(value, bool) or value in ("True", "true", "False", "false"):
        return float(value in (True, "True", "true"))
    found = _text.number(value)
    return float("nan") if found is None else found
