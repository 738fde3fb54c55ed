"""The run folder: what a training run leaves on disk, who writes it, and how to read it back.

    run/
      recipe.toml                  the recipe as resolved: every default and every `--set` written out
      versions.json                isentrope, python, torch, transformers, trl, verl, platform; seed; starting time
      metrics.jsonl                one JSON object per optimizer step
      evaluation-before.json       the report on held-out problems before the first step, and after the last one
      evaluation-after.json
      evaluation-step-320.json     the same at the end of a stage, where the recipe lists stages
      summary.json                 what the command printed at the end
      curves.png                   reward and entropy over the steps
      tokens/step-000010.parquet   the token dump of one optimizer step
      checkpoints/checkpoint-100/  model, tokenizer, optimizer, random states, controller state

Everything but `metrics.jsonl` is written under a temporary name and renamed, so a file is there whole or not at all.

**metrics.jsonl.** One line per optimizer step, in order, no step twice. `step` (int, 1 = the first update) and `time`
(seconds since the epoch) are always there; every other key is a number under the name the trainer logs it by (TRL's
keys: `reward`, `loss`, `completions/mean_length`, ...; ours are listed with the engine). JSON has no NaN: a value
that is not finite is written as the string "nan", "inf" or "-inf" and read back as a float. A line counts once its
newline is written: a reader drops a last line without one.

**tokens/** is described in `isentrope.token_dump`.

Readers take no pickle, bound what they read, and name the file and line at fault.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.parsing import json_value

MAX_JSON_BYTES = 64 * 2**20  # a larger evaluation or summary is not one of ours
MAX_LINE_BYTES = 2**20  # of one metrics line; a step logs some hundred numbers
VERL_LATEST = "latest_checkpointed_iteration.txt"  # the number N of the global_step_N that verl would go on from
COMPLETE = "complete.json"  # written last into a checkpoint folder; without it the checkpoint does not count
VERSIONED = ("isentrope", "torch", "transformers", "trl", "verl", "ray", "accelerate", "datasets", "peft")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating-system error into one line that names the path and says what to do."""
    try:
        yield
    except OSError as error:
        raise IsentropeError(
            f"cannot write {path}: {error.strerror or error}; choose a folder that can be written with --out"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder, renamed to `path` if the block succeeds and removed if it fails."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())  # mkstemp gives 0600
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, whole or not at all; numbers that are not finite become strings (module docstring)."""
    write_text(path, json.dumps(encode(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of a run folder. IsentropeError where it is missing, larger than 64 MiB or not JSON."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise IsentropeError(f"{path} has more than {MAX_JSON_BYTES} bytes; this is no file of a run folder")
        return decode(json_value(path.read_bytes()))
    except OSError as error:
        raise IsentropeError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise IsentropeError(f"{path} is not JSON: {error}") from error


def encode(value: Any) -> Any:
    """The same value with non-finite floats as the strings "nan", "inf", "-inf".

    >>> encode({"a": [1.5, float("nan")], "b": float("-inf")})
    {'a': [1.5, 'nan'], 'b': '-inf'}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(value: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    return [decode(item) for item in value] if isinstance(value, list) else value


def versions(seed: int) -> dict[str, Any]:
    """What is needed to run this again: package versions (null where not installed), platform, seed, starting time."""
    found: dict[str, Any] = {name: version_of(name) for name in VERSIONED}
    found |= {"python": platform.python_version(), "platform": platform.platform(), "seed": seed}
    return found | {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z")}


def version_of(name: str) -> str | None:
    """The installed version of a package, None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run. `create` and `resume` are the ways to get one for writing; `RunFolder(path)` reads."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new run folder; `path` may exist if empty, but for what a process that was killed at once left in it.
        IsentropeError where it is not, or cannot be written.
        """
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            if any(not _is_leftover(inside) for inside in path.iterdir()):
                raise IsentropeError(
                    f"{path} is not empty; continue the run in it with --resume, choose another folder with --out,"
                    " or remove it"
                )
            probe = path / ".writable"
            probe.touch()
            probe.unlink()
        return cls(path)

    @classmethod
    def resume(cls, path: Path) -> RunFolder:
        """The folder of a run to continue, from its first step where it has no complete checkpoint. IsentropeError
        where there is no run.
        """
        folder = cls(path)
        if not folder.recipe.is_file():
            raise IsentropeError(f"{path} holds no run to resume (no recipe.toml in it); start one without --resume")
        return folder

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def versions(self) -> Path:
        return self.path / "versions.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def curves(self) -> Path:
        return self.path / "curves.png"

    @property
    def error(self) -> Path:
        return self.path / "error.txt"

    @property
    def tokens(self) -> Path:
        return self.path / "tokens"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def evaluation(self, when: str) -> Path:
        """Where the evaluation stands; `when` is "before", "after", or "step-N" for one at the end of step N."""
        return self.path / f"evaluation-{when}.json"

    def last_checkpoint(self) -> Path | None:
        """The complete checkpoint of the highest step, None where there is none; of a verl run the model in it.

        A folder without the `complete.json` that `finish_checkpoint` writes last was cut short and does not count.
        """
        found = [
            (checkpoint_step(path), path)
            for path in self.checkpoints.glob("checkpoint-*")
            if (path / COMPLETE).is_file()
        ]
        return max(found)[1] if found else self._verl_model()

    def _verl_model(self) -> Path | None:
        """The model in the checkpoint that verl calls its latest, where verl saved one that transformers reads."""
        try:
            number = int((self.checkpoints / VERL_LATEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        model = self.checkpoints / f"global_step_{number}" / "actor" / "huggingface"
        return model if any(model.glob("*.safetensors")) else None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing to the run folder `path` while the block runs.

    IsentropeError where one is at it. The lock goes with its process, however that ends. On Windows nothing is checked.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    lock = path / ".lock"
    with writing(lock):
        handle = open(lock, "a")  # noqa: SIM115
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise IsentropeError(f"another process is at work in {path}; stop it, or wait until it ends") from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def checkpoint_step(path: Path) -> int:
    """The optimizer step in a checkpoint folder's name.

    >>> checkpoint_step(Path("checkpoints/checkpoint-100"))
    100
    """
    match = re.fullmatch(r"checkpoint-(\d+)", path.name)
    return int(match[1]) if match else -1


def finish_checkpoint(path: Path) -> None:
    """Declare that everything of the checkpoint in folder `path` is on disk."""
    write_json(path / COMPLETE, {"step": checkpoint_step(path)})


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Delete all but the last `keep` complete checkpoints, each so that half of it never counts as one."""
    complete = sorted((p for p in folder.glob("checkpoint-*") if (p / COMPLETE).is_file()), key=checkpoint_step)
    for path in complete[:-keep]:
        with writing(path):
            (path / COMPLETE).unlink()
            shutil.rmtree(path)


def rewind(folder: RunFolder, step: int) -> None:
    """Bring a run folder to where it was at the end of `step`, of which there is a complete checkpoint (or 0).

    Metrics, token dumps and evaluations of later steps go, and so do checkpoints that were cut short and temporary
    files: the run that goes on writes them afresh, and nobody reads half of anything.
    """
    truncate_metrics(folder.metrics, step)
    for path in folder.checkpoints.glob("checkpoint-*"):
        if not (path / COMPLETE).is_file():
            with writing(path):
                shutil.rmtree(path)
    made = [*folder.tokens.glob("step-*.parquet"), *folder.path.glob("evaluation-step-*.json")]
    late = [path for path in made if _step_in(path) > step]
    left = [path for place in (folder.path, folder.tokens) for path in place.glob(".*") if _is_temporary(path)]
    for path in [*late, *left]:
        with writing(path):
            path.unlink(missing_ok=True)


def _step_in(path: Path) -> int:
    """The step in the name of a token dump or evaluation; 0 where there is none.

    >>> _step_in(Path("step-000010.0.parquet")), _step_in(Path("evaluation-step-320.json"))
    (10, 320)
    """
    match = re.search(r"step-(\d+)", path.name)
    return int(match[1]) if match else 0


def _is_temporary(path: Path) -> bool:
    """Whether `replacing` would name a file so: what is there at the start of a run was left by a killed process."""
    return re.fullmatch(r"\..+-[a-z0-9_]{8}(\.\w+)?", path.name) is not None


def _is_leftover(path: Path) -> bool:
    return path.name in (".lock", ".writable") or _is_temporary(path)


def append_metrics(path: Path, step: int, values: Mapping[str, Any]) -> None:
    """Append one step's line to a metrics file: `step`, `time` and the finite or non-finite numbers of `values`.

    Values that are neither numbers nor None are left out; None becomes null. The line goes out in one write to a file
    opened for appending, so a killed process leaves at worst a last line without its newline, which readers drop.
    """
    numbers = {key: value for key, value in values.items() if value is None or isinstance(value, int | float)}
    line = json.dumps(encode({"step": step, "time": round(time.time(), 3)} | numbers), allow_nan=False) + "\n"
    with writing(path), open(path, "ab", buffering=0) as file:
        file.write(line.encode())


def iter_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file as dicts, in order. IsentropeError names a line that is too long or not an object.

    A last line without a newline, left by a process that was killed while writing it, is dropped.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
                if len(line) > MAX_LINE_BYTES:
                    raise IsentropeError(
                        f"{path} line {number} is longer than {MAX_LINE_BYTES} bytes; this is no metrics file"
                    )
                if line.endswith(b"\n"):
                    yield _metrics_line(path, number, line)
    except OSError as error:
        raise IsentropeError(f"cannot read {path}: {error.strerror or error}") from error


def _metrics_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = decode(json_value(line))
    except ValueError as error:
        raise IsentropeError(f"{path} line {number} is not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("step"), int):
        raise IsentropeError(f"{path} line {number} is not an object with a whole number under 'step'")
    return value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of a metrics file (see `iter_metrics`)."""
    return list(iter_metrics(path))


def truncate_metrics(path: Path, step: int) -> int:
    """Drop the lines after `step`, and a half line at the end; the number of lines that stay. No file: 0.

    Resuming from the checkpoint of step 50 after a crash at step 57 writes steps 51 to 57 again: no step may stand
    twice.
    """
    if not path.is_file():
        return 0
    kept = 0
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for line in iter_metrics(path):
            if line["step"] <= step:
                file.write(json.dumps(encode(line), allow_nan=False) + "\n")
                kept += 1
    return kept


def series(lines: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it is there and finite.

    >>> series([{"step": 1, "reward": 0.5}, {"step": 2}, {"step": 3, "reward": float("nan")}], "reward")
    ([1], [0.5])
    """
    pairs = [(line["step"], float(line[key])) for line in lines if isinstance(line.get(key), int | float)]
    finite = [(step, value) for step, value in pairs if math.isfinite(value)]
    return [step for step, _ in finite], [value for _, value in finite]
