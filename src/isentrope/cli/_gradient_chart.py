"""The gradient weight over the ratio, drawn in the terminal and as PNG.

Both axes are compressed: the ratio's is logarithmic, the weight's is arcsinh(2 w), linear near 0 and logarithmic far
from it. Otherwise PPO's weight of -10 at ratio 10 would flatten everything that happens near the clip.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from isentrope.cli._charts import BLANK, DOTS
from isentrope.cli._gradient import Gradient
from isentrope.errors import IsentropeError

LINEAR_WIDTH = 0.5  # weights within this are drawn to scale
RATIO_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
WEIGHT_TICKS = (0.0, 1.0, -1.0)  # where there is room, after the highest and the lowest weight
STYLES = {"+": "bright_cyan", "-": "bright_yellow", " ": "dim"}  # apart for the colour-blind too
MARGIN = 7  # columns of a label and the axis
CAPTION = 105  # characters a line of the image's caption
TAG = 5  # columns after a curve's end, for its name


def dots(width: int) -> int:
    """How many ratios a drawing of so many characters shows: an odd number, so that 1 stands in the middle."""
    return 2 * width - 1


def terminal(found: Gradient, width: int, height: int = 13) -> Text:
    """The two curves, `width` + MARGIN + TAG columns wide; `found` must hold `dots(width)` ratios."""
    bottom, top = _range([_scale(w) for w in (*found.positive, *found.negative)])
    rows = 4 * height
    levels = [[_level(_scale(w), bottom, top, rows) for w in curve] for curve in (found.positive, found.negative)]
    canvas = _empty(width, height, zero=_level(0.0, bottom, top, rows) // 4)
    for curve, sign in zip(levels, "+-", strict=True):
        for (row, column), bits in _cells(curve).items():
            held = ord(canvas[row][column][0])
            canvas[row][column] = (chr((held if held >= BLANK else BLANK) | bits), sign)
    text = _assembled(canvas, _labels(found, bottom, top, height), _tags([curve[-1] // 4 for curve in levels]))
    return text.append(_axis(found.ratios, width)).append("\n").append_text(_legend())


def _empty(width: int, height: int, zero: int) -> list[list[tuple[str, str]]]:
    """(character, style) of an empty drawing: a line at weight 0 and one at ratio 1."""
    one = (width - 1) // 2
    return [
        [("─" if row == zero else "┊" if column == one else " ", " ") for column in range(width)]
        for row in range(height)
    ]


def _tags(ends: Sequence[int]) -> dict[int, tuple[str, str]]:
    """(text, style) by row: the curves' names behind their ends."""
    if ends[0] == ends[1]:
        return {ends[0]: (" A=±1", " ")}
    return {ends[0]: (" A=+1", "+"), ends[1]: (" A=-1", "-")}


def _assembled(canvas: list[list[tuple[str, str]]], labels: dict[int, str], tags: dict[int, tuple[str, str]]) -> Text:
    text = Text()
    for row, line in enumerate(canvas):
        text.append(f"{labels.get(row, ''):>{MARGIN - 2}} ┤")
        for character, sign in [*line, tags.get(row, ("", " "))]:
            text.append(character, STYLES[sign])
        text.append("\n")
    return text


def _scale(weight: float) -> float:
    return math.asinh(weight / LINEAR_WIDTH)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest to the highest, 0 included, and never empty."""
    bottom, top = min(0.0, *values), max(0.0, *values)
    return (bottom, top) if top > bottom else (-1.0, 1.0)


def _level(y: float, bottom: float, top: float, rows: int) -> int:
    """Row of dots from the top."""
    return round((rows - 1) * (top - y) / (top - bottom))


def _cells(levels: Sequence[int]) -> dict[tuple[int, int], int]:
    """{(row, column) of a character: dots in it} of a curve whose points are joined column by column."""
    found: dict[tuple[int, int], int] = {}
    for column, level in enumerate(levels):
        previous = levels[max(column - 1, 0)]
        step = 1 if level > previous else -1
        for row in range(previous + step if level != previous else level, level + step, step):
            cell = (row // 4, column // 2)
            found[cell] = found.get(cell, 0) | DOTS[row % 4][column % 2]
    return found


def _labels(found: Gradient, bottom: float, top: float, height: int) -> dict[int, str]:
    """Labels of the weight axis by row."""
    every = (*found.positive, *found.negative)
    labels: dict[int, str] = {}
    for weight in (max(every), min(every), *WEIGHT_TICKS):
        if bottom <= _scale(weight) <= top:
            labels.setdefault(_level(_scale(weight), bottom, top, 4 * height) // 4, f"{weight:.3g}")
    return labels


def _axis(ratios: Sequence[float], width: int) -> str:
    """Labels of the ratio axis, each centred under its place."""
    low, high = math.log(ratios[0]), math.log(ratios[-1])
    line = [" "] * (MARGIN + width + 3)
    for tick in RATIO_TICKS:
        place = MARGIN + round((math.log(tick) - low) / (high - low) * (width - 1))
        label = f"{tick:g}"
        line[place - len(label) // 2 : place - len(label) // 2 + len(label)] = label
    return "".join(line).rstrip()


def _legend() -> Text:
    text = Text(" " * MARGIN + "ratio π/π_old, log scale   ")
    text.append("A = +1", STYLES["+"]).append("  ").append("A = -1", STYLES["-"])
    return text


def png(found: Gradient, path: Path, title: str, caption: str) -> None:
    """The same as an image. IsentropeError for another suffix, a path that cannot be written, no matplotlib."""
    if path.suffix.lower() != ".png":
        raise IsentropeError(f"--plot writes PNG; found {path}: give a name that ends in .png")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise IsentropeError(f"--plot needs matplotlib: pip install 'isentrope[report]' ({error})") from error
    from isentrope.record import replacing

    figure = Figure(figsize=(7, 4.2), layout="constrained", dpi=150)
    axes = figure.subplots()
    axes.axhline(0, color="0.7", linewidth=0.8)
    axes.axvline(1, color="0.7", linewidth=0.8, linestyle=":")
    axes.plot(found.ratios, found.positive, color="#0072b2", label="A = +1")
    axes.plot(found.ratios, found.negative, color="#d55e00", label="A = -1", linestyle="--")
    axes.set_xscale("log")
    axes.set_yscale("asinh", linear_width=LINEAR_WIDTH)
    axes.set_xticks(RATIO_TICKS, [f"{tick:g}" for tick in RATIO_TICKS])
    axes.minorticks_off()
    weights = [w for w in (-10, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 10) if _near(w, found)]
    axes.set_yticks(weights, [f"{w:g}" for w in weights])
    axes.set(title=title, xlabel=r"ratio $\pi / \pi_{\rm old}$ (log scale)", ylabel=r"$dJ / d\log\pi$ (arcsinh scale)")
    axes.grid(alpha=0.2)
    axes.legend()
    figure.supxlabel("\n".join(textwrap.wrap(caption, CAPTION)), fontsize=7, color="0.4")
    try:
        with replacing(path) as temporary:
            FigureCanvasAgg(figure).print_png(str(temporary))
    except IsentropeError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise IsentropeError(f"cannot write {path}: {reason}; name another file with --plot") from error


def _near(weight: float, found: Gradient) -> bool:
    every = (*found.positive, *found.negative)
    return min(0.0, *every) * 1.1 <= weight <= max(0.0, *every) * 1.1
