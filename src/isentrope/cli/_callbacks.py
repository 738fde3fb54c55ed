"""What watches TRL's trainer: the record, the progress display, and checkpoints."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from isentrope.cli._display import Display, Tracker
from isentrope.cli._interrupt import Interrupt
from isentrope.record import append_metrics, finish_checkpoint, prune_checkpoints
from isentrope.token_dump import TokenWriter

KEPT_LOGS = 20  # lines; metrics.jsonl has all


class RecordCallback(TrainerCallback):
    """Writes metrics.jsonl, finishes checkpoints, of which `keep` stay, and closes token dumps. On the main process
    alone.

    The host keeps every log in memory and writes all of them into each checkpoint; here only the last few stay.
    """

    def __init__(self, metrics: Path, tokens: TokenWriter | None, keep: int) -> None:
        self._metrics, self._tokens, self._keep = metrics, tokens, keep

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if state.is_world_process_zero and logs and is_step(logs):
            append_metrics(self._metrics, state.global_step, logs)
        del state.log_history[:-KEPT_LOGS]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._tokens is not None:
            self._tokens.close()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # every process has files of its own in a checkpoint
        if state.is_world_process_zero:
            folder = Path(str(args.output_dir))
            finish_checkpoint(folder / f"checkpoint-{state.global_step}")
            prune_checkpoints(folder, self._keep)  # not the host: it deletes before the new one is complete


class StopCallback(TrainerCallback):
    """Asks for a checkpoint every so many steps, at the last one, and after a signal, which ends the run too."""

    def __init__(self, every: int, interrupt: Interrupt) -> None:
        self._every, self._interrupt = every, interrupt

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if is_any(self._interrupt.requested, args):
            self._interrupt.requested = control.should_training_stop = control.should_save = True
        is_due = self._every > 0 and state.global_step % self._every == 0
        if is_due or state.global_step >= state.max_steps:
            control.should_save = True


class MeasureCallback(TrainerCallback):
    """Calls measure(step) at the end of some steps, before their checkpoint: what it writes is there with that."""

    def __init__(self, steps: Collection[int], measure: Callable[[int], None]) -> None:
        self._steps, self._measure = steps, measure

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step in self._steps:
            self._measure(state.global_step)


class ProgressCallback(TrainerCallback):
    """Shows the logs of every step; clip shares over the last `window` of them. earlier: those on record, read once."""

    def __init__(self, display: Display, window: int, earlier: Iterable[dict[str, Any]] = ()) -> None:
        self._display, self._window, self._earlier = display, window, earlier
        self._tracker: Tracker | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._tracker = Tracker(state.max_steps, state.global_step, state.num_input_tokens_seen, self._window)
        self._tracker.recall((line["step"], line) for line in self._earlier)
        self._earlier = ()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if self._tracker is not None and logs and is_step(logs):
            self._display.show(self._tracker.update(state.global_step, logs))


def is_any(flag: bool, args: TrainingArguments) -> bool:
    """Whether the flag is up on any process: all must stop at the same step, though a signal reaches them apart."""
    if not torch.distributed.is_initialized():
        return flag
    flags = torch.tensor(int(flag), device=args.device)
    torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
    return bool(flags)


def is_step(logs: dict[str, Any]) -> bool:
    """True for the log of an optimizer step; the trainer also logs a summary at the end and evaluations."""
    return "train_runtime" not in logs and not any(key.startswith("eval_") for key in logs)
