"""Memory and handles of a long run: does anything grow with the number of updates?

Run: `python bench/soak.py [--engine tabular trl] [--steps N] [--out FOLDER]`.

Each engine trains in a process of its own, by `isentrope train` with all that a long run has on: two tasks, a
controller, diagnostics, token dumps, checkpoints of which two are kept, an evaluation before and after. Every update
notes the resident memory, the open file descriptors and the threads of the process, every third the blocks that
Python's allocator has given out. Slopes are those after the warm-up, with an interval (see `slope`).

The samples stay in --out: an engine that got to its end is not run again there. One that was stopped starts again,
since a new process has a new memory. `--trace N` shows the N lines of code whose memory grew most (slower).
"""

import argparse
import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

STEPS = {"tabular": 2000, "trl": 300}
WARM_UP = 0.4  # of the updates: imports, caches, thresholds of malloc, the last logs settle
PARTS = 10
T_VALUE = 2.306  # two-sided 95% of Student's t with PARTS - 2 degrees of freedom
BLOCKS_EVERY = 3  # updates; garbage is collected first, which takes a tenth of a second
MIB = 2**20

OBJECTIVE = """
[objective]
preset = "ce_gppo"

[objective.surrogate]
rule = "GradientPreservingClip"
low = 0.2
high = 0.2
keep_low = 0.5
keep_high = { rule = "EntropyPI", start = 1.0, target = 0.3, kp = 0.5, ki = 0.1, low = 0.0, high = 2.0 }
"""
RECIPES = {
    "tabular": """
engine = "tabular"
[[task]]
name = "sharp"
options = { entropy = 0.15 }
[[task]]
name = "flat"
options = { entropy = 0.85 }
[trainer]
problems = 256
prompts = 32
group_size = 8
minibatches = 4
passes = 2
learning_rate = 0.02
threads = 1
[tabular]
length = 3
vocabulary = 16
[evaluation]
problems = 16
samples = 8
[output]
checkpoint_every = 50
tokens_every = 10
diagnostics_every = 10
""",
    "trl": """
[model]
name = "embedded"
[[task]]
name = "countdown"
[[task]]
name = "digitsum"
[curriculum]
by = "pass_rate"
[trainer]
problems = 256
prompts = 16
group_size = 8
minibatches = 4
passes = 2
micro_batch = 16
learning_rate = 1e-5
max_completion_length = 24
threads = 1
[evaluation]
problems = 16
samples = 4
[output]
checkpoint_every = 25
tokens_every = 5
diagnostics_every = 10
""",
}


@dataclass(frozen=True)
class Slope:
    """Growth for 1,000 updates, and the half width of its 95% interval, in the unit of what was measured."""

    per_1000: float
    within: float

    @property
    def low(self) -> float:
        """The least growth that the interval holds."""
        return self.per_1000 - self.within


def slope(steps: Sequence[float], values: Sequence[float]) -> Slope:
    """Growth of `values` over `steps`, at least 20 of them: a least-squares line through the means of 10 parts.

    Neighbouring samples of memory are alike, so an interval from single samples would be too narrow; means of long
    parts are less so. The interval is Student's with 8 degrees of freedom.
    """
    if len(steps) < 2 * PARTS:
        raise ValueError(f"slope: {len(steps)} samples; it takes at least {2 * PARTS}")
    ends = [round(i * len(steps) / PARTS) for i in range(PARTS + 1)]
    x = [statistics.fmean(steps[a:b]) for a, b in pairwise(ends)]
    y = [statistics.fmean(values[a:b]) for a, b in pairwise(ends)]
    line = statistics.linear_regression(x, y)
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    rest = sum((b - line.intercept - line.slope * a) ** 2 for a, b in zip(x, y, strict=True))
    return Slope(1000 * line.slope, 1000 * T_VALUE * (rest / (PARTS - 2) / spread) ** 0.5)


# -- in the process that trains ----------------------------------------------------------------------


def usage(step: int) -> dict[str, float]:
    """What this process holds: MiB resident, open descriptors, threads."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    with os.scandir("/proc/self/fd") as found:
        handles = sum(1 for _ in found) - 1  # the one that lists them
    threads = len(os.listdir("/proc/self/task"))
    return {"step": step, "rss": pages * os.sysconf("SC_PAGE_SIZE") / MIB, "handles": handles, "threads": threads}


def watched(write: Callable[..., None], samples: Path, warm_up: int, trace: int) -> Callable[..., None]:
    """`record.append_metrics`, which every engine calls once an update, with a sample after it."""
    first: list[tracemalloc.Snapshot] = []

    def append(path: Path, step: int, values: Any) -> None:
        write(path, step, values)
        found = usage(step)
        if step % BLOCKS_EVERY == 0:
            gc.collect()
            found["blocks"] = sys.getallocatedblocks()
        with open(samples, "a") as file:
            file.write(json.dumps(found | {"time": time.time()}) + "\n")
        if trace and step == warm_up:
            tracemalloc.start(12)
            first.append(tracemalloc.take_snapshot())
        if trace and first and step % 50 == 0:
            grown = tracemalloc.take_snapshot().compare_to(first[0], "lineno")[:trace]
            print(f"after step {step}, since step {warm_up}:", *grown, sep="\n  ", file=sys.stderr, flush=True)

    return append


def train(engine: str, steps: int, folder: Path, trace: int) -> None:
    """The run itself, as the command makes it."""
    from isentrope import record

    recipe = folder / f"{engine}.toml"
    recipe.write_text(RECIPES[engine] + OBJECTIVE)
    record.append_metrics = watched(record.append_metrics, samples_of(folder, engine), round(WARM_UP * steps), trace)
    from isentrope import cli

    cli.app(["train", str(recipe), "--steps", str(steps), "--out", str(folder / engine)])


# -- in the process that watches ---------------------------------------------------------------------


def samples_of(folder: Path, engine: str) -> Path:
    return folder / f"{engine}-samples.jsonl"


def read(folder: Path, engine: str) -> list[dict[str, float]]:
    """The samples of whole lines."""
    path = samples_of(folder, engine)
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def soak(engine: str, steps: int, folder: Path, trace: int = 0) -> list[dict[str, float]]:
    """The samples of a whole run, trained now unless `folder` holds them. SystemExit where the run fails."""
    if len(found := read(folder, engine)) == steps:
        return found
    samples_of(folder, engine).unlink(missing_ok=True)
    shutil.rmtree(folder / engine, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--train", "--engine", engine, "--steps", str(steps), "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    log = folder / f"{engine}.log"
    with open(log, "w") as out, progress() as bar:
        shown = bar.add_task(engine, total=steps)
        command += ["--trace", str(trace)]
        with subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT) as process:
            while process.poll() is None:
                time.sleep(0.5)
                bar.update(shown, completed=len(read(folder, engine)))
    if process.returncode:
        raise SystemExit(f"{engine} ended with {process.returncode}: {log.read_text()[-2000:]}")
    return read(folder, engine)


def progress() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def settled(samples: Sequence[dict[str, float]], what: str) -> tuple[list[float], list[float]]:
    """Steps and values of a quantity after the warm-up."""
    late = [s for s in samples if s["step"] > WARM_UP * len(samples) and what in s]
    return [s["step"] for s in late], [s[what] for s in late]


def line(engine: str, samples: Sequence[dict[str, float]]) -> str:
    """A row of the table."""
    memory, blocks = slope(*settled(samples, "rss")), slope(*settled(samples, "blocks"))
    rss, handles, threads = (settled(samples, what)[1] for what in ("rss", "handles", "threads"))
    cells = [
        engine,
        f"{len(samples)}",
        f"{samples[-1]['time'] - samples[0]['time']:.0f}",
        f"{rss[0]:.0f} to {rss[-1]:.0f}",
        f"{memory.per_1000:+.2f} ± {memory.within:.2f}",
        f"{blocks.per_1000:+.0f} ± {blocks.within:.0f}",
        span(handles),
        span(threads),
    ]
    return " | ".join(["", *cells, ""]).strip()


def span(values: Sequence[float]) -> str:
    low, high = round(min(values)), round(max(values))
    return f"{low}" if low == high else f"{low} to {high}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", choices=sorted(STEPS), default=list(STEPS))
    parser.add_argument("--steps", type=int, help=f"updates; by default {STEPS}")
    parser.add_argument("--out", type=Path, help="where samples and run folders stay; by default nowhere")
    parser.add_argument("--trace", type=int, default=0, metavar="N")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.engine[0], options.steps, options.out, options.trace)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        rows = [line(e, soak(e, options.steps or STEPS[e], folder, options.trace)) for e in options.engine]
    print(f"Python {platform.python_version()}, {platform.machine()}; after the first {WARM_UP:.0%} of the updates")
    print("| engine | updates | s | MiB resident | MiB per 1,000 updates | blocks per 1,000 | handles | threads |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
