"""The page: one HTML file with its styles, its script and its data inside, and nothing from outside.

Whatever comes from a run (names, texts, recipes, completions) is text: escaped in the markup, and carried to the
script as JSON in which no character can end the element. A content security policy allows this page's one script by
its hash, and no request to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from isentrope.record import encode
from isentrope.report.chart import Chart
from isentrope.report.data import RunData
from isentrope.report.overview import Row

STYLES = ("page.css", "chart.css", "tokens.css")
SCRIPTS = ("base.js", "scale.js", "chart.js", "inspect.js", "tokens.js", "page.js")
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def text(value: object) -> str:
    r"""Text of unknown origin as markup: shown letter for letter, never run.

    Characters that cannot stand in HTML, or that turn the direction of the text around them, are shown by number.

    >>> text('<b title="x">&'), text("a\u202eb")
    ('&lt;b title=&quot;x&quot;&gt;&amp;', 'a[U+202E]b')
    """
    return html.escape(CONTROLS.sub(lambda match: f"[U+{ord(match[0]):04X}]", str(value)), quote=True)


def embedded(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or a line of JavaScript, and numbers that
    are not finite are words.
    """
    found = json.dumps(encode(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    found = re.sub("[<>&\u2028\u2029]", lambda match: ESCAPES[match[0]], found)
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", found)


def render(title: str, created: str, runs: Sequence[RunData], sections: Iterable[str], data: dict[str, Any]) -> str:
    """The whole page."""
    style, script = (_assets(names) for names in (STYLES, SCRIPTS))
    body = "\n".join(sections)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="isentrope">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{text(title)} \u2013 Isentrope report</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#overview">Skip to the report</a>
{_header(title, created, runs)}
<main>
<noscript><p class="missing">The charts and the token view are drawn by this page's script, which is switched off;
tables, findings and recipes are below.</p></noscript>
{body}
</main>
<div id="tip" role="presentation" hidden></div>
<div id="live" class="hidden" aria-live="polite"></div>
<script type="application/json" id="data">{embedded(data)}</script>
<script>{script}</script>
</body>
</html>
"""


def _assets(names: Sequence[str]) -> str:
    folder = resources.files("isentrope.report").joinpath("assets")
    found = "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)
    assert "</s" not in found.lower(), "an asset must not end its own element"
    return f"\n{found}"


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _header(title: str, created: str, runs: Sequence[RunData]) -> str:
    chips = "\n".join(
        f'<button type="button" class="chip" data-run="{i}" aria-pressed="true">'
        f'<span class="swatch run-{i % 8}" aria-hidden="true"></span>{text(run.name)}</button>'
        for i, run in enumerate(runs)
    )
    return f"""<header class="top">
<div class="wide">
<p class="meta">Isentrope report, {text(created)}</p>
<h1>{text(title)}</h1>
</div>
</header>
<div class="bar" role="toolbar" aria-label="Runs and view">
<div class="wide">
<div class="chips" role="group" aria-label="Runs: press to hide or show">{chips}</div>
<div class="tools">
<label class="smooth" for="smooth">Smooth <input id="smooth" type="range" min="0" max="10" value="0" step="1">
<output id="smooth-value" for="smooth">off</output></label>
<button type="button" id="reset" hidden>Reset zoom</button>
<button type="button" id="theme" aria-label="Colours: as the system">Auto</button>
</div>
</div>
</div>
<nav class="contents" aria-label="Sections"><ul class="wide"></ul></nav>"""


# -- parts of sections ------------------------------------------------------------------------------


def section(id_: str, title: str, about: str, *parts: str) -> str:
    """A section of the page."""
    intro = f'<p class="about">{text(about)}</p>' if about else ""
    inside = "\n".join(parts)
    return f'<section id="{id_}" class="wide" tabindex="-1"><h2>{text(title)}</h2>{intro}\n{inside}</section>'


def grid(charts: Sequence[Chart]) -> str:
    """Charts side by side where the page is wide enough; below them, on a line each, those that have no data."""
    drawn, empty = [c for c in charts if c.series], [c for c in charts if not c.series]
    leads = len(drawn) % 2  # the first of an odd number has a line of its own, so that none stands beside a gap
    figures = [figure(chart, lead=i < leads) for i, chart in enumerate(drawn)]
    return f'<div class="grid">{"".join([*figures, *(figure(chart, lead=True) for chart in empty)])}</div>'


def figure(chart: Chart, lead: bool = False) -> str:
    """The frame of a chart, which the script fills; or what to switch on to have it."""
    notes = "".join(f"<p>{text(note)}</p>" for note in chart.notes) if chart.series else ""
    inside = (
        f'<div class="plot" data-chart="{text(chart.id)}" data-alt="{text(chart.alternative)}"></div>'
        if chart.series
        else f'<p class="missing">{text(chart.missing)}</p>'
    )
    kind = f"chart {chart.kind}{' lead' if lead else ''}"
    return (
        f'<figure id="{text(chart.id)}" class="{kind}"><figcaption><h3>{text(chart.title)}</h3>'
        f"<p>{text(chart.about)}</p></figcaption>{inside}{notes and f'<div class=notes>{notes}</div>'}</figure>"
    )


def table(caption: str, runs: Sequence[RunData], rows: Sequence[Row], mark: bool = False) -> str:
    """Rows against runs. mark: point out the rows in which the runs differ."""
    if not rows:
        return ""
    heads = "".join(
        f'<th scope="col"><span class="swatch run-{i % 8}" aria-hidden="true"></span>{text(run.name)}</th>'
        for i, run in enumerate(runs)
    )
    body = "".join(_row(row, mark and len(runs) > 1 and row.differs) for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr><td></td>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Row, marked: bool) -> str:
    cells = "".join(f"<td>{text(cell)}</td>" for cell in row.cells)
    return f'<tr{" class=differs" if marked else ""}><th scope="row">{text(row.label)}</th>{cells}</tr>'


def recipe(run: RunData, index: int) -> str:
    """A run's recipe, folded."""
    if not run.recipe_text:
        return f'<p class="missing">{text(run.name)}: no recipe.toml</p>'
    return (
        f'<details class="recipe"><summary><span class="swatch run-{index % 8}" aria-hidden="true"></span>'
        f"Recipe of {text(run.name)}</summary>"
        f'<pre tabindex="0">{text(run.recipe_text)}</pre></details>'
    )
