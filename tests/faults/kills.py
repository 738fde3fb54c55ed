"""Kill a training again and again, then say whether it ended as if nothing had happened.

    python tests/faults/kills.py FOLDER --kills 30 --seed 0

One run of `isentrope train` goes through undisturbed. Another one is sent SIGKILL in every attempt but the last, at a
place that the seed draws: in generation, in a loss, in an optimizer step, before or after a file gets its name,
half-way through a line of metrics, in the middle of writing or deleting a checkpoint, or after some time, wherever
that is.
Each attempt is a fork of this process, in which everything is imported, so that an attempt takes a second or two.
Prints one line an attempt; exits with 1 and says what differs if the two runs do not end alike.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from accelerate.optimizer import AcceleratedOptimizer
from safetensors.torch import load_file

from isentrope import cli, record, token_dump
from isentrope.engines import trl, trl_sampler
from isentrope.record import RunFolder

STEPS = 16
RECIPE = f"""
objective = "adapo"

[[task]]
name = "countdown"

[[task]]
name = "digitsum"

[trainer]
steps = {STEPS}
problems = 64
prompts = 4
group_size = 4
minibatches = 2
passes = 2
max_completion_length = 16
learning_rate = 1e-4
threads = 1

[evaluation]
problems = 0

[output]
checkpoint_every = 3
keep_checkpoints = 1
tokens_every = 1
diagnostics_every = 2
"""
TIMES = {"time", "step_time", "step_time/sampling"}


@dataclass(frozen=True)
class Place:
    """Where a process dies: at the nth call of `owner.name`, before it or after it."""

    owner: Any
    name: str
    after: bool = False

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {getattr(self.owner, '__name__', self.owner)}.{self.name}"


def places() -> dict[str, tuple[Place, int]]:
    """What can be hit, each with about how often a whole run passes it."""
    return {
        "generation": (Place(trl_sampler, "shared_prefill"), 4),
        "a loss": (Place(trl.ObjectiveTrainer, "_compute_loss"), STEPS),
        "an optimizer step": (Place(AcceleratedOptimizer, "step"), STEPS),
        "an optimizer step, after it": (Place(AcceleratedOptimizer, "step", after=True), STEPS),
        "a file before it has its name": (Place(os, "replace"), 3 * STEPS),
        "a file after it has its name": (Place(os, "replace", after=True), 3 * STEPS),
        "a part of a checkpoint": (Place(torch, "save"), 20),
        "a part of a checkpoint, after it": (Place(torch, "save", after=True), 20),
        "the mark of a whole checkpoint": (Place(record, "finish_checkpoint"), 5),
        "the end of a checkpoint": (Place(record, "prune_checkpoints"), 5),
        "deleting a checkpoint": (Place(os, "unlink", after=True), 20),
        "a token dump": (Place(pq.ParquetWriter, "write_table", after=True), STEPS),
        "half a line of metrics": (Place(record, "append_metrics"), STEPS),
    }


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(name: str, place: Place, count: int) -> None:
    """Let this process die at the `count`th call of the place."""
    function: Callable[..., Any] = getattr(place.owner, place.name)
    calls = 0

    def armed(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < count:
            return function(*arguments, **keywords)
        if name == "half a line of metrics":
            with open(arguments[0], "ab") as file:
                file.write(b'{"step": 3, "loss": 0.0')
        if place.after:
            function(*arguments, **keywords)
        return die()

    for module in [place.owner, *sys.modules.values()]:  # where it was imported by name, too
        if getattr(module, "__dict__", {}).get(place.name) is function:
            setattr(module, place.name, armed)


def attempt(arguments: list[str], log: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """The wait status of one `isentrope train` in a fork of this process."""
    child = os.fork()
    if child == 0:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        status = 1
        try:
            prepare()
            status = cli.app(["train", *arguments], standalone_mode=False) or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitpid(child, 0)[1]


def later(seconds: float) -> Callable[[], None]:
    def prepare() -> None:
        threading.Thread(target=lambda: (time.sleep(seconds), die()), daemon=True).start()

    return prepare


def arguments(folder: Path, recipe: Path) -> list[str]:
    """A new run, or its continuation where there is one: what a user types after a crash."""
    if (folder / "recipe.toml").is_file():
        return ["--resume", "--out", str(folder)]
    return [str(recipe), "--out", str(folder)]


def disturb(folder: Path, recipe: Path, log: Path, kills: int, seed: int, whole: float) -> None:
    """Kill a run so many times, then let it end. A run that ends before it is hit makes place for a new one."""
    rng, hits, attempts, names = random.Random(seed), 0, 0, list(places())
    while hits < kills:
        attempts += 1
        name, prepare = drawn(rng, names[attempts % len(names)], whole)
        before = step_of(folder)
        status = attempt(arguments(folder, recipe), log, prepare)
        if not os.WIFSIGNALED(status):
            if status or attempts > 3 * kills:
                raise SystemExit(f"attempt {attempts} failed by itself, or too many ended before a kill; see {log}")
            shutil.rmtree(folder)
            continue
        hits += 1
        print(f"{hits:3} killed at {name}: step {before} -> {step_of(folder)}", flush=True)
    if attempt(arguments(folder, recipe), log):
        raise SystemExit(f"the last attempt failed; see {log}")


def drawn(rng: random.Random, name: str, whole: float) -> tuple[str, Callable[[], None]]:
    """The place of that name at a call of it that the seed draws; now and then any moment of a run instead."""
    if rng.random() < 0.2:
        return "some moment", later(rng.uniform(0, 0.6 * whole))
    place, often = places()[name]
    count = rng.randint(1, max(1, often // 4))
    return name, lambda: arm(name, place, count)


def step_of(folder: Path) -> int:
    found = RunFolder(folder).last_checkpoint()
    return record.checkpoint_step(found) if found else 0


def fingerprint(folder: Path) -> dict[str, Any]:
    """All that a run leaves behind, but for the clock."""
    run = RunFolder(folder)
    checkpoint = run.last_checkpoint()
    assert checkpoint is not None
    lines = [{k: v for k, v in line.items() if k not in TIMES} for line in record.read_metrics(run.metrics)]
    weights = load_file(checkpoint / "model.safetensors")
    state = json.loads((checkpoint / "isentrope_state.json").read_text())
    dumps = {step: token_dump.read_tokens(run.tokens, step).to_pydict() for step in token_dump.token_steps(run.tokens)}
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    return {
        "steps of metrics": [line["step"] for line in lines],
        "metrics": repr(lines),
        "parameters": {n: hashlib.sha256(x.numpy().tobytes()).hexdigest() for n, x in weights.items()},
        "controllers": state["state"],
        "token dumps": repr(dumps),
        "files": sorted(files),
        "recipe": run.recipe.read_text(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    recipe, log = options.folder / "recipe.toml", options.folder / "log.txt"
    recipe.write_text(RECIPE)
    started = time.monotonic()
    if attempt(arguments(options.folder / "calm", recipe), log):
        raise SystemExit(f"the undisturbed run failed; see {log}")
    whole = time.monotonic() - started
    disturb(options.folder / "disturbed", recipe, log, options.kills, options.seed, whole)
    calm, disturbed = fingerprint(options.folder / "calm"), fingerprint(options.folder / "disturbed")
    different = [name for name in calm if calm[name] != disturbed[name]]
    print(f"{options.kills} kills; {', '.join(different) + ' differ' if different else 'the runs are equal'}")
    raise SystemExit(bool(different))


if __name__ == "__main__":
    main()
