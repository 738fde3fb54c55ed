"""The results of an evaluation as tables and sentences."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from isentrope.cli._output import PIPE_WIDTH, table

FEW = 200  # problems; a smaller set gets a sentence on how wide it makes the interval
SHARES = ("truncated", "no_answer", "unscored")
LABELS = {"no_answer": "no answer", "unscored": "could not be scored", "length": "length, tokens"}


def show(console: Console, found: Mapping[str, Any]) -> None:
    """Print what was measured, how sure it is, and how it differs from the baseline."""
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    reports = found["tasks"]
    console.print(table(["", *(_head(report) for report in reports)], rows(reports)))
    for sentence in sentences(reports):
        console.print(sentence, markup=False, soft_wrap=True)
    if "comparison" in found:
        _show_comparison(console, found["comparison"])


def _head(report: Mapping[str, Any]) -> str:
    return f"{report['task']}: {report['problems']} problems x {report['samples']}"


def rows(reports: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each figure that at least one task has: its name, and the value with its interval for each task."""
    ks = sorted({int(k) for report in reports for k in report["pass_at"]})
    names = [f"pass@{k}" for k in ks]
    names += ["avg", "majority", *own_names(reports), "entropy", "length", *SHARES]
    lines = [[label(name, reports), *(cell(report, name) for report in reports)] for name in names]
    return [line for line in lines if any(text != "-" for text in line[1:])]


def own_names(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """The figures that single tasks have beyond those of all."""
    return list(dict.fromkeys(name for report in reports for name in report.get("own", {})))


def _plain(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


def label(name: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """The name of a figure as a table has it; k is told where it is the same for all."""
    samples = {report["samples"] for report in reports}
    k = samples.pop() if len(samples) == 1 else "k"
    if name == "entropy":
        kinds = sorted({report["entropy_kind"] for report in reports if report["entropy_kind"]})
        return f"entropy, nats ({', '.join(kinds)})"
    return {"avg": f"avg@{k}", "majority": f"majority@{k}"}.get(name) or _plain(name)


def value(report: Mapping[str, Any], name: str) -> float:
    """A figure of a report by its name; NaN where it has none."""
    if name.startswith("pass@"):
        return float(report["pass_at"].get(name.removeprefix("pass@"), math.nan))
    known: Mapping[str, Any] = {**report.get("own", {}), **report}
    return float(known.get("reward" if name == "avg" else name, math.nan))


def cell(report: Mapping[str, Any], name: str) -> str:
    """A figure with its interval: ".363 [.336, .390]"; "-" for one that is not known."""
    found = value(report, name)
    if math.isnan(found):
        return "-"
    low, high = (float(end) for end in report["intervals"][name])
    return f"{number(found, name)} [{number(low, name)}, {number(high, name)}]"


def number(found: float, name: str = "") -> str:
    """Three digits after the point, one for a length.

    >>> number(0.5), number(-0.25), number(12.34, "length")
    ('0.500', '-0.250', '12.3')
    """
    return f"{found:.1f}" if name == "length" else f"{found:.3f}"


def sentences(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader of the numbers has to know: what the brackets are, how few problems there are, what is missing."""
    said = ["In brackets: 95% intervals by resampling problems."]
    for report in reports:
        said += [text for text in (_few(report), _left_out(report), _settings(report)) if text]
    return said


def _few(report: Mapping[str, Any]) -> str:
    count, share, half = report["problems"], value(report, "pass@1"), float(report["half_width"])
    if count > FEW or math.isnan(half):
        return ""
    return (
        f"{report['task']}: the choice of {count} problems alone makes a pass@1 of {share:.3f} uncertain by"
        f" ±{half:.3f} (95%), and scores from two such sets differ by up to {math.sqrt(2) * half:.3f} by chance;"
        " --baseline compares on the same problems."
    )


def _left_out(report: Mapping[str, Any]) -> str:
    most = str(max(map(int, report["counted"])))
    if not report["unscored"] or report["counted"][most] == report["problems"]:
        return ""
    return (
        f"{report['task']}: {report['unscored']:.1%} of the completions could not be scored and count neither way;"
        f" pass@{most} is over the {report['counted'][most]} of {report['problems']} problems without any."
    )


def _settings(report: Mapping[str, Any]) -> str:
    if not report["truncated"] > 0.1:
        return ""
    return (
        f"{report['task']}: {report['truncated']:.1%} of the completions were cut at {report['max_new_tokens']} tokens;"
        " more with --max-tokens."
    )


def _show_comparison(console: Console, found: Mapping[str, Any]) -> None:
    for name, (before, now) in found["differs"].items():
        text = f"warning: {name} was {before} for the baseline and is {now} here; differences mix both"
        console.print(text, markup=False, soft_wrap=True)
    console.print(comparison_table(found))
    text = (
        f"Minus the baseline {found['baseline'] or 'file'}, on the same problems, which are resampled for both at once;"
    )
    console.print(f"{text} * marks a difference whose interval leaves out 0.", markup=False, soft_wrap=True)


def comparison_table(found: Mapping[str, Any]) -> Table:
    """A column for each task, a line for each figure that both evaluations have."""
    tasks = found["tasks"]
    names = list(dict.fromkeys(name for one in tasks for name in one["differences"]))
    lines = [[_plain(name), *(difference_cell(one, name) for one in tasks)] for name in names]
    heads = ["difference", *(f"{one['task']}: {one['problems']} problems" for one in tasks)]
    return table(heads, [line for line in lines if any(text != "-" for text in line[1:])])


def difference_cell(task: Mapping[str, Any], name: str) -> str:
    """A difference with its interval and a star where the interval leaves out 0."""
    found = float(task["differences"].get(name, math.nan))
    if math.isnan(found):
        return "-"
    low, high = (float(end) for end in task["intervals"][name])
    star = " *" if low > 0 or high < 0 else ""
    return f"{_signed(found, name)} [{_signed(low, name)}, {_signed(high, name)}]{star}"


def _signed(found: float, name: str) -> str:
    return f"{'+' if found > 0 else ''}{number(found, name)}"
