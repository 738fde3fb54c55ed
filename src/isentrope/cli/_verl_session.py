"""One run with engine verl: from a resolved recipe to a job's end, in the run folder that every engine leaves."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from isentrope import record, spec
from isentrope.cli import _report
from isentrope.cli._display import NUM_TOKENS, Display, LineDisplay, LiveDisplay, Tracker
from isentrope.cli._errors import failing, say
from isentrope.cli._output import program
from isentrope.cli._verl_plan import Plan, resolve
from isentrope.engines import verl_evaluation
from isentrope.engines.verl_config import Layout
from isentrope.engines.verl_data import write_parquet
from isentrope.engines.verl_run import TOKENS, Job, Step, latest_rollout, translate
from isentrope.recipe import Recipe
from isentrope.record import RunFolder


@dataclass(frozen=True)
class Session:
    """What a run has at hand once its recipe is understood."""

    plan: Plan
    folder: RunFolder
    console: Console

    @property
    def layout(self) -> Layout:
        return self.plan.layout

    def print(self, text: str) -> None:
        """Text for the user."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def run(recipe: Recipe, path: Path, resume: bool, as_json: bool) -> dict[str, Any]:
    """Train, collect and report; the summary as in summary.json, with `interrupted` true after a signal.

    Everything that can be wrong with the input is found, and raised as IsentropeError, before Ray starts and before the
    run folder gets its recipe. A job that fails raises RunFailed with the job's own words.
    """
    plan = resolve(recipe, path)
    plan.refuse()
    folder = RunFolder(path) if resume else RunFolder.create(path)
    session = Session(plan, folder, Console(stderr=as_json))
    with record.locked(path):
        done = (latest_rollout(plan.layout) or 0) if resume else 0
        _open_folder(session, resume, done)
        started = time.monotonic()
        with failing(folder.error):
            _introduce(session, done)
            interrupted = done < plan.batches.rollouts and _train(session, done)
            if interrupted:
                return _interrupted(session)
            return _conclude(session, time.monotonic() - started)


def _open_folder(session: Session, resume: bool, done: int) -> None:
    """Write what is known before the first step; bring what an earlier process left to the checkpoint's step."""
    plan, folder, layout = session.plan, session.folder, session.layout
    output = plan.recipe.output.model_copy(update={"dir": ""})  # the recipe lies in it, and serves for other runs
    kept = plan.recipe.model_copy(update={"objective": spec.to_dict(plan.objective), "output": output})
    record.write_text(folder.recipe, kept.to_toml())
    record.write_text(layout.config, plan.yaml())
    write_parquet(layout.train, plan.training)
    write_parquet(layout.test, plan.held_out)
    if not resume:
        record.write_json(folder.versions, record.versions(plan.recipe.seed))
    record.truncate_metrics(folder.metrics, done * plan.batches.updates_per_rollout)


def _introduce(session: Session, done: int) -> None:
    for line in session.plan.introduction():
        session.print(line)
    session.print(f"run folder {session.folder.path} (the job's own words: {session.layout.log})")
    if done:
        session.print(f"resuming   after rollout {done}, update {done * session.plan.batches.updates_per_rollout}")
    session.print("starting   Ray, workers and rollout servers; a minute or more")


def _train(session: Session, done: int) -> bool:
    """Run the job to its end; True if a signal ended it."""
    sizes = session.plan.batches
    display = _display(session.console)
    tracker = Tracker(sizes.rollouts * sizes.updates_per_rollout, done * sizes.updates_per_rollout)
    earlier = record.read_metrics(session.folder.metrics) if session.folder.metrics.is_file() else []
    tracker.recall((line["step"], line) for line in earlier)
    tokens = next((line[NUM_TOKENS] for line in reversed(earlier) if NUM_TOKENS in line), 0.0)
    job = Job(session.layout, session.plan.recipe.laptop, session.plan.recipe.trainer.threads)
    display.start()
    try:
        with _ending(job):
            for step in job.steps():
                tokens += step.values.get(TOKENS, 0.0)
                number, values = _record(session, step, tokens)
                display.show(tracker.update(number, values))
    except KeyboardInterrupt:
        return True
    finally:
        display.stop()
    job.check()
    return False


@contextmanager
def _ending(job: Job) -> Iterator[None]:
    """However the block ends, no process of the job is left. SIGTERM ends it as Ctrl-C does, neither in haste."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        patient = signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            job.stop()
        finally:
            signal.signal(signal.SIGINT, patient)
            signal.signal(signal.SIGTERM, earlier)


def _record(session: Session, step: Step, tokens: float) -> tuple[int, dict[str, float]]:
    """Append one line to our metrics; the optimizer step it stands for, and its numbers."""
    number = step.rollout * session.plan.batches.updates_per_rollout
    values = translate(step.values) | {NUM_TOKENS: tokens}
    record.append_metrics(session.folder.metrics, number, values)
    return number, values


def _display(console: Console) -> Display:
    return LiveDisplay(console) if console.is_terminal else LineDisplay(console)


def _interrupted(session: Session) -> dict[str, Any]:
    found = latest_rollout(session.layout)
    path = session.folder.path
    updates = (found or 0) * session.plan.batches.updates_per_rollout
    if found is None:
        say(f"stopped before the first checkpoint, of which none is left; remove {path} to start again")
    else:
        say(f"stopped; verl's last checkpoint is after update {updates}: {program()} train --resume --out {path}")
    return {"run": str(path), "step": updates, "interrupted": True}


def _conclude(session: Session, seconds: float) -> dict[str, Any]:
    """Write evaluations, summary and curves, print the table."""
    if session.plan.recipe.evaluation.problems:
        for when, rollout in (("before", 0), ("after", session.plan.batches.rollouts)):
            _evaluation(session, when, rollout)
    summary = _report.summary(session.folder, session.plan.recipe, seconds)
    record.write_json(session.folder.summary, summary)
    _report.draw(session.folder)
    _report.show(session.console, summary, session.folder)
    return summary


def _evaluation(session: Session, when: str, rollout: int) -> None:
    path = session.folder.evaluation(when)
    if path.is_file():
        return
    dump = session.layout.validation / f"{rollout}.jsonl"
    found = verl_evaluation.reports(dump, session.plan.held_out, session.plan.recipe)
    record.write_json(path, found)
    for report in found:
        session.print(f"{when:<10} {_report.brief(report)}")
