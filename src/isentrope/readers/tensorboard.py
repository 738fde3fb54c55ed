"""TensorBoard event files, by TensorBoard's own reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.readers import _keys
from isentrope.run import Facts, Run, Series

MARK = "tfevents"
EVERYTHING = 0  # TensorBoard's word for keeping all points of a curve


def event_folders(folder: Path) -> list[Path]:
    """The folders under (and with) this one that hold event files, each a run of TensorBoard's."""
    return sorted({path.parent for path in folder.rglob(f"*{MARK}*") if path.is_file()})


def read(path: Path, given: Mapping[str, str]) -> Run:
    """The scalars of one event file, or of all in one folder."""
    scalars = _scalars(path)
    engine = _keys.engine_of(scalars)
    chosen = _keys.plan(scalars, engine, given)
    theirs = next((name for name, ours in chosen.items() if ours == "entropy"), None)
    return Run(
        name=path.name,
        engine=engine,
        series={ours: scalars[name] for name, ours in chosen.items() if name in scalars},
        facts=Facts(entropy_kind=_keys.entropy_kind(engine, theirs)),
        sources=(f"TensorBoard events ({len(scalars)} scalars)",),
        notes=() if chosen else (f"none of the scalars has a known name: {', '.join(sorted(scalars)[:8])}; --column",),
    )


def _scalars(path: Path) -> dict[str, Series]:
    accumulator = _accumulator(path)
    found = {}
    for tag in accumulator.Tags()["scalars"]:
        found[tag] = Series.of({event.step: event.value for event in accumulator.Scalars(tag)})
    for tag in accumulator.Tags()["tensors"]:  # how newer writers store scalars
        points = {event.step: _scalar(event.tensor_proto) for event in accumulator.Tensors(tag)}
        if all(value is not None for value in points.values()):
            found[tag] = Series.of({step: value for step, value in points.items() if value is not None})
    if not found:
        raise IsentropeError(f"{path} holds no scalars of TensorBoard")
    return found


def _accumulator(path: Path) -> Any:
    try:
        from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
            EventAccumulator,
        )
    except ModuleNotFoundError as error:
        raise IsentropeError(
            f"{path} is of TensorBoard, whose package is missing: pip install tensorboard (or export as CSV)"
        ) from error
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": EVERYTHING, "tensors": EVERYTHING})
    try:
        accumulator.Reload()
    except Exception as error:  # whatever a broken event file makes TensorBoard's reader raise
        raise IsentropeError(f"cannot read {path} as TensorBoard events: {error}") from error
    return accumulator


def _scalar(proto: Any) -> float | None:
    from tensorboard.util.tensor_util import make_ndarray  # type: ignore[import-untyped]

    try:
        array = make_ndarray(proto)
        return float(array) if array.ndim == 0 else None
    except (TypeError, ValueError):
        return None
