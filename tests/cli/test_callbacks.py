"""What watches TRL's trainer."""

from pathlib import Path

import pytest

from isentrope import record

pytestmark = pytest.mark.engine


def test_of_the_hosts_logs_the_last_few_stay_and_the_record_has_all(tmp_path: Path) -> None:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from isentrope.cli._callbacks import KEPT_LOGS, RecordCallback

    metrics = tmp_path / "metrics.jsonl"
    callback = RecordCallback(metrics, None, keep=1)
    state, args = TrainerState(), TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    for step in range(1, 51):
        state.global_step = step
        state.log_history.append({"loss": 0.5, "step": step})
        callback.on_log(args, state, TrainerControl(), logs={"loss": 0.5})
    assert [line["step"] for line in state.log_history] == list(range(51 - KEPT_LOGS, 51))
    assert [line["step"] for line in record.iter_metrics(metrics)] == list(range(1, 51))


def test_what_is_on_record_is_read_once_and_let_go(tmp_path: Path) -> None:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from isentrope.cli._callbacks import ProgressCallback
    from isentrope.cli._display import Progress

    shown: list[Progress] = []

    class Display:
        def start(self) -> None: ...

        def show(self, progress: Progress) -> None:
            shown.append(progress)

        def note(self, text: str) -> None: ...

        def stop(self) -> None: ...

    callback = ProgressCallback(Display(), 1, ({"step": step, "entropy": 1.0 / step} for step in (1, 2)))
    state, args = TrainerState(max_steps=4), TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    callback.on_train_begin(args, state, TrainerControl())
    callback.on_log(args, state, TrainerControl(), logs={"entropy": 0.25})
    assert (shown[0].entropy_start, shown[0].entropy) == (1.0, 0.25)
    assert callback._earlier == ()
