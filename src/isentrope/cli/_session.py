"""One training run, from a resolved recipe to the table at the end. It imports the host framework."""

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from isentrope import record, spec, tasks
from isentrope.cli import _adapters, _report, _sources, _stages
from isentrope.cli._display import Display, LineDisplay, LiveDisplay
from isentrope.cli._errors import failing, say
from isentrope.cli._interrupt import Interrupt, listening
from isentrope.cli._output import program
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.recipe import Recipe
from isentrope.record import RunFolder
from isentrope.tasks import Example, Task
from isentrope.tasks.curriculum import Curriculum
from isentrope.tasks.mix import Order
from isentrope.tasks.scenarios import completion_of
from isentrope.token_dump import TokenWriter

PROBLEM_SEED = 1_000_003  # apart from the training problems' seed; the splits are disjoint in any case


@dataclass(frozen=True)
class Session:
    """What a run has at hand once its recipe is understood."""

    recipe: Recipe
    name: str  # "preset: ", or nothing where the objective has no name
    objective: Objective
    mix: list[tuple[Task, float]]
    training: list[dict[str, Any]]  # rows of the data set
    held_out: list[list[Example]]  # of each task of the mix, [] without an evaluation
    folder: RunFolder
    console: Console
    is_main: bool

    def print(self, text: str) -> None:
        """Text for the user, from the main process alone."""
        if self.is_main:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def run(recipe: Recipe, path: Path, resume: bool, as_json: bool) -> dict[str, Any]:
    """Train, evaluate, draw and report; the summary as in summary.json, with `interrupted` true after a signal.

    Everything that can be wrong with the input is found, and raised as IsentropeError, before the run folder gets its
    recipe. An error after that raises RunFailed.
    """
    session = _session(recipe, path, resume, Console(stderr=as_json))
    with record.locked(path) if session.is_main else nullcontext():
        return _run(session, resume)


def _run(session: Session, resume: bool) -> dict[str, Any]:
    checkpoint = session.folder.last_checkpoint() if resume else None
    _prepare_host(session)
    model, tokenizer = _load_model(session.recipe, checkpoint)
    _open_folder(session, checkpoint)
    started = time.monotonic()
    with failing(session.folder.error):
        _introduce(session, model, checkpoint)
        if checkpoint is None:
            _warm_up(session, model, tokenizer)
        _evaluate(session, model, tokenizer, "before")
        interrupted = _train(session, model, tokenizer, checkpoint)
        if interrupted:
            return _interrupted(session)
        _evaluate(session, model, tokenizer, "after")
        return _conclude(session, time.monotonic() - started)


def _session(recipe: Recipe, path: Path, resume: bool, console: Console) -> Session:
    objective = load_objective(recipe.objective)
    mix = [(tasks.get(task.name, **task.options), task.weight) for task in recipe.task]
    order_of(recipe, mix)
    _sources.check(recipe, mix)
    is_main = int(os.environ.get("RANK", "0")) == 0
    training = tasks.dataset_rows(mix, "train", recipe.trainer.problems, recipe.seed)
    num_held_out, seed = recipe.evaluation.problems, PROBLEM_SEED + recipe.seed
    held_out = [task.examples("test", num_held_out, seed) if num_held_out else [] for task, _ in mix]
    folder = RunFolder(path) if resume or not is_main else RunFolder.create(path)
    output = recipe.output.model_copy(update={"dir": ""})  # the recipe lies in it, and serves for other runs
    resolved = recipe.model_copy(update={"objective": spec.to_dict(objective), "output": output})
    name = f"{recipe.objective}: " if isinstance(recipe.objective, str) else ""
    return Session(resolved, name, objective, mix, training, held_out, folder, console, is_main)


def load_objective(source: str | Mapping[str, Any]) -> Objective:
    """The objective of a recipe; IsentropeError also for numbers that a rule refuses and a file that does not run."""
    try:
        return spec.load(source)
    except IsentropeError:
        raise
    except Exception as error:
        name = source if isinstance(source, str) else "of the recipe"
        raise IsentropeError(f"objective {name}: {type(error).__name__}: {error}") from error


def _prepare_host(session: Session) -> None:
    """Quiet the host's own reports, make torch repeatable, and let the host check its options."""
    import datasets
    import torch
    import transformers

    from isentrope.engines.trl_mix import check_shuffled
    from isentrope.engines.trl_options import check_options

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    if session.recipe.trainer.threads:
        torch.set_num_threads(session.recipe.trainer.threads)
    transformers.set_seed(session.recipe.seed)
    args = grpo_config(session.recipe, session.folder)
    check_options(args)
    check_shuffled(order_of(session.recipe, session.mix), args)
    _adapters.config(session.recipe)
    _sources.sampler(session.recipe.trainer.sampler, args, session.mix)


def _load_model(recipe: Recipe, checkpoint: Path | None) -> tuple[Any, Any]:
    """Model and tokenizer; a resumed run takes the weights of its checkpoint."""
    import torch

    from isentrope import models

    return models.load(_adapters.source(recipe, checkpoint), getattr(torch, recipe.model.dtype))


def _open_folder(session: Session, checkpoint: Path | None) -> None:
    """Write what is known before the first step; bring what an earlier process left to the checkpoint's step."""
    if not session.is_main:
        return
    folder = session.folder
    record.write_text(folder.recipe, session.recipe.to_toml())
    if checkpoint is None:
        record.write_json(folder.versions, record.versions(session.recipe.seed))
    record.rewind(folder, record.checkpoint_step(checkpoint) if checkpoint else 0)


def _introduce(session: Session, model: Any, checkpoint: Path | None) -> None:
    """Say what is about to happen, and what of it cannot have an effect."""
    recipe, trainer = session.recipe, session.recipe.trainer
    size = sum(parameter.numel() for parameter in model.parameters())
    session.print(f"model      {recipe.model.name}: {size / 1e6:.2f} M parameters, {recipe.model.dtype}")
    session.print(f"tasks      {', '.join(f'{task.name} ({weight:g})' for task, weight in session.mix)}")
    for line in (*_adapters.lines(recipe), *_stages.lines(recipe)):
        session.print(line)
    session.print(f"objective  {session.name}{brief(session.objective)}")
    session.print(
        f"loop       {trainer.steps} updates, {trainer.updates_per_rollout} per rollout batch of {trainer.prompts}"
        f" prompts x {trainer.group_size} completions; learning rate {trainer.learning_rate:g}; seed {recipe.seed}"
    )
    session.print(f"run folder {session.folder.path}")
    if checkpoint is not None:
        session.print(f"resuming   after step {record.checkpoint_step(checkpoint)}")
    for sentence in session.objective.inert(trainer.updates_per_rollout, trainer.group_size):
        session.print(f"warning    {sentence}")


def brief(objective: Objective) -> str:
    """The rules of an objective on one line, in the order of the slots; slots left at their default are left out.

    >>> from isentrope import presets
    >>> brief(presets.dr_grpo)
    'GroupCentred(), PPOClip(low=0.2, high=0.2), ConstantLength()'
    """
    held = [
        getattr(objective, slot.name) for slot in fields(objective) if getattr(objective, slot.name) != slot.default
    ]
    rules = [rule for slot in held for rule in (slot if isinstance(slot, tuple) else (slot,))]
    return ", ".join(_call(rule) for rule in rules)


def _call(rule: Any) -> str:
    """A rule as it would be written, without the fields that are None; a plain function by its name."""
    if not is_dataclass(rule):
        return str(getattr(rule, "__name__", rule))
    values = {field.name: getattr(rule, field.name) for field in fields(rule)}
    given = ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
    return f"{type(rule).__name__}({given})"


def _warm_up(session: Session, model: Any, tokenizer: Any) -> None:
    """The recipe's supervised updates, where it asks for some."""
    import torch

    from isentrope.warmup import warm_up

    settings = session.recipe.warmup
    if not settings.steps:
        return
    if torch.cuda.is_available():
        model.to("cuda")
    every = max(1, settings.steps // 5)

    def told(step: int, loss: float) -> None:
        if step % every == 0 or step == settings.steps:
            session.print(f"warm-up    {step} of {settings.steps} updates on references, loss {loss:.3f}")

    warm_up(model, tokenizer, session.mix, **settings.model_dump(), seed=session.recipe.seed, told=told)


def _evaluate(session: Session, model: Any, tokenizer: Any, when: str) -> None:
    """Measure on the held-out problems of every task; what an earlier process measured before training stands."""
    from isentrope.evaluate import evaluate

    settings, path = session.recipe.evaluation, session.folder.evaluation(when)
    if not settings.problems or not session.is_main or (when == "before" and path.is_file()):
        return
    reports = [
        evaluate(
            model,
            tokenizer,
            task,
            examples,
            samples=settings.samples,
            max_new_tokens=session.recipe.trainer.max_completion_length,
            temperature=settings.temperature,
            seed=session.recipe.seed,
            batch_size=settings.batch,
        ).to_dict()
        for (task, _), examples in zip(session.mix, session.held_out, strict=True)
    ]
    goals = [
        completion_of(task, examples, report["right"], settings.samples)
        for (task, _), examples, report in zip(session.mix, session.held_out, reports, strict=True)
    ]
    record.write_json(
        path, [report | (asdict(goal) if goal else {}) for report, goal in zip(reports, goals, strict=True)]
    )
    for report, goal in zip(reports, goals, strict=True):
        session.print(f"{when:<10} {_report.brief(report)}{f'; {goal}' if goal else ''}")


def _train(session: Session, model: Any, tokenizer: Any, checkpoint: Path | None) -> bool:
    """Run the trainer up to the recipe's step; True if a signal ended it early."""
    steps = session.recipe.trainer.steps
    if checkpoint is not None and record.checkpoint_step(checkpoint) >= steps:
        session.print(f"the run has made its {steps} steps already; more with --steps")
        return False
    display = _display(session)
    interrupt = Interrupt(display.note)
    trainer = _trainer(session, model, tokenizer, display, interrupt)
    display.start()
    try:
        with listening(interrupt), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about the host's own next version
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        # before the main process evaluates: the others would wait for it, and time out where that takes long
        trainer.accelerator.wait_for_everyone()
        trainer.accelerator.end_training()
    finally:
        display.stop()
    return interrupt.requested and trainer.state.global_step < steps


def _display(session: Session) -> Display:
    if session.console.is_terminal and session.is_main:
        return LiveDisplay(session.console)
    return LineDisplay(session.console if session.is_main else Console(quiet=True))


def _trainer(session: Session, model: Any, tokenizer: Any, display: Display, interrupt: Any) -> Any:
    from transformers import PrinterCallback

    from isentrope.cli import _callbacks
    from isentrope.engines.trl import InertObjectiveWarning, ObjectiveTrainer

    recipe, trainer = session.recipe, session.recipe.trainer
    args = grpo_config(recipe, session.folder)
    every = recipe.output.tokens_every
    earlier = record.iter_metrics(session.folder.metrics) if session.folder.metrics.is_file() else ()

    def measure(step: int) -> None:
        _evaluate(session, model, tokenizer, _stages.when(step))

    tokens = TokenWriter(session.folder.tokens, rank=int(os.environ.get("RANK", "0"))) if every else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InertObjectiveWarning)  # said in _introduce
        warnings.filterwarnings("ignore", "You are using 'rollout_func'")
        warnings.simplefilter("ignore", FutureWarning)  # about the host's own next version
        made = ObjectiveTrainer(
            model,
            args=args,
            processing_class=tokenizer,
            callbacks=[
                _callbacks.RecordCallback(session.folder.metrics, tokens, recipe.output.keep_checkpoints),
                _callbacks.MeasureCallback(_stages.ends(recipe)[:-1], measure),
                _callbacks.StopCallback(recipe.output.checkpoint_every, interrupt),
                _callbacks.ProgressCallback(display, trainer.updates_per_rollout, earlier),
            ],
            peft_config=_adapters.config(recipe),
            objective=session.objective,
            without_guards=trainer.without_guards,
            token_sink=tokens,
            token_interval=every,
            diagnostics_interval=recipe.output.diagnostics_every,
            order=order_of(recipe, session.mix),
            reward_time_limit=trainer.reward_time_limit or None,
            **_sources.of_trainer(trainer.sampler, args, session.mix, session.training),
        )
    made.remove_callback(PrinterCallback)
    assert made.updates_per_rollout == trainer.updates_per_rollout
    return made


def order_of(recipe: Recipe, mix: Sequence[tuple[Task, float]]) -> Order | None:
    """How a recipe's prompts are chosen; None leaves it to TRL."""
    rule = recipe.curriculum
    curriculum = Curriculum(**rule.model_dump(exclude={"by"}))  # checks the numbers where it is off, too
    if rule.by or recipe.stage or recipe.trainer.order == "stratified":
        weights = {task.name: weight for task, weight in mix}
        return Order(weights, curriculum if rule.by else None, _stages.stretches(recipe, mix))
    return None


def grpo_config(recipe: Recipe, folder: RunFolder) -> Any:
    """trl.GRPOConfig for a recipe. IsentropeError for what TRL refuses."""
    import torch
    from trl import GRPOConfig

    loop, world = recipe.trainer, int(os.environ.get("WORLD_SIZE", "1"))
    if loop.micro_rows % world:
        raise IsentropeError(
            f"{world} processes cannot share the {loop.micro_rows} completions of a micro-batch evenly"
        )
    has_gpu = torch.cuda.is_available()
    ours: dict[str, Any] = {
        "output_dir": str(folder.checkpoints),
        "seed": recipe.seed,
        "max_steps": loop.steps,
        "learning_rate": loop.learning_rate,
        "lr_scheduler_type": loop.lr_schedule,
        "warmup_steps": loop.warmup_steps,
        "max_grad_norm": loop.max_grad_norm,
        "num_generations": loop.group_size,
        "num_iterations": loop.passes,
        "per_device_train_batch_size": loop.micro_rows // world,
        "gradient_accumulation_steps": loop.rows // loop.minibatches // loop.micro_rows,
        "steps_per_generation": loop.rows // loop.micro_rows,
        "max_completion_length": loop.max_completion_length,
        "temperature": loop.temperature,
        "report_to": recipe.output.report_to or "none",
        "save_strategy": "no",  # StopCallback asks for checkpoints
        "save_total_limit": None,  # RecordCallback deletes the old ones
        "logging_steps": 1,
        "logging_strategy": "steps",
        "disable_tqdm": True,
    }
    defaults = {"bf16": False, "use_cpu": not has_gpu, "dataloader_pin_memory": has_gpu}
    if not {"gradient_checkpointing", "activation_checkpointing"} & set(recipe.trl):
        defaults[_checkpointing_option()] = False
    try:
        return GRPOConfig(**(defaults | recipe.trl | ours))
    except (ValueError, TypeError) as error:
        raise IsentropeError(f"TRL refuses these settings: {error}") from error


def _checkpointing_option() -> str:
    """transformers is renaming this option and warns about the old name."""
    from trl import GRPOConfig

    known = {field.name for field in fields(GRPOConfig)}
    return "activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"


def _interrupted(session: Session) -> dict[str, Any]:
    checkpoint = session.folder.last_checkpoint()
    assert checkpoint is not None, "a signal makes the trainer save"
    if session.is_main:
        say(
            f"stopped after step {record.checkpoint_step(checkpoint)}; continue with:"
            f" {program()} train --resume --out {session.folder.path}"
        )
    return {"run": str(session.folder.path), "step": record.checkpoint_step(checkpoint), "interrupted": True}


def _conclude(session: Session, seconds: float) -> dict[str, Any]:
    """Write the summary and the curves, print the table."""
    if not session.is_main:
        return {"interrupted": False}
    summary = _report.summary(session.folder, session.recipe, seconds)
    record.write_json(session.folder.summary, summary)
    _report.draw(session.folder)
    _report.show(session.console, summary, session.folder)
    return summary
