"""What reading a large run takes: a token dump of 1e6 completions and 1e8 tokens, metrics of 1e6 updates.

Run: `python bench/dumps.py [--rows 1000000] [--length 100] [--updates 1000000] [--only NAME ...] [--out FOLDER]`.

The run folder is made from a seed, with `token_dump.TokenWriter` and the keys that a run logs; --out keeps it, and one
that is there whole is used again. Writer and readers have a process each; peak memory is the largest resident size of
it, time its own CPU time. `dumped` has all completions in one step, as a cluster's rollout
batch has them, `steps` the same in steps of 5,000 completions, `metrics` no tokens. About 2 GB of disk.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

# A process's largest size counts that of its parent when it was started: what measures stays small, imports come late.
if TYPE_CHECKING:
    import torch

CHUNK = 1000  # completions that the writer gets at a time
IN_A_STEP = 5000  # completions, of `steps`
SYMBOLS = 99  # of the embedded model's vocabulary
DONE = "made.json"
COMMANDS = {
    "dumped": ("diagnose", "report", "sampler", "tokens"),
    "steps": ("diagnose", "report", "sampler", "tokens"),
    "metrics": ("diagnose", "report", "metrics"),
}


# -- a large run -------------------------------------------------------------------------------------


def tokens(rows: int, length: int, first: int, generator: "torch.Generator") -> dict[str, "torch.Tensor"]:
    """Completions of 1 to `length` tokens, half of them of the full length. Numbers have 10 bits, so that they pack."""
    import torch

    def draw(low: float, high: float) -> "torch.Tensor":
        return low + (high - low) * torch.randint(1024, (rows, length), generator=generator) / 1024

    ends = torch.randint(1, 2 * length, (rows, 1), generator=generator)
    old, row = -draw(0, 4), first + torch.arange(rows)
    logp = (old + draw(-0.25, 0.25)).clamp(max=0)
    return {
        "mask": torch.arange(length) < ends,
        "token_id": torch.randint(SYMBOLS, (rows, length), generator=generator),
        "row": row,
        "group": row // 8,
        "logp": logp,
        "old_logp": old,
        "rollout_logp": (old + draw(-0.01, 0.01)).clamp(max=0),
        "entropy": draw(0, 3),
        "advantage": draw(-2, 2)[:, :1].expand(rows, length),
        "weight": draw(-2, 2)[:, :1] * (logp - old).exp() / rows,
    }


def write_tokens(folder: Path, rows: int, length: int, in_a_step: int) -> int:
    """The dump of `rows` completions; how many tokens."""
    import torch

    from isentrope.token_dump import TokenWriter

    writer, count = TokenWriter(folder), 0
    generator = torch.Generator().manual_seed(0)
    for first in range(0, rows, CHUNK):
        made = tokens(min(CHUNK, rows - first), length, first, generator)
        writer(1 + first // in_a_step, made)
        count += int(made["mask"].sum())
    writer.close()
    return count


def logs(updates: int) -> Iterator[dict[str, float]]:
    """Lines of metrics as a run on two tasks logs them, 40 numbers each."""
    import torch

    generator = torch.Generator().manual_seed(0)
    names = ["reward", "reward_std", "reward/low", "reward/high", "entropy/current_exact", "entropy/current_exact/low"]
    names += ["surprisal", "clip/low", "clip/high", "kl_old", "ratio/mean", "grad_norm", "loss", "learning_rate"]
    names += ["completions/mean_length", "frac_reward_zero_std", "controller/surrogate.keep_high.value"]
    names += [f"profiling/{i}" for i in range(40 - len(names))]
    for step in range(1, updates + 1):
        yield {"step": step, "time": step / 2} | dict(
            zip(names, torch.rand(len(names), generator=generator).tolist(), strict=True)
        )


def make(path: Path, asked: dict[str, int]) -> None:
    """Write the run folder."""
    from isentrope import recipe, record

    shutil.rmtree(path, ignore_errors=True)
    folder = record.RunFolder.create(path)
    record.write_text(folder.recipe, recipe.load("default").to_toml())
    with open(folder.metrics, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in logs(asked["updates"]))
    rows = asked["rows"]
    count = write_tokens(folder.tokens, rows, asked["length"], asked["in_a_step"]) if rows else 0
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    record.write_json(path / DONE, {"asked": asked, "tokens": count, "bytes": size})


def made(path: Path) -> dict[str, Any]:
    """What `make` says of a whole run folder; nothing of any other."""
    found: dict[str, Any] = json.loads((path / DONE).read_text()) if (path / DONE).is_file() else {}
    return found


# -- who reads it ------------------------------------------------------------------------------------


def command(name: str, path: Path) -> list[str]:
    """The command line of a reader."""
    ours = [sys.executable, "-m", "isentrope"]
    if name == "sampler":
        small = ["--count", "1", "--tokens", "4", "--format", "float32"]
        return [*ours, "probe", "embedded", *small, "--sampler", str(path), "--json"]
    if name in ("tokens", "metrics"):
        return [sys.executable, __file__, "--read", name, "--out", str(path)]
    more = ["-o", str(path / "report.html")] if name == "report" else ["--json"]
    return [*ours, name, str(path), *more]


def read(name: str, path: Path) -> None:
    """The readers of the library: every token of every step, every line of the metrics."""
    from isentrope import record
    from isentrope.token_dump import iter_tokens, token_steps

    folder = record.RunFolder(path)
    if name == "metrics":
        print(sum(1 for _ in record.iter_metrics(folder.metrics)))
        return
    steps = token_steps(folder.tokens)
    print(sum(batch.num_rows for step in steps for batch in iter_tokens(folder.tokens, step)))


def measure(arguments: list[str], log: Path) -> tuple[float, float]:
    """(peak MiB, CPU seconds) of a command. SystemExit where it fails: `diagnose` may end with 1 for what it found."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    with open(log, "w") as out:
        process = subprocess.Popen(arguments, env=environment, stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1) or (process.returncode == 1 and "diagnose" not in arguments):
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}: {log.read_text()[-2000:]}")
    return used.ru_maxrss / 1024, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=133, help="longest completion; three quarters of it on average")
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--out", type=Path, help="where the run folders stay; by default nowhere")
    parser.add_argument("--read", choices=("tokens", "metrics"), help=argparse.SUPPRESS)
    parser.add_argument("--make", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make(options.out, options.make)
    elif options.read:
        read(options.read, options.out)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Print a row for the writer and every reader of every run folder."""
    print(f"Python {platform.python_version()}, {platform.machine()}")
    print("| run folder | process | peak, MiB | CPU s |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary:
        for kind in options.only:
            path = (options.out or Path(temporary)) / kind
            asked = {"length": options.length, "in_a_step": IN_A_STEP if kind == "steps" else max(1, options.rows)}
            asked |= {"rows": options.rows, "updates": 100}
            asked |= {"rows": 0, "updates": options.updates} if kind == "metrics" else {}
            path.parent.mkdir(parents=True, exist_ok=True)
            if made(path).get("asked") != asked:
                writer = [sys.executable, __file__, "--make", json.dumps(asked), "--out", str(path)]
                show(kind, "writer", writer, path)
            print(
                f"| {kind}: {made(path)['bytes'] / 1e9:.2f} GB, {made(path)['tokens']:.3g} tokens | | | |", flush=True
            )
            for name in COMMANDS[kind]:
                show(kind, name, command(name, path), path)


def show(kind: str, name: str, arguments: list[str], path: Path) -> None:
    peak, seconds = measure(arguments, path.with_suffix(".log"))
    print(f"| {kind} | {name} | {peak:.0f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
