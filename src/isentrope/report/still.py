"""A chart as a still picture: SVG text without script, for documents. `svg(chart)` draws lines and scatters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from isentrope.report.chart import Chart, Series

WIDTH, HEIGHT = 720, 400  # of the picture, in its own units; higher where the legend is
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 34, 46  # margins; the legend stands in the right one
COLOURS = ("#1d4ed8", "#b91c1c", "#0f9f7a", "#a16207", "#7c3aed", "#0891b2", "#be185d", "#4b5563", "#65a30d", "#ea580c")
DASHES = ("", "6 4", "2 3")
TICKS = 5  # about so many on each axis
LEGEND_LINE = 17
FONT = "font-family='system-ui, sans-serif' font-size='12'"


def svg(chart: Chart) -> str:
    """The chart as SVG. Runs beyond the colours are told apart by dashes, in scatters by hollow points.

    Raises ValueError for a kind other than lines and scatter, and for a chart without a point.
    """
    if chart.kind not in ("lines", "scatter"):
        raise ValueError(f"svg draws lines and scatters, not {chart.kind!r}")
    if not any(len(series.x) for series in chart.series):
        raise ValueError(f"chart {chart.id} has no point to draw")
    xs = [x for series in chart.series for x in series.x]
    ys = [y for series in chart.series for y in (*series.y, *series.low, *series.high) if math.isfinite(y)]
    height = max(HEIGHT, TOP + LEGEND_LINE * (1 + len(chart.series)))
    frame = _Frame(_span(xs, chart.x.low, chart.x.high), _span(ys, chart.y.low, chart.y.high), chart.x.log, height)
    draw = _points if chart.kind == "scatter" else _line
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img' {FONT}>",
        f"<title>{escape(chart.title)}</title><desc>{escape(chart.alternative)}</desc>",
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
        f"<text x='{LEFT}' y='20' font-weight='600'>{escape(chart.title)}</text>",
        *_axes(frame, chart),
        *(draw(frame, series, i) for i, series in enumerate(chart.series)),
        *(_legend(series.name, i, chart.kind) for i, series in enumerate(chart.series)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Frame:
    """From data to places in the picture."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], log: bool, height: int) -> None:
        self.x, self.y, self.log, self.height = x, y, log, height

    def across(self, value: float) -> float:
        low, high, at = (math.log2(v) if self.log else v for v in (*self.x, value))
        return LEFT + (at - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def down(self, value: float) -> float:
        low, high = self.y
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - TOP - BOTTOM)

    def at(self, x: float, y: float) -> str:
        return f"{self.across(x):.1f},{self.down(y):.1f}"


def _span(values: Sequence[float], low: float | None, high: float | None) -> tuple[float, float]:
    """Where an axis starts and ends: at the data's ends, or at those that are fixed; never of no width."""
    start = min(values) if low is None else low
    end = max(values) if high is None else high
    return (start, end) if end > start else (start - 0.5, start + 0.5)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two ends.

    >>> ticks(0.0, 1.8), ticks(-3.0, 11.0)
    ([0.0, 0.5, 1.0, 1.5], [0.0, 5.0, 10.0])
    """
    rough = (high - low) / (TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _axes(frame: _Frame, chart: Chart) -> list[str]:
    parts = []
    for y in ticks(*frame.y):
        place = frame.down(y)
        text = f"{100 * y:.3g}%" if chart.y.share else f"{y:.3g}"
        parts.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{place:.1f}' y2='{place:.1f}' stroke='#e5e7eb'/>")
        parts.append(f"<text x='{LEFT - 8}' y='{place + 4:.1f}' text-anchor='end' fill='#4b5563'>{text}</text>")
    for x in ticks(*frame.x):
        place = frame.across(x)
        parts.append(
            f"<text x='{place:.1f}' y='{frame.height - BOTTOM + 18}' text-anchor='middle' fill='#4b5563'>{x:.4g}</text>"
        )
    base = frame.height - BOTTOM
    parts.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{base}' y2='{base}' stroke='#4b5563'/>")
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f"<text x='{middle}' y='{frame.height - 8}' text-anchor='middle'>{escape(chart.x.label)}</text>")
    parts.append(
        f"<text transform='translate(14 {(TOP + base) / 2}) rotate(-90)' text-anchor='middle'>{escape(chart.y.label)}"
        "</text>"
    )
    return parts


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _dash(number: int) -> str:
    pattern = DASHES[number // len(COLOURS) % len(DASHES)]
    return f" stroke-dasharray='{pattern}'" if pattern else ""


def _line(frame: _Frame, series: Series, number: int) -> str:
    """The line, over a band between its ends where it has some."""
    points = " ".join(frame.at(x, y) for x, y in zip(series.x, series.y, strict=True))
    drawn = f"<polyline points='{points}' fill='none' stroke='{_colour(number)}' stroke-width='1.8'{_dash(number)}/>"
    if not series.low:
        return drawn
    upper = [frame.at(x, y) for x, y in zip(series.x, series.high, strict=True)]
    lower = [frame.at(x, y) for x, y in zip(series.x, series.low, strict=True)]
    band = " ".join([*upper, *reversed(lower)])
    return f"<polygon points='{band}' fill='{_colour(number)}' opacity='0.13'/>{drawn}"


def _points(frame: _Frame, series: Series, number: int) -> str:
    """A point each, with a bar through it where the series has ends."""
    parts = []
    for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        if series.low:
            ends = f"y1='{frame.down(series.low[i]):.1f}' y2='{frame.down(series.high[i]):.1f}'"
            place = f"{frame.across(x):.1f}"
            parts.append(f"<line x1='{place}' x2='{place}' {ends} stroke='{_colour(number)}' opacity='0.35'/>")
        parts.append(_dot(frame.across(x), frame.down(y), number))
    return "".join(parts)


def _dot(x: float, y: float, number: int) -> str:
    fill = _colour(number) if number < len(COLOURS) else "#ffffff"
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{fill}' stroke='{_colour(number)}' stroke-width='1.5'/>"


def _legend(name: str, number: int, kind: str) -> str:
    x, y = WIDTH - RIGHT + 12, TOP + 6 + number * LEGEND_LINE
    line = (
        f"<line x1='{x}' x2='{x + 18}' y1='{y}' y2='{y}' stroke='{_colour(number)}' stroke-width='2'{_dash(number)}/>"
    )
    mark = _dot(x + 9, y, number) if kind == "scatter" else line
    return f"{mark}<text x='{x + 24}' y='{y + 4}' font-size='11'>{escape(name)}</text>"
