"""Reading runs that anybody made: `read(path)` finds out what is there and returns `isentrope.run.Run` values.

| what | module |
| --- | --- |
| our run folder | `folder` |
| TRL: `trainer_state.json`, a checkpoint or an output folder | `trl`; its completion dumps: `completions` |
| verl: file logger (JSON Lines) | `table`; rollout dumps: `completions` |
| ms-swift: `logging.jsonl` | `table` |
| prime-rl: token exports | `prime_rl` |
| slime: debug dumps | `slime` |
| TensorBoard event files, whoever wrote them | `tensorboard` |
| W&B exports; CSV, JSON, JSON Lines, parquet of any names with a column map | `table` |

All files are taken as untrusted: lines and files are bounded, no code in them is run, and what is malformed ends in an
IsentropeError that names file and line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from isentrope.errors import IsentropeError
from isentrope.readers import completions, folder, prime_rl, slime, table, tensorboard, trl, wandb
from isentrope.run import Run, merge

__all__ = ["read"]

KNOWN = (
    "a run folder of isentrope, a trainer_state.json or TRL output folder, verl's file log or rollout folder,"
    " prime-rl's token exports, dumps of slime, ms-swift's logging.jsonl, TensorBoard events, CSV, JSON, JSONL, parquet"
)
MAX_RUNS = 200  # in one folder of folders


def read(path: Path, column: Mapping[str, str] | None = None, allow_pickle: bool = False) -> list[Run]:
    """The runs at `path`, one or more.

    column: {our name: the file's column} for tables. allow_pickle: open torch files that hold more than tensors and
    plain values, which runs code that they contain.
    IsentropeError where there is nothing, nothing known, or something malformed.
    """
    given = dict(column or {})
    try:
        if not path.exists():
            raise IsentropeError(f"there is no {path}")
        found = _read_folder(path, given, allow_pickle) if path.is_dir() else _read_file(path, given, allow_pickle)
    except OSError as error:
        raise IsentropeError(f"cannot read {error.filename or path}: {error.strerror or error}") from error
    if not found:
        raise IsentropeError(f"{path} holds nothing that is known here; known are {KNOWN}")
    return found


def _read_file(path: Path, given: Mapping[str, str], allow_pickle: bool) -> list[Run]:
    wandb.refuse_binary(path)
    if tensorboard.MARK in path.name:
        return [tensorboard.read(path, given)]
    if path.name == trl.STATE:
        return [trl.read(path, given)]
    if path.suffix in slime.SUFFIXES:
        return [slime.read([path], path.stem, allow_pickle)]
    if path.suffix in table.SUFFIXES:
        return table.read(path, given)
    raise IsentropeError(f"{path} is of no known kind; known are {KNOWN}")


def _read_folder(path: Path, given: Mapping[str, str], allow_pickle: bool) -> list[Run]:
    if folder.is_run_folder(path):
        return [folder.read(path, given)]
    return _logs(path, given) or _others(path, given, allow_pickle) or _inner(path, given, allow_pickle)


def _logs(path: Path, given: Mapping[str, str]) -> list[Run]:
    """Runs of the metric logs in a folder; dumps of completions beside a single log are part of its run."""
    state = trl.state_file(path)
    files = [] if state else [p for p in sorted(path.glob("*.jsonl")) if not p.stem.isdecimal() and table.is_metrics(p)]
    logs = [trl.read(state, given)] if state else [run for file in files for run in table.read(file, given)]
    dumps = _completion_dumps(path)
    if len(logs) == 1:
        return [_named(merge([logs[0], *dumps]), path)]
    return logs or [_named(run, path) for run in dumps]


def _completion_dumps(path: Path) -> list[Run]:
    found = []
    if files := completions.trl_files(path):
        found.append(completions.read_trl(files, path.name))
    if files := completions.verl_files(path):
        found.append(completions.read_verl(files, path.name))
    return found


def _others(path: Path, given: Mapping[str, str], allow_pickle: bool) -> list[Run]:
    """Token exports, event files, tables and dumps, the first kind that is there."""
    if files := prime_rl.export_files(path):
        return [prime_rl.read(files, path.name)]
    if folders := tensorboard.event_folders(path):
        return [_named(tensorboard.read(inner, given), inner) for inner in folders[:MAX_RUNS]]
    wandb.refuse_binary(path)
    if files := [p for p in sorted(path.iterdir()) if p.suffix in (".csv", ".parquet")]:
        return [run for file in files for run in table.read(file, given)]
    if files := slime.dump_files(path):
        return [slime.read(files, path.name, allow_pickle)]
    return []


def _inner(path: Path, given: Mapping[str, str], allow_pickle: bool) -> list[Run]:
    """The runs of the folders in a folder of runs; what is not known in it is passed over."""
    found: list[Run] = []
    for inner in sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))[:MAX_RUNS]:
        if folder.is_run_folder(inner):
            found.append(folder.read(inner, given))
        else:
            found += _logs(inner, given) or _others(inner, given, allow_pickle)
    return found


def _named(run: Run, path: Path) -> Run:
    return replace(run, name=path.name or str(path.resolve().name))
