"""A verl job as a child process: started, followed, stopped, and its metrics under our names.

The job is `python -m verl.trainer.main_ppo` on the file `verl.yaml` of the run folder, with all its output in
`verl/job.log`. It starts a Ray cluster of its own, or joins the one that RAY_ADDRESS names; the run folder then lies
where all nodes see it. Each start of a run writes metrics to a file of its own, which verl opens anew.

Metrics: verl counts rollout batches; our `step` is the number of optimizer steps made by then. A number that our other
engines log too has their name (`NAMES`), whatever the trainer of `isentrope.engines.verl` logs has it already, and
everything else keeps verl's.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isentrope.engines import verl_laptop
from isentrope.engines.verl_config import Layout
from isentrope.errors import IsentropeError
from isentrope.record import VERL_LATEST, writing

POLL = 0.3  # seconds
PATIENCE = 60.0  # seconds that a job gets to end after a signal
LOGGER = "VERL_FILE_LOGGER_PATH"
PLUGINS = "VERL_USE_EXTERNAL_MODULES"
LOG_LINES = 200  # of the log's end, in which an error is looked for
ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt): \S")  # how Python ends a traceback

# verl's name -> the one that our other engines use for the same number. Not response_length/clip_ratio: that is the
# share of rows as long as the longest of the batch, not of those cut by the limit.
NAMES = {
    "critic/score/mean": "reward",
    "actor/pg_loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "learning_rate",
    "actor/entropy": "entropy/old_exact",  # of the policy that verl scores rollouts with, before the update
    "actor/kl_loss": "kl",
    "response_length/mean": "completions/mean_length",
    "response_length/max": "completions/max_length",
    "response_length/min": "completions/min_length",
    "rollout_corr/k3_kl": "kl_rollout",
    "timing_s/step": "step_time",
}
TOKENS = "perf/total_num_tokens"  # of the step, prompts included


@dataclass(frozen=True)
class Step:
    """One of verl's log lines: the rollout batch it is about, and its numbers under verl's names."""

    rollout: int
    values: Mapping[str, float]


def _for_workers(told: Mapping[str, str]) -> list[str]:
    """Overrides by which Ray gives these variables to its workers, also in a cluster that did not start from here."""
    return [f"++ray_kwargs.ray_init.runtime_env.env_vars.{name}={json.dumps(value)}" for name, value in told.items()]


def _modules(given: str, laptop: bool) -> list[str]:
    """The modules that verl imports in every process, ours among them: these fail aloud, not in silence."""
    ours = ["isentrope.engines.verl", *(["isentrope.engines.verl_laptop"] if laptop else [])]
    return [name for name in given.split(",") if name and name not in ours] + ours


def translate(values: Mapping[str, Any]) -> dict[str, float]:
    """A step's numbers under our names; what our trainer logs itself under a name stays.

    >>> translate({"critic/score/mean": 0.5, "actor/entropy": 0.2, "entropy/old_exact": 0.25, "perf/x": 1})
    {'reward': 0.5, 'entropy/old_exact': 0.25, 'perf/x': 1.0}
    """
    numbers = {key: float(value) for key, value in values.items() if isinstance(value, int | float)}
    renamed = {NAMES[key]: value for key, value in numbers.items() if key in NAMES}
    return renamed | {key: value for key, value in numbers.items() if key not in NAMES}


class Job:
    """A running job. `steps` yields its log lines as they come, until it ends."""

    def __init__(self, layout: Layout, laptop: bool, threads: int = 0) -> None:
        self.layout = layout
        self.metrics = _next_file(layout.metrics)
        told = {LOGGER: str(self.metrics.resolve()), PLUGINS: ",".join(_modules(os.environ.get(PLUGINS, ""), laptop))}
        environment = os.environ | told | (verl_laptop.environment() if laptop else {})
        environment |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
        layout.log.parent.mkdir(parents=True, exist_ok=True)
        with writing(layout.log), open(layout.log, "ab") as log:
            self._start = log.tell()
            self.process = subprocess.Popen(
                [*command(layout), *_for_workers(told)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us to hand on
            )

    def steps(self) -> Iterator[Step]:
        """Every step that the job logs, in order; ends with the job."""
        position = 0
        while True:
            has_ended = self.process.poll() is not None
            lines, position = _new_lines(self.metrics, position)
            yield from (step for step in map(_step, lines) if step is not None)
            if has_ended:
                return
            time.sleep(POLL)

    def stop(self) -> None:
        """End the job and everything it started: as by Ctrl-C first, by force if that takes too long."""
        for number, patience in ((signal.SIGINT, PATIENCE), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            if self.process.poll() is not None:
                return
            os.killpg(self.process.pid, number)
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                continue

    def check(self) -> None:
        """IsentropeError with the log's own words where the job failed."""
        status = self.process.wait()
        if status:
            raise IsentropeError(
                f"verl's job ended with status {status}: {self._reason()} (its log is {self.layout.log})"
            )

    def _reason(self) -> str:
        with open(self.layout.log, "rb") as log:
            log.seek(self._start)
            text = log.read().decode(errors="replace")
        return reason(text.splitlines()[-LOG_LINES:])


def reason(lines: list[str]) -> str:
    """The sentence in a log that says why a job failed: the last line that names an exception, else the last line.

    >>> reason(["x", "ValueError: no such name", "  at y", "Set the environment variable HYDRA_FULL_ERROR=1 ..."])
    'ValueError: no such name'
    """
    plain = [_plain(line) for line in lines]
    errors = [line for line in plain if ERROR.match(line)]
    return (errors or [line for line in plain if line] or ["it left no word"])[-1][:500]


def _plain(line: str) -> str:
    """A log line without colours and Ray's prefix "(Name pid=1)"."""
    return re.sub(r"^\(\w+ pid=\d+[^)]*\)\s*", "", re.sub(r"\x1b\[[0-9;]*m", "", line)).strip()


def command(layout: Layout) -> list[str]:
    """The command that runs the job of a run folder."""
    folder = layout.folder.resolve()
    return [
        sys.executable,
        *("-m", "verl.trainer.main_ppo", "--config-path", str(folder), "--config-name", layout.config.stem),
        *(f"hydra.run.dir={layout.log.parent.resolve()}", "hydra.output_subdir=null"),
        *("hydra/job_logging=disabled", "hydra/hydra_logging=disabled"),
    ]


def latest_rollout(layout: Layout) -> int | None:
    """The rollout batch after which verl last finished a checkpoint; None where it has none."""
    path = layout.checkpoints / VERL_LATEST
    try:
        return int(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise IsentropeError(
            f"{path} holds no number: {error}; write the N of the global_step_N to go on from"
        ) from error


def resumable(path: Path) -> None:
    """IsentropeError where the run folder `path` holds no checkpoint of verl's to go on from."""
    if latest_rollout(Layout(path)) is None:
        raise IsentropeError(f"{path} holds no complete checkpoint; remove it and start again without --resume")


def _next_file(path: Path) -> Path:
    """metrics.jsonl, metrics-2.jsonl, ...: the first that is not there."""
    number = 1
    while (found := path if number == 1 else path.with_stem(f"{path.stem}-{number}")).exists():
        number += 1
    return found


def _new_lines(path: Path, position: int) -> tuple[list[bytes], int]:
    """The whole lines that a file has got since `position`, and the position behind them."""
    try:
        with open(path, "rb") as file:
            file.seek(position)
            data = file.read()
    except FileNotFoundError:
        return [], position
    end = data.rfind(b"\n") + 1
    return data[:end].splitlines(), position + end


def _step(line: bytes) -> Step | None:
    """A line of verl's file logger; None for what it logs before the first update (its validation)."""
    found = json.loads(line)
    return Step(int(found["step"]), found["data"]) if found["step"] > 0 else None
