"""Give every reader damaged files for a while: each must be read, or refused with the error that is documented.

    python tests/faults/fuzz.py --seconds 600 --seed 0

For each kind of file there is a sound sample; a damaged one has some bytes changed, cut, doubled, moved or replaced by
pieces that have broken readers elsewhere (deep nesting, huge numbers, NUL, surrogates, paths that climb). Anything but
IsentropeError, more than `SLOW` seconds or a process that dies is a fault; the file that shows it is kept.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from isentrope import presets, readers, recipe, record, report, results, saved, spec, tasks, token_dump
from isentrope.errors import IsentropeError
from isentrope.findings import diagnose

SLOW = 20  # seconds for a damaged file of some kilobytes
STEPS = range(9)
NASTY = [
    b"[" * 3000, b"{" * 3000, b'{"a":' * 2000, b"9" * 5000, b"1e999", b"-1e-999", b"NaN", b"Infinity", b"-0", b"\x00",
    b"\xff\xfe", b"\xed\xa0\x80", b'"\\ud800"', b"../../../../etc/passwd", b"null", b"true", b'""', b"[]", b"{}", b"\r",
    b"\n", b"=", b'"""', b"[[", b"__class__", b"1_000", b"0x10", b"1979-05-27T07:32:00Z", b"18446744073709551616",
]  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of file: where a sound one lies in a folder, how it is made, and who reads it."""

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], object]
    place: str = ""  # what tells it from another kind of the same name

    def __str__(self) -> str:
        return f"{self.place}{self.name}"


def read_runs(path: Path) -> None:
    for run in readers.read(path):
        diagnose(run)


def lines(*rows: dict[str, Any]) -> Callable[[Path], None]:
    return lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def log(step: int) -> dict[str, Any]:
    return {"step": step, "entropy": 0.4 / (1 + step), "reward": 0.5, "reward_std": 0.4, "clip_ratio/low_mean": 0.01}


def trainer_state(path: Path) -> None:
    path.write_text(json.dumps({"global_step": 9, "log_history": [log(step) for step in STEPS]}))


def token_table(path: Path) -> None:
    numbers = {name: pa.array([1, 2, 3, 4]).cast(field.type) for name, field in _fields() if name != "mask"}
    pq.write_table(pa.table(numbers | {"mask": [True, True, False, True]}, schema=token_dump.token_schema()), path)


def _fields() -> list[tuple[str, pa.Field]]:
    return [(field.name, field) for field in token_dump.token_schema()]


def slime_dump(path: Path) -> None:
    sample = {"tokens": [1, 2, 3], "response_lengths": 2, "loss_masks": torch.tensor([1, 1]), "rewards": 0.5}
    sample |= {"log_probs": torch.tensor([-1.0, -2.0]), "advantages": torch.tensor([1.0, 1.0])}
    torch.save({"format_version": 2, "rollout_id": 0, "rank": 0, "samples": [sample]}, path)


def events(path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)
        for step in range(4):
            writer.add_scalar("train/entropy", 0.5, step)
        writer.close()
        (file,) = Path(folder).iterdir()
        path.write_bytes(file.read_bytes())


def evaluation(path: Path) -> None:
    task = tasks.get("countdown")
    examples = task.examples("test", 2, 0)
    results.append(path, [results.judge(task, e, [e.references[0], "no"], [{}, {}]) for e in examples])


def completions(path: Path) -> None:
    task = tasks.get("countdown")
    rows = [{"task": "countdown", "prompt": e.prompt, "completion": "1+1"} for e in task.examples("test", 2, 0)]
    lines(*rows)(path)


def completion_table(path: Path) -> None:
    rows = {"step": [9] * 4, "prompt": ["p"] * 4, "completion": list("abcd"), "right": [0.0, 1.0, 0.0, 1.0]}
    pq.write_table(pa.table(rows), path)


def run_folder(path: Path) -> None:
    """A whole run folder around the file."""
    folder = record.RunFolder(path.parent)
    record.write_text(folder.recipe, recipe.load("default").to_toml())
    lines(*map(log, STEPS))(folder.metrics)
    record.write_json(folder.versions, record.versions(0))
    found = {"task": "countdown", "problems": 4, "pass_at": {"1": 0.5, "8": 0.75}, "interval": [0.25, 0.75]}
    record.write_json(folder.evaluation("after"), [found])


def read_report(path: Path) -> None:
    report.build(report.load([path.parent]))


EXPORT = {
    "trainer_logprobs": [-1.0, -2.0, -0.5],
    "inference_logprobs": [-1.0, -2.1, -0.5],
    "entropy": [0.5, 0.2, 0.1],
    "advantages": [1.0, 1.0, 1.0],
    "token_ids": [1, 2, 3],
    "loss_mask": [False, True, True],
}
KINDS = [
    Kind("recipe.toml", lambda p: p.write_text(recipe.load("default").to_toml()), lambda p: recipe.load(str(p))),
    Kind("objective.toml", lambda p: p.write_text(spec.dumps(presets.adapo)), spec.load),
    Kind("metrics.jsonl", lines(*map(log, STEPS)), record.read_metrics),
    Kind("state.json", trainer_state, record.read_json),
    Kind("step-000001.parquet", token_table, lambda p: token_dump.read_tokens(p.parent, 1)),
    Kind("results.jsonl", evaluation, results.read),
    Kind("completions.jsonl", completions, lambda p: saved.read(p, {"countdown": tasks.get("countdown")})),
    Kind("log.jsonl", lines(*map(log, STEPS)), read_runs),
    Kind("verl.jsonl", lines(*({"step": s, "data": {"actor/entropy": 0.4, "x": 0.1}} for s in STEPS)), read_runs),
    Kind("9.jsonl", lines(*({"input": "p", "output": "x", "score": i % 2, "step": 9} for i in range(4))), read_runs),
    Kind("trainer_state.json", trainer_state, read_runs),
    Kind("table.csv", lambda p: p.write_text("step,entropy,reward\n1,0.5,0.1\n2,0.4,0.2\n3,0.3,0.2\n"), read_runs),
    Kind("table.json", lambda p: p.write_text(json.dumps([log(step) for step in STEPS])), read_runs),
    Kind("tokens.parquet", token_table, read_runs),
    Kind("train_0.pt", slime_dump, read_runs),
    Kind("events.out.tfevents.1", events, read_runs),
    Kind("completions_9.parquet", completion_table, read_runs),
    Kind("rank_0.jsonl", lines(EXPORT, EXPORT), read_runs),
    *(
        Kind(name, run_folder, read_report, "RUN/")
        for name in ("recipe.toml", "metrics.jsonl", "versions.json", "evaluation-after.json")
    ),
]  # fmt: skip


def damaged(data: bytes, rng: random.Random) -> bytes:
    """One to eight wounds."""
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        at, to = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
        near = min(len(data), at + rng.randint(1, 16))
        data = rng.choice(
            [
                lambda d, a=at: d[:a] + bytes([rng.randrange(256)]) + d[a + 1 :],
                lambda d, a=at, b=near: d[:a] + d[b:],
                lambda d, a=at: d[:a] + rng.choice(NASTY) + d[a:],
                lambda d, a=at, b=near: d[:a] + rng.choice(NASTY) + d[b:],
                lambda d, a=at, b=to: d[:a] + d[a:b] + d[a:b] + d[b:],
                lambda d, a=at, b=to: d[:b] + d[:a],
                lambda d, a=at: d[:a],
                lambda d: d.replace(rng.choice([b"0", b"1", b":", b",", b'"', b"\n"]), rng.choice(NASTY), 1),
            ]
        )(data)[: 2**20]
    return data


class TooSlow(Exception):
    pass


def _alarm(_number: int, _frame: object) -> None:
    raise TooSlow


def fault(kind: Kind, path: Path) -> str:
    """What went wrong with this file, "" for nothing."""
    signal.alarm(SLOW)
    try:
        kind.read(path)
    except IsentropeError:
        return ""
    except TooSlow:
        return f"more than {SLOW} seconds"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.alarm(0)
    return ""


def run(seconds: float, seed: int, kept: Path) -> tuple[Counter[str], list[str]]:
    """Files tried by kind, and the faults."""
    tried: Counter[str] = Counter()
    faults: list[str] = []
    rng, end = random.Random(seed), time.monotonic() + seconds
    signal.signal(signal.SIGALRM, _alarm)
    with tempfile.TemporaryDirectory() as folder:
        samples = {}
        for number, kind in enumerate(KINDS):
            place = Path(folder) / str(number) / kind.name
            place.parent.mkdir()
            kind.write(place)
            if problem := fault(kind, place):
                raise SystemExit(f"the sound {kind} is refused: {problem}")
            samples[kind] = (place, place.read_bytes())
        while time.monotonic() < end and len(faults) < 20:
            kind = rng.choice(KINDS)
            place, sound = samples[kind]
            place.write_bytes(damaged(sound, rng))
            tried[str(kind)] += 1
            if problem := fault(kind, place):
                kept.mkdir(parents=True, exist_ok=True)
                copy = kept / f"{len(faults)}-{kind.name}"
                copy.write_bytes(place.read_bytes())
                faults.append(f"{kind}: {problem} ({copy})")
                print(faults[-1], file=sys.stderr, flush=True)
    return tried, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, default=Path("faults"), help="where files that show a fault go")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tried, faults = run(options.seconds, options.seed, options.kept)
    print(", ".join(f"{name} {count}" for name, count in sorted(tried.items())))
    print(f"{tried.total()} damaged files, {len(faults)} faults")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
