"""A comparison as tables of a terminal: figures against objectives, and differences to the first."""

from rich.table import Table

from isentrope.cli._output import table
from isentrope.comparison import FIGURES, Comparison
from isentrope.seeds import Estimate

DIGITS = 3  # significant ones of a mean


def means(found: Comparison) -> Table:
    """Mean and half width of the 95 % interval of every figure, a column an objective."""
    names = list(found.runs)
    rows = [[FIGURES[figure].label, *(_text(found.mean(name, figure)) for name in names)] for figure in found.known()]
    return table(["", *names], rows)


def differences(found: Comparison) -> Table:
    """Difference of every figure to the first objective, paired by seed; * where the interval leaves out 0."""
    first, *others = found.runs
    rows = [
        [FIGURES[figure].label, *(_signed(found.difference(name, figure)) for name in others)]
        for figure in found.known()
    ]
    return table([f"minus {first}", *others], rows)


def _text(x: Estimate) -> str:
    """Mean with half the interval's width.

    >>> _text(Estimate(0.51234, 0.5, 0.52, 3)), _text(Estimate(0.5, float("nan"), float("nan"), 1))
    ('0.512 ± 0.01', '0.5')
    """
    if not x.count:
        return "-"
    return f"{x.mean:.{DIGITS}g}" if x.count == 1 else f"{x.mean:.{DIGITS}g} ± {x.half:.2g}"


def _signed(x: Estimate) -> str:
    """A difference with its sign, half the interval's width, and a star where it is not 0."""
    if not x.count:
        return "-"
    mark = " *" if x.is_above(0) or x.is_below(0) else ""
    return f"{x.mean:+.{DIGITS}g}" if x.count == 1 else f"{x.mean:+.{DIGITS}g} ± {x.half:.2g}{mark}"
