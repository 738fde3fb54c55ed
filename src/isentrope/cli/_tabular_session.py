"""One run of the tabular engine, from a resolved recipe to the run folder that every engine leaves."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from isentrope import record, spec
from isentrope.cli import _report, _stages
from isentrope.cli._display import NUM_TOKENS, LineDisplay, LiveDisplay, Tracker
from isentrope.cli._errors import failing, say
from isentrope.cli._interrupt import Interrupt, listening
from isentrope.cli._output import program
from isentrope.cli._session import brief, load_objective
from isentrope.engines.tabular import TabularTrainer
from isentrope.engines.tabular_evaluation import evaluate
from isentrope.errors import IsentropeError
from isentrope.recipe import Recipe
from isentrope.record import RunFolder
from isentrope.token_dump import TokenWriter

STATE = "tabular.pt"  # in a checkpoint's folder
SHOWN = 25  # steps between two snapshots of the display


@dataclass(frozen=True)
class Session:
    """What a run has at hand once its recipe is understood."""

    recipe: Recipe
    name: str  # "preset: ", or nothing where the objective has no name
    trainer: TabularTrainer
    folder: RunFolder
    console: Console

    def print(self, text: str) -> None:
        """Text for the user."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def run(recipe: Recipe, path: Path, resume: bool, as_json: bool) -> dict[str, Any]:
    """Train, evaluate, draw and report; the summary as in summary.json, with `interrupted` true after a signal.

    Everything that can be wrong with the input is found, and raised as IsentropeError, before the run folder gets its
    recipe. An error after that raises RunFailed.
    """
    objective = load_objective(recipe.objective)
    trainer = TabularTrainer(objective, recipe)
    folder = RunFolder(path) if resume else RunFolder.create(path)
    output = recipe.output.model_copy(update={"dir": ""})  # the recipe lies in it, and serves for other runs
    resolved = recipe.model_copy(update={"objective": spec.to_dict(objective), "output": output})
    name = f"{recipe.objective}: " if isinstance(recipe.objective, str) else ""
    session = Session(resolved, name, trainer, folder, Console(stderr=as_json))
    with record.locked(path), _threads(recipe.trainer.threads):
        return _run(session, resume)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """torch's number of threads while the block runs; 0 leaves it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(session: Session, resume: bool) -> dict[str, Any]:
    checkpoint = session.folder.last_checkpoint() if resume else None
    _open_folder(session, checkpoint)
    started = time.monotonic()
    with failing(session.folder.error):
        _introduce(session, checkpoint)
        _evaluate(session, "before")
        if _train(session):
            return _interrupted(session)
        _evaluate(session, "after")
        return _conclude(session, time.monotonic() - started)


def _open_folder(session: Session, checkpoint: Path | None) -> None:
    """Write what is known before the first step; bring what an earlier process left to the checkpoint's step."""
    folder = session.folder
    record.write_text(folder.recipe, session.recipe.to_toml())
    if checkpoint is None:
        record.write_json(folder.versions, record.versions(session.recipe.seed))
        return
    try:
        saved = torch.load(checkpoint / STATE, weights_only=True)
    except (OSError, RuntimeError) as error:
        raise IsentropeError(f"{checkpoint} holds no state of the tabular engine: {error}") from error
    session.trainer.load_state_dict(saved, str(checkpoint))
    record.rewind(folder, session.trainer.num_steps)


def _introduce(session: Session, checkpoint: Path | None) -> None:
    recipe, loop, world = session.recipe, session.recipe.trainer, session.trainer.world
    shape = world.settings
    kind = "bandits" if shape.length == 1 else f"chains of at most {shape.length} symbols"
    session.print(f"policy     {kind}, vocabulary {shape.vocabulary}, {len(world.prior)} tables; {shape.precision}")
    listed = [f"{name} ({one.entropy:g})" for name, one in zip(world.names, world.families, strict=True)]
    session.print(f"tasks      {', '.join(listed)}: share of the largest entropy at the start")
    for line in _stages.lines(recipe):
        session.print(line)
    session.print(f"objective  {session.name}{brief(session.trainer.objective)}")
    session.print(
        f"loop       {loop.steps} updates, {loop.updates_per_rollout} per rollout batch of {loop.prompts}"
        f" prompts x {loop.group_size} completions; {shape.optimizer}, learning rate {loop.learning_rate:g};"
        f" seed {recipe.seed}"
    )
    session.print(f"run folder {session.folder.path}")
    if checkpoint is not None:
        session.print(f"resuming   after step {session.trainer.num_steps}")
    for sentence in session.trainer.objective.inert(loop.updates_per_rollout, loop.group_size):
        session.print(f"warning    {sentence}")


def _evaluate(session: Session, when: str) -> None:
    """Measure on the held-out problems of every task; what an earlier process measured before training stands."""
    path, trainer, settings = session.folder.evaluation(when), session.trainer, session.recipe.evaluation
    if not settings.problems or (when == "before" and path.is_file()):
        return
    reports = evaluations(trainer)
    record.write_json(path, reports)
    if len(reports) == 1:
        session.print(f"{when:<10} {_report.brief(reports[0])}")


def evaluations(trainer: TabularTrainer) -> list[dict[str, Any]]:
    """An exact evaluation of each task on its held-out problems."""
    settings = trainer.recipe.evaluation
    return [
        evaluate(
            trainer.learnt.detach(),
            problems,
            trainer.settings,
            task=name,
            samples=settings.samples,
            temperature=settings.temperature,
            seed=trainer.recipe.seed,
        )
        for name, problems in zip(trainer.world.names, trainer.held_out(), strict=True)
    ]


def _train(session: Session) -> bool:
    """Go on to the recipe's last step; True if a signal ended it early."""
    trainer, output, steps = session.trainer, session.recipe.output, session.recipe.trainer.steps
    if trainer.num_steps >= steps:
        session.print(f"the run has made its {steps} steps already; more with --steps")
        return False
    display = LiveDisplay(session.console) if session.console.is_terminal else LineDisplay(session.console)
    interrupt = Interrupt(display.note)
    writer = TokenWriter(session.folder.tokens) if output.tokens_every else None
    tracker, boundaries = _tracker(session), _stages.ends(session.recipe)[:-1]
    display.start()
    try:
        with listening(interrupt):
            while trainer.num_steps < steps and not interrupt.requested:
                step = trainer.num_steps + 1
                logged = trainer.step(measure=bool(output.diagnostics_every) and step % output.diagnostics_every == 0)
                record.append_metrics(session.folder.metrics, step, logged)
                if writer is not None and step % output.tokens_every == 0:
                    writer(step, trainer.token_columns())
                    writer.close()
                progress = tracker.update(step, logged)
                if step % SHOWN == 0 or step == steps:
                    display.show(progress)
                if step in boundaries:
                    _evaluate(session, _stages.when(step))
                if step == steps or _is_due(step, output.checkpoint_every):
                    _save(session)
            if trainer.num_steps < steps:  # a signal
                _save(session)
    finally:
        display.stop()
    return interrupt.requested and trainer.num_steps < steps


def _tracker(session: Session) -> Tracker:
    folder, loop = session.folder, session.recipe.trainer
    earlier = record.read_metrics(folder.metrics) if folder.metrics.is_file() else []
    tokens = next((line[NUM_TOKENS] for line in reversed(earlier) if NUM_TOKENS in line), 0)
    tracker = Tracker(loop.steps, session.trainer.num_steps, tokens, window=loop.updates_per_rollout)
    tracker.recall((line["step"], line) for line in earlier)
    return tracker


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _save(session: Session) -> None:
    """A checkpoint, whole or not counted."""
    path = session.folder.checkpoints / f"checkpoint-{session.trainer.num_steps}"
    with record.replacing(path / STATE) as temporary:
        torch.save(session.trainer.state_dict(), temporary)
    record.finish_checkpoint(path)
    record.prune_checkpoints(session.folder.checkpoints, session.recipe.output.keep_checkpoints)


def _interrupted(session: Session) -> dict[str, Any]:
    step, path = session.trainer.num_steps, session.folder.path
    say(f"stopped after step {step}; continue with: {program()} train --resume --out {path}")
    return {"run": str(path), "step": step, "interrupted": True}


def _conclude(session: Session, seconds: float) -> dict[str, Any]:
    """Write the summary and the curves, print the table."""
    summary = _report.summary(session.folder, session.recipe, seconds)
    record.write_json(session.folder.summary, summary)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # matplotlib's on fonts
        _report.draw(session.folder)
    _report.show(session.console, summary, session.folder)
    return summary
