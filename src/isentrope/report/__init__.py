"""The report: one or several runs as one self-contained HTML file.

```python
from pathlib import Path
from isentrope import report

report.write([Path("runs/ce_gppo"), Path("runs/grpo")], Path("report.html"))
```

The file needs no network and sends nothing anywhere; it opens in any browser of the last years. Runs lie over each
other in one colour each, or side by side where a picture is of one run. It stays under 8 MB: longer curves are thinned
to their peaks, of tokens a bounded part is shown, and the page says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.record import write_text
from isentrope.report import charts, overview, page, tokens
from isentrope.report.chart import Chart
from isentrope.report.data import RunData, load
from isentrope.report.tokens import Budget
from isentrope.report.verdicts import findings_section

MAX_BYTES = 8_000_000
POINTS = 1000  # of a curve; a chart is at most as many pixels wide
TRIES = 6

__all__ = ["MAX_BYTES", "build", "load", "write"]


def write(paths: Sequence[Path], out: Path) -> int:
    """Write the report on the runs at `paths` to the file `out`, whole or not at all; its size in bytes.

    IsentropeError for a path that holds no run, and for an `out` that cannot be written.
    """
    if out.is_dir():
        raise IsentropeError(f"{out} is a folder; name a file with -o, such as {out / 'report.html'}")
    made = build(load(paths))
    write_text(out, made)
    return len(made.encode())


def build(runs: Sequence[RunData], limit: int = MAX_BYTES) -> str:
    """The report as text of at most `limit` bytes: points and tokens are cut to a third until it fits.

    IsentropeError where it does not fit even then.
    """
    if not runs:
        raise IsentropeError("there is no run to report on; give at least one folder")
    budget, points = Budget(), POINTS
    for _ in range(TRIES):
        made = _render(runs, budget, points)
        if len(made.encode()) <= limit:
            return made
        budget, points = budget.shrunk(), points // 3
    raise IsentropeError(f"the report on {len(runs)} runs does not fit into {limit} bytes; give fewer runs")


def _render(runs: Sequence[RunData], budget: Budget, points: int) -> str:
    drawn: list[Chart] = []
    sections = [_overview(runs), findings_section(runs)]
    for id_, title, about, builders in charts.SECTIONS:
        found = [chart.thinned(points) for builder in builders for chart in builder(runs)]
        drawn += found
        if found:
            sections.append(page.section(id_, title, about, page.grid(found)))
    scatters = tokens.scatters(runs, budget)
    drawn += scatters
    sections += [_tokens(runs, scatters), _recipes(runs)]
    data = {
        "runs": [run.name for run in runs],
        "charts": [chart.to_dict() for chart in drawn if chart.series],
        "tokens": tokens.readable(runs, budget),
    }
    return page.render(_title(runs), f"written {time.strftime('%Y-%m-%d %H:%M %Z')}", runs, sections, data)


def _title(runs: Sequence[RunData]) -> str:
    names = [run.name for run in runs[:3]]
    return ", ".join(names) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")


def _overview(runs: Sequence[RunData]) -> str:
    parts = [
        page.table("Results", runs, overview.results(runs)),
        page.table("Settings", runs, overview.settings(runs), mark=True),
    ]
    return page.section("overview", "Overview", "", *parts)


def _tokens(runs: Sequence[RunData], scatters: Sequence[Chart]) -> str:
    about = "What the objective does to single tokens."
    view = '<div id="reader"></div>' if any(run.dumped for run in runs) else f'<p class="missing">{tokens.DUMP}</p>'
    return page.section("tokens", "Tokens", about, view, page.grid(scatters))


def _recipes(runs: Sequence[RunData]) -> str:
    differences: list[Any] = overview.recipe_differences(runs)
    parts = [
        page.table("What differs between the recipes", runs, differences),
        *(page.recipe(run, i) for i, run in enumerate(runs)),
        page.table("Versions", runs, overview.versions(runs), mark=True),
    ]
    return page.section("recipes", "Recipe and versions", "What it takes to run this again.", *parts)
