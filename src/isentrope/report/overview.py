"""Tables over the runs: results and settings side by side, what differs between recipes, versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isentrope import presets, spec
from isentrope.curves import correlation, cumulative_entropy
from isentrope.report.charts import CLIPS, ENTROPY, paired
from isentrope.report.data import RunData

Runs = Sequence[RunData]
UNKNOWN = "\u2013"
MAX_APART = 3  # settings by which an objective is still called a variant of a preset
MINUS = "\u2212"


@dataclass(frozen=True)
class Row:
    """One line of a table: a label and a cell a run. differs: whether the runs disagree."""

    label: str
    cells: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the runs disagree."""
        return len(set(self.cells)) > 1


def results(runs: Runs) -> list[Row]:
    """What came out, a row a measure; measures that no run has are left out."""
    rows = [Row(label, tuple(_safe(measure, run) for run in runs)) for label, measure in _MEASURES]
    for task in sorted({one.task for run in runs for one in run.evaluations}):
        rows += _pass_rows(runs, task)
    return [row for row in rows if set(row.cells) != {UNKNOWN}]


def settings(runs: Runs) -> list[Row]:
    """How the runs were made, a row a setting that any run has."""
    rows = [Row(label, tuple(_text(get(run)) for run in runs)) for label, get in _SETTINGS]
    return [row for row in rows if set(row.cells) != {UNKNOWN}]


def recipe_differences(runs: Runs) -> list[Row]:
    """Keys of the recipes that do not agree over all runs; empty for fewer than two recipes."""
    tables = [_flat(run.recipe) for run in runs]
    if sum(map(bool, tables)) < 2:
        return []
    keys = sorted({key for table in tables for key in table})
    rows = [Row(key, tuple(_text(table.get(key)) for table in tables)) for key in keys]
    return [row for row in rows if row.differs]


def versions(runs: Runs) -> list[Row]:
    """versions.json of all runs, a row a package or fact."""
    keys = list(dict.fromkeys(key for run in runs for key in run.versions))
    return [Row(key, tuple(_text(run.versions.get(key)) for run in runs)) for key in keys]


def number(x: float) -> str:
    """Three significant digits with a true minus sign.

    >>> number(0.12345), number(-1234567.0), number(12.0)
    ('0.123', '\u22121.23e+06', '12')
    """
    return f"{x:.3g}".replace("-", MINUS, 1) if x < 0 else f"{x:.3g}"


def _arrow(ends: tuple[float, float]) -> str:
    return f"{number(ends[0])} \u2192 {number(ends[1])}"


def _ends(*names: str) -> Callable[[RunData], str]:
    def found(run: RunData) -> str:
        curve = run.curve(*names)
        return _arrow(curve.ends) if len(curve) else UNKNOWN

    return found


def _steps(run: RunData) -> str:
    last = max((curve.steps[-1] for curve in run.curves.values() if len(curve)), default=None)
    return UNKNOWN if last is None else f"{last:g}"


def _area(run: RunData) -> str:
    curve = run.curve(*ENTROPY)
    return number(cumulative_entropy(curve.values, curve.steps)) if len(curve) > 1 else UNKNOWN


def _prediction(run: RunData) -> str:
    pairs = paired(run.curve("diagnostics/predicted_change"), run.curve("diagnostics/measured_change"))
    r = correlation([x for x, _ in pairs], [y for _, y in pairs])
    return number(r) if r == r else UNKNOWN


def _clipped(side: str) -> Callable[[RunData], str]:
    def found(run: RunData) -> str:
        curve = run.curve(*CLIPS[side])
        return f"{100 * sum(curve.values) / len(curve):.2g}%" if len(curve) else UNKNOWN

    return found


_MEASURES: tuple[tuple[str, Callable[[RunData], str]], ...] = (
    ("steps", _steps),
    ("reward, first \u2192 last tenth", _ends("reward")),
    ("entropy, nats, first \u2192 last tenth", _ends(*ENTROPY)),
    ("cumulative entropy, nats \u00d7 steps", _area),
    ("completion length, tokens", _ends("completions/mean_length", "length")),
    ("clipped at the lower bound, mean", _clipped("low")),
    ("clipped at the upper bound, mean", _clipped("high")),
    ("predicted against measured change, correlation", _prediction),
)


def _safe(measure: Callable[[RunData], str], run: RunData) -> str:
    return measure(run) if run.curves else UNKNOWN


def _pass_rows(runs: Runs, task: str) -> Iterable[Row]:
    ks = sorted(
        {k for run in runs for one in run.evaluations if one.task == task for k in (1, max(one.pass_at, default=1))}
    )
    for k in ks:
        yield Row(f"{task}: pass@{k}, before \u2192 after", tuple(_pass(run, task, k) for run in runs))


def _pass(run: RunData, task: str, k: int) -> str:
    found = [one.pass_at[k] for one in run.evaluations if one.task == task and k in one.pass_at]
    if not found:
        return UNKNOWN
    shown = [f"{100 * value:.1f}%" for value in ([found[0], found[-1]] if len(found) > 1 else found)]
    return " \u2192 ".join(shown)


def _objective(run: RunData) -> Any:
    """The preset that the recipe's objective is, or the nearest and what differs; its rules where none is near.

    Compared as data: nothing that a recipe names is loaded.
    """
    table = run.setting("objective")
    if not isinstance(table, Mapping):
        return table
    mine = _flat(table)
    apart = {name: _apart(mine, _flat(spec.to_dict(getattr(presets, name)))) for name in presets.names()}
    nearest = min(apart, key=lambda name: (len(apart[name]), name))
    if len(apart[nearest]) > MAX_APART:
        return ", ".join(str(value) for key, value in mine.items() if key.endswith(".rule")) or None
    return ", ".join([nearest, *apart[nearest]])


def _apart(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What is to be changed in the other to get mine: "surrogate.high 0.3"."""
    keys = [key for key in {**mine, **other} if _plain(mine.get(key)) != _plain(other.get(key))]
    return [f"{key} {_text(mine.get(key))}" for key in keys]


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _tasks(run: RunData) -> Any:
    return ", ".join(run.tasks) or None


def _setting(*path: str) -> Callable[[RunData], Any]:
    return lambda run: run.setting(*path)


_SETTINGS: tuple[tuple[str, Callable[[RunData], Any]], ...] = (
    ("engine", lambda run: run.engine or None),
    ("objective", _objective),
    ("model", _setting("model", "name")),
    ("tasks", _tasks),
    ("updates per rollout batch", lambda run: run.updates_per_rollout),
    ("prompts a batch", _setting("trainer", "prompts")),
    ("completions a prompt", _setting("trainer", "group_size")),
    ("learning rate", _setting("trainer", "learning_rate")),
    ("temperature", _setting("trainer", "temperature")),
    ("seed", _setting("seed")),
)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; the tasks of a recipe by their name."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and all(isinstance(item, Mapping) for item in value) and value:
            for i, item in enumerate(value):
                found |= _flat(item, f"{prefix}{key}[{item.get('name', i)}].")
        else:
            found[prefix + key] = value
    return found


def _text(value: Any) -> str:
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
