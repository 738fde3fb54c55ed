"""TRL (and any other transformers trainer): `log_history` of the `trainer_state.json` in a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.readers import _keys, _text
from isentrope.run import Facts, Run, curves

STATE = "trainer_state.json"
NOTE = "TRL writes its settings as a pickle (training_args.bin), which is not read; give what matters with --fact"


def state_file(folder: Path) -> Path | None:
    """The trainer state in a folder, or that of its checkpoint of the highest step."""
    if (folder / STATE).is_file():
        return folder / STATE
    found = [
        (int(match[1]), path)
        for path in folder.glob(f"checkpoint-*/{STATE}")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.parent.name))
    ]
    return max(found)[1] if found else None


def read(path: Path, given: Mapping[str, str]) -> Run:
    """The run of a `trainer_state.json`. Evaluations and the summary at the end are left out."""
    state = _text.document(path)
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise IsentropeError(f"{path} has no list of objects under 'log_history'; this is no trainer state")
    steps = [row for row in history if is_step(row)]
    names = {name for row in steps for name in row}
    engine = _keys.engine_of(names) or "trl"
    chosen = _keys.plan(names, engine, given)
    theirs = next((name for name, ours in chosen.items() if ours == "entropy"), None)
    return Run(
        name=path.parent.name,
        engine=engine,
        series=curves(_rows(steps, chosen, path), str(path)),
        facts=Facts(entropy_kind=_keys.entropy_kind(engine, theirs)),
        sources=(f"{path.name} ({len(steps)} log lines)",),
        notes=(NOTE,) if engine == "trl" else (),
    )


def is_step(row: Mapping[str, Any]) -> bool:
    """True for the log of training steps, not of an evaluation and not the summary at the end."""
    return "train_runtime" not in row and not any(str(name).startswith("eval_") for name in row)


def _rows(
    steps: list[dict[str, Any]], chosen: Mapping[str, str], path: Path
) -> Iterator[tuple[float, dict[str, float]]]:
    for index, row in enumerate(steps):
        step = _text.step_of(row, "step", f"{path}: entry {index} of log_history")
        yield step, {chosen[name]: x for name, x in _text.numbers(row).items() if name in chosen}
