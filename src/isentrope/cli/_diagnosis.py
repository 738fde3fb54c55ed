"""Reading, judging and showing runs for `isentrope diagnose`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from isentrope import findings, readers
from isentrope.cli._charts import braille
from isentrope.cli._output import console
from isentrope.errors import IsentropeError
from isentrope.findings import Finding
from isentrope.run import Facts, Run, Series, merge
from isentrope.token_dump import TOKEN_COLUMNS

COLORS = {"error": "bold red", "warning": "yellow", "note": "blue"}
SPARK = (40, 2)  # characters
SHOWN = ("entropy", "reward")  # curves drawn
WHOLE = ("vocabulary", "updates_per_rollout", "max_length", "group_size")
NUMBERS = ("temperature", "entropy_coef")


@dataclass(frozen=True)
class Diagnosis:
    """A run with what is known of it, tokens measured, and its findings, worst first."""

    run: Run
    findings: tuple[Finding, ...]

    @property
    def has_alarm(self) -> bool:
        """Whether a finding is a warning or worse."""
        return any(finding.is_alarm for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: name, engine, sources, facts, curves with their span, findings, what is missing."""
        run = self.run
        return {
            "name": run.name,
            "engine": run.engine or None,
            "read": list(run.sources),
            "facts": run.facts.known(),
            "curves": {name: _span(series) for name, series in sorted(run.series.items())},
            "findings": [asdict(finding) for finding in self.findings],
            "missing": list(run.lacks),
            "alarm": self.has_alarm,
        }


def _span(series: Series) -> dict[str, Any]:
    return {"points": len(series), "first_step": series.steps[0], "last_step": series.steps[-1]}


# -- options ----------------------------------------------------------------------------------------


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """{name: value} of texts "name=value". IsentropeError for any other text.

    >>> pairs(["entropy=actor/entropy"], "--column")
    {'entropy': 'actor/entropy'}
    """
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip() or not value.strip():
            raise IsentropeError(f"{option} {text}: expected NAME=VALUE, our name first, such as entropy=actor/entropy")
        found[name.strip()] = value.strip()
    return found


def facts(texts: Sequence[str], vocabulary: int | None) -> Facts:
    """The facts that a user gives. IsentropeError for an unknown name or a value that cannot be."""
    given = pairs(texts, "--fact")
    known = fact_names()
    values: dict[str, Any] = {"vocabulary": vocabulary} if vocabulary is not None else {}
    for name, value in given.items():
        if name not in known:
            raise IsentropeError(f"--fact {name}: there is no such fact; there are {', '.join(known)}")
        values[name] = _fact(name, value)
    try:
        return Facts(**values)
    except ValueError as error:
        raise IsentropeError(str(error)) from error


def fact_names() -> list[str]:
    """The facts that a user may give by name."""
    return [f.name for f in fields(Facts) if f.name != "inert"]


def _fact(name: str, value: str) -> Any:
    try:
        return int(value) if name in WHOLE else float(value) if name in NUMBERS else value
    except ValueError as error:
        raise IsentropeError(f"--fact {name}={value}: expected a {'whole ' * (name in WHOLE)}number") from error


def curve_names() -> set[str]:
    """Our names of the curves that a table may hold."""
    from isentrope.readers import _keys

    return {name for table in _keys.KEYS.values() for name in table} | {"mismatch_p", "distinct", "step"}


def check_columns(column: Mapping[str, str]) -> None:
    """IsentropeError for a name of ours that nothing here uses."""
    curves = curve_names()
    prefixes = ("entropy/", "reward/", "controller/", "change_share/")
    for name in column:
        if name not in curves | set(TOKEN_COLUMNS) and not name.startswith(prefixes):
            raise IsentropeError(
                f"--column {name}: there is no curve of that name; there are {', '.join(sorted(curves))}"
            )


# -- reading and judging ----------------------------------------------------------------------------


def of_paths(
    paths: Sequence[Path], column: Mapping[str, str], facts: Facts, one_run: bool, allow_pickle: bool
) -> list[Diagnosis]:
    """The diagnoses of all runs at some paths."""
    check_columns(column)
    runs = [run for path in paths for run in readers.read(path, column, allow_pickle)]
    if one_run:
        runs = [merge(runs)]
    return [of_run(replace(run, facts=run.facts | facts)) for run in runs]


def of_run(run: Run) -> Diagnosis:
    """The diagnosis of one run."""
    measured = findings.measured(run)
    return Diagnosis(measured, tuple(findings.diagnose(replace(measured, tokens=None))))


# -- showing ----------------------------------------------------------------------------------------


def show(diagnoses: Sequence[Diagnosis]) -> None:
    """All diagnoses on standard output, and a line that sums them up."""
    out = console()
    for diagnosis in diagnoses:
        out.print(_panel(diagnosis))
    alarms = sum(diagnosis.has_alarm for diagnosis in diagnoses)
    runs = "1 run" if len(diagnoses) == 1 else f"{len(diagnoses)} runs"
    _plain(out, f"{runs}, {alarms or 'none'} with a finding of severity warning or worse")


def _plain(out: Console, text: str) -> None:
    out.print(text, markup=False, highlight=False)


def _panel(diagnosis: Diagnosis) -> Group:
    run = diagnosis.run
    head = Text(run.name, style="bold") + Text(f"  {run.engine or 'unknown engine'}; {', '.join(run.sources)}", "dim")
    return Group(head, _curves(run), *_findings(diagnosis), *_missing(run), Text(""))


def _curves(run: Run) -> Table:
    """A small drawing of each shown curve, with its first and last level."""
    grid = Table.grid(padding=(0, 2))
    for name in SHOWN:
        series = run.get(name)
        if series is None:
            continue
        body = "\n".join(braille(series.steps, series.values, *SPARK))
        label = f"  {name}\n  {run.facts.entropy_kind or 'kind unknown'}, nats" if name == "entropy" else f"  {name}"
        grid.add_row(Text(label), Text(f"{series.values[0]:.3g}"), Text(body), Text(_ends(series)))
    return grid


def _ends(series: Series) -> str:
    return f"{series.values[-1]:.3g}\nsteps {series.steps[0]:g} to {series.steps[-1]:g}"


def _findings(diagnosis: Diagnosis) -> list[Any]:
    if not diagnosis.findings:
        return [Text("  nothing found", style="green")]
    return [Padding(_finding(finding), (0, 0, 0, 2)) for finding in diagnosis.findings]


def _finding(finding: Finding) -> Group:
    head = Text(finding.severity, style=COLORS[finding.severity]) + Text(f"  {finding.title}", style="bold not dim")
    rows = Table.grid(padding=(0, 1))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for label, text in (
        ("evidence", "\n".join(finding.evidence)),
        ("confidence", f"{finding.confidence}: {finding.rests_on}"),
        ("turn", finding.turn),
    ):
        rows.add_row(Text(f"  {label}"), Text(text))
    return Group(head, rows)


def _missing(run: Run) -> list[Text]:
    lacks = run.lacks
    if not lacks:
        return []
    return [Text("  not known", style="dim"), *(Text(f"    {line}", style="dim", overflow="fold") for line in lacks)]
