"""What a report shows of a run: curves, evaluations, recipe, versions and where its token dumps lie.

`load(paths)` reads run folders (`isentrope.record`) and, through `isentrope.readers`, what other frameworks leave
behind. Every file is of unknown origin: what is not of the expected shape ends in an IsentropeError that names it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isentrope import findings, readers, record
from isentrope.errors import IsentropeError
from isentrope.findings import Finding
from isentrope.parsing import toml_table
from isentrope.record import RunFolder
from isentrope.run import Points, Run
from isentrope.token_dump import token_steps

MAX_TEXT_BYTES = 2**20  # of a recipe


@dataclass(frozen=True)
class Curve:
    """Equally many steps (rising, none twice) and finite values."""

    steps: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def ends(self) -> tuple[float, float]:
        """Means over the first and the last tenth of the points; of a noisy curve single points say little."""
        tenth = max(1, len(self) // 10)
        return math.fsum(self.values[:tenth]) / tenth, math.fsum(self.values[-tenth:]) / tenth

    def within(self, start: float, end: float) -> list[float]:
        """The values of steps after `start`, up to `end`."""
        return [x for step, x in zip(self.steps, self.values, strict=True) if start < step <= end]


@dataclass(frozen=True)
class Evaluation:
    """Held-out results of one task after optimizer step `step` (0 = before training).

    pass_at: k -> share of problems solved within k samples, in [0, 1]. interval: of pass@1, None where not known.
    entropy: of the policy on these problems, nats a token, NaN where not known.
    """

    step: float
    task: str
    problems: int
    pass_at: Mapping[int, float]
    interval: tuple[float, float] | None = None
    entropy: float = math.nan


@dataclass(frozen=True)
class RunData:
    """One run.

    name: unique in the report. curves: by the name under which the engine logs them, and by the names of
    `isentrope.run` for other engines and for what is measured on dumped tokens. entropy_kind: "exact", "estimate" or
    "" where nobody says. recipe: parsed, {} where there is none. tokens: the folder of its token dumps, of the steps
    `dumped`. findings: what `isentrope diagnose` says of it. lacks: what its files do not hold, in sentences.
    """

    name: str
    path: Path
    engine: str = "isentrope"
    curves: Mapping[str, Curve] = field(default_factory=dict)
    entropy_kind: str = ""
    evaluations: tuple[Evaluation, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    recipe_text: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)
    tokens: Path | None = None
    dumped: tuple[int, ...] = ()
    findings: tuple[Finding, ...] = ()
    lacks: tuple[str, ...] = ()

    def curve(self, *names: str) -> Curve:
        """The first of these curves that has a point; an empty one where none has."""
        return next((self.curves[name] for name in names if len(self.curves.get(name, ()))), Curve())

    def under(self, *prefixes: str) -> dict[str, Curve]:
        """Curves whose name starts with one of the prefixes, by the rest of the name."""
        return {
            name.removeprefix(prefix): curve
            for prefix in reversed(prefixes)
            for name, curve in self.curves.items()
            if name.startswith(prefix) and len(curve)
        }

    @property
    def tasks(self) -> list[str]:
        """Names of the recipe's tasks in alphabetical order, which is how a token dump numbers them."""
        tasks = self.recipe.get("task", [])
        names = [task.get("name") for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []
        return sorted(str(name) for name in names if name is not None)

    def setting(self, *path: str) -> Any:
        """A value of the recipe, None where it is not there."""
        found: Any = self.recipe
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    @property
    def updates_per_rollout(self) -> int | None:
        """Optimizer steps on one rollout batch, None where the recipe does not say."""
        parts = self.setting("trainer", "minibatches"), self.setting("trainer", "passes")
        return parts[0] * parts[1] if all(isinstance(part, int) for part in parts) else None


def load(paths: Sequence[Path]) -> list[RunData]:
    """Read every run. IsentropeError for a path that holds none, and for the same path twice."""
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise IsentropeError(f"{path} is named twice; a report shows each run once")
        seen.add(path.resolve())
    return _named([run for path in paths for run in _read(path)])


def _named(runs: list[RunData]) -> list[RunData]:
    """The same runs with different names: as many folders in front as it takes to tell them apart."""
    parts = [run.path.resolve().parts for run in runs]
    for depth in range(1, 1 + max(map(len, parts), default=1)):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def _read(path: Path) -> list[RunData]:
    found = readers.read(path)
    if len(found) == 1:
        return [_one(found[0], path)]
    return [_one(run, path / run.name) for run in found]


def _one(run: Run, path: Path) -> RunData:
    """A run with what its tokens and its diagnosis add."""
    measured = replace(findings.measured(run), tokens=None)
    found = RunData(
        name=run.name,
        path=path,
        engine=run.engine,
        curves={name: _finite(series) for name, series in measured.series.items()},
        entropy_kind=run.facts.entropy_kind or "",
        findings=tuple(findings.diagnose(measured)),
        lacks=measured.lacks,
    )
    return (
        _with_folder(found, RunFolder(path))
        if run.engine == "isentrope" and RunFolder(path).recipe.is_file()
        else found
    )


def _finite(series: Any) -> Curve:
    kept = [(step, x) for step, x in zip(series.steps, series.values, strict=True) if math.isfinite(x)]
    return Curve(tuple(step for step, _ in kept), tuple(x for _, x in kept))


def _with_folder(run: RunData, folder: RunFolder) -> RunData:
    """A run of ours with everything else that its folder holds."""
    curves = read_curves(record.iter_metrics(folder.metrics))
    of_tokens = ("change_share/", "tokens/")
    curves |= {name: curve for name, curve in run.curves.items() if name.startswith(of_tokens) and name not in curves}
    last = max((curve.steps[-1] for curve in curves.values()), default=0)
    text = _text(folder.recipe) if folder.recipe.is_file() else ""
    dumped = tuple(token_steps(folder.tokens))
    return replace(
        run,
        curves=curves,
        evaluations=tuple(_evaluations(folder.path, last)),
        recipe=_parse(folder.recipe, text),
        recipe_text=text,
        versions=_object(folder.versions) if folder.versions.is_file() else {},
        tokens=folder.tokens if dumped else None,
        dumped=dumped,
    )


def read_curves(lines: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """The finite numbers of metrics lines by name, long curves thinned (see `isentrope.run.Points`)."""
    points: dict[str, Points] = {}
    for line in lines:
        for name, value in line.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                points.setdefault(name, Points()).add(line["step"], float(value))
    return {name: _finite(found.series()) for name, found in points.items() if name not in ("step", "time")}


def _evaluations(path: Path, last_step: float) -> list[Evaluation]:
    """evaluation-before.json is step 0, -after.json the last step, and any with a number in its name that step."""
    found = []
    for file in path.glob("evaluation-*.json"):
        when = file.stem.removeprefix("evaluation-")
        number = re.search(r"\d+", when)
        if when in ("before", "after") or number:
            step = {"before": 0.0, "after": last_step}.get(when, float(number[0]) if number else 0.0)
            found += _one_evaluation(file, step)
    return sorted(found, key=lambda one: (one.step, one.task))


def _one_evaluation(file: Path, step: float) -> list[Evaluation]:
    reports = record.read_json(file)
    try:
        return [_evaluation(report, step) for report in reports]
    except (TypeError, LookupError, ValueError, AttributeError) as error:
        raise IsentropeError(
            f"{file} is not an evaluation, a list of objects with task, problems and pass_at: {error!r}"
        ) from error


def _evaluation(report: Mapping[str, Any], step: float) -> Evaluation:
    pass_at = {int(k): float(value) for k, value in report["pass_at"].items() if math.isfinite(value)}
    interval, entropy = report.get("interval"), report.get("entropy")
    return Evaluation(
        step,
        str(report["task"]),
        int(report["problems"]),
        dict(sorted(pass_at.items())),
        (float(interval[0]), float(interval[1])) if interval else None,
        math.nan if entropy is None else float(entropy),
    )


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise IsentropeError(f"{path} has more than {MAX_TEXT_BYTES} bytes; this is no recipe")
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise IsentropeError(f"cannot read {path}: {error.strerror or error}") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return toml_table(text)
    except ValueError as error:
        raise IsentropeError(f"{path} is not valid TOML: {error}") from error


def _object(path: Path) -> dict[str, Any]:
    value = record.read_json(path)
    if not isinstance(value, dict):
        raise IsentropeError(f"{path} is not a JSON object but {type(value).__name__}")
    return value
