"""Curves in the terminal, drawn in braille: two by four dots a character."""

from collections.abc import Sequence

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # Unicode 2800: bit of row, column
BLANK = 0x2800


def line_chart(title: str, steps: Sequence[float], values: Sequence[float], width: int = 60, height: int = 6) -> str:
    """A curve with its title, its highest and lowest value at the left and the first and last step below.

    steps, values: equally long, finite, steps rising. width, height: of the drawing, in characters.
    Fewer than two points, or equal values, draw a flat line; no point says so.
    """
    if not values:
        return f"{title}: nothing was recorded"
    top, bottom = max(values), min(values)
    labels = [f"{top:.3g}", *[""] * (height - 2), f"{bottom:.3g}"]
    margin = max(map(len, labels))
    body = [
        f"{label:>{margin}} ┤{line}" for label, line in zip(labels, braille(steps, values, width, height), strict=True)
    ]
    first, last = f"{steps[0]:g}", f"{steps[-1]:g}"
    axis = " " * (margin + 2) + first + last.rjust(width - len(first))
    return "\n".join([title, *body, axis])


def braille(steps: Sequence[float], values: Sequence[float], width: int, height: int) -> list[str]:
    """`height` lines of `width` braille characters with the curve in them; points are joined column by column."""
    columns, rows = 2 * width, 4 * height
    levels = [_level(value, min(values), max(values), rows) for value in _resample(steps, values, columns)]
    cells = [[BLANK] * width for _ in range(height)]
    for column, level in enumerate(levels):
        previous = levels[max(column - 1, 0)]
        for row in range(min(level, previous), max(level, previous) + 1):
            if row != previous or level == previous:  # the column before has drawn its own end
                cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    return ["".join(map(chr, line)) for line in cells]


def _level(value: float, low: float, high: float, rows: int) -> int:
    """Row of dots from the top; the middle for a constant curve."""
    return round((rows - 1) * ((high - value) / (high - low) if high > low else 0.5))


def _resample(steps: Sequence[float], values: Sequence[float], count: int) -> list[float]:
    """Linear interpolation at `count` evenly spaced steps."""
    span = steps[-1] - steps[0]
    at = [steps[0] + span * index / (count - 1) for index in range(count)]
    found, left = [], 0
    for step in at:
        while left < len(steps) - 2 and steps[left + 1] <= step:
            left += 1
        right = min(left + 1, len(steps) - 1)
        gap = steps[right] - steps[left]
        share = min(max((step - steps[left]) / gap, 0.0), 1.0) if gap else 0.0
        found.append(values[left] + share * (values[right] - values[left]))
    return found


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Mean over the last `window` values (fewer at the start).

    >>> smooth([0.0, 1.0, 2.0], 2)
    [0.0, 0.5, 1.5]
    """
    parts = [values[max(0, index + 1 - window) : index + 1] for index in range(len(values))]
    return [sum(part) / len(part) for part in parts]
