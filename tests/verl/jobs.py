"""Whole jobs of the command, small enough for a test: what they are, how to run one, what they left."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from isentrope import record
from isentrope.record import RunFolder

ROLLOUTS, PASSES = 6, 2
# One minibatch a pass: verl cuts minibatches rank by rank, so that only whole batches are the same on 1 and 2 ranks.
LOOP = [
    *("trainer.prompts=8", "trainer.group_size=4", "trainer.minibatches=1", f"trainer.passes={PASSES}"),
    *(f"trainer.steps={ROLLOUTS * PASSES}", "trainer.learning_rate=2e-4", "trainer.max_completion_length=16"),
    *("trainer.problems=64", "evaluation.problems=0", f"output.checkpoint_every={2 * PASSES}"),
    f"output.tokens_every={3 * PASSES}",
]
PI = '{rule="EntropyPI", start=1.0, kp=2.0, ki=1.0, low=0.0, high=4.0, target=0.4}'
MIX = 'task=[{name="countdown"}, {name="digitsum", weight=2.0}]'
CASES = {
    "ce_gppo": [f"objective.surrogate.keep_high={PI}"],
    "gepo": [MIX],
    "repo_d": [],
    "adapo": [],
}
ATOL = 1e-5  # sampler and trainer differ by 1e-6 in a probability, and some numbers measure just that
# Numbers about the machine or the way a batch was laid out, not about what was learnt.
OF_THE_MACHINE = ("time", "step_time", "timing", "perf/", "actor/perf", "global_seqlen", "training/rollout_actor_probs")


def command(objective: str, out: Path, ranks: int, more: Sequence[str] = ()) -> list[str]:
    """The command of one case."""
    changes = [*LOOP, f"verl.trainer.n_gpus_per_node={ranks}", *CASES[objective], *more]
    sets = [word for change in changes for word in ("--set", change)]
    return [
        *(sys.executable, "-m", "isentrope", "train", "--engine", "verl", "--laptop"),
        *("--objective", objective, "--out", str(out), *sets),
    ]


def run(words: Sequence[str], seconds: float = 400) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(words, capture_output=True, text=True, timeout=seconds, env=environment())


def environment() -> dict[str, str]:
    """One thread a process, no hub."""
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}


def lines(out: Path) -> list[dict[str, float]]:
    """The metrics that a run left, without what is about the machine."""
    found = record.read_metrics(RunFolder(out).metrics)
    return [{k: x for k, x in line.items() if not k.startswith(OF_THE_MACHINE)} for line in found]


def wait_for_rollouts(process: subprocess.Popen[str], out: Path, count: int, seconds: float = 300) -> None:
    """Until so many rollout batches are logged. AssertionError where the process ends before."""
    metrics, deadline = RunFolder(out).metrics, time.monotonic() + seconds
    while not metrics.is_file() or len(record.read_metrics(metrics)) < count:
        assert process.poll() is None, f"the job ended before rollout {count}; see {out.parent}"
        assert time.monotonic() < deadline, f"no {count} rollouts in {seconds} seconds"
        time.sleep(0.1)


def assert_equal(first: list[dict[str, float]], second: list[dict[str, float]], rtol: float = 1e-4) -> None:
    """The same steps, the same numbers in each, equal to rounding."""
    assert [line["step"] for line in first] == [line["step"] for line in second]
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for name, x in one.items():
            assert abs(x - other[name]) <= ATOL + rtol * abs(x), f"step {one['step']}: {name} is {x} and {other[name]}"
