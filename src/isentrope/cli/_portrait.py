"""What `isentrope show` says of one objective: gathered once, printed or given as plain data."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from isentrope import catalogue, spec
from isentrope.cli import _docstrings, _gradient, _gradient_chart
from isentrope.cli._output import short, table
from isentrope.columns import GLOSSARY, name_of
from isentrope.errors import IsentropeError
from isentrope.objective import Objective

CURVE_POINTS = 401  # ratios of the image and of the JSON
CHART_WIDTH = 100  # characters at most
INDENT = 2


@dataclass(frozen=True)
class Portrait:
    """An objective under the name that the user gave, with its row in the catalogue where it is a preset."""

    name: str
    objective: Objective
    entry: catalogue.Entry | None

    # -- as data ------------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data; `gradient` is null with a reason in `gradient_error` where none can be measured."""
        closest, differences = catalogue.closest_preset(self.objective)
        found: dict[str, Any] = {
            "name": self.name,
            "closest_preset": closest,
            "differs_in": differences,
            "papers": [{"arxiv": arxiv, "title": title} for arxiv, title in self.papers()],
            "changes": self.entry.changes if self.entry else None,
            "entropy": self.entry.entropy if self.entry else None,
            "knobs": self.knobs(),
            "formula": [{"path": p, "rule": name_of(r), "text": text} for p, r, text in self.formulas()],
            "numbers": [{"name": n, "values": list(values), "place": place} for n, values, place in self.numbers()],
            "columns": [
                {"name": n, "phase": phase, "meaning": what, "source": source}
                for n, phase, what, source in self.columns()
            ],
            "controllers": self.controllers(),
            "specification": spec.dumps(self.objective),
        }
        try:
            return found | {"gradient": _curves(self.measure(CURVE_POINTS)), "gradient_error": None}
        except IsentropeError as error:
            return found | {"gradient": None, "gradient_error": str(error)}

    def papers(self) -> list[tuple[str, str]]:
        """(arXiv id, title): the preset's own, none for ours; else those that its rules' docstrings name."""
        if self.entry:
            return [] if self.entry.arxiv == catalogue.OURS else [(self.entry.arxiv, self.entry.title)]
        return [(arxiv, catalogue.title_of(arxiv)) for arxiv in _docstrings.papers_cited(self.objective)]

    def knobs(self) -> dict[str, str]:
        """Path of a number -> "raises" or "lowers": what more of it does to entropy."""
        return dict(self.entry.knobs) if self.entry else {}

    def formulas(self) -> list[tuple[str, Any, str]]:
        """(path, rule, what its docstring says) of every rule."""
        return [(path, rule, _docstrings.documentation(rule)) for path, rule in _docstrings.parts(self.objective)]

    def numbers(self) -> list[tuple[str, tuple[Any, ...], str]]:
        """(name, values, place in the paper)."""
        figures = self.entry.figures if self.entry else ()
        return [(f.name.replace("`", ""), f.values(self.objective), f.place) for f in figures]

    def columns(self) -> list[tuple[str, str, str, str]]:
        """(name, phase, meaning, source) in the glossary's order; `optional` ones are used where they are."""
        needs = self.objective.columns()
        names = sorted(needs.prepare | needs.loss | needs.optional, key=_rank)
        return [(name, _phases(name, needs), *_known(name)) for name in names]

    def controllers(self) -> list[dict[str, Any]]:
        """Path, kind, start, bounds and target of every controller, its other settings, and what its docstring says."""
        starts = _gradient.starts(self.objective)
        return [_controller(path, c, starts.get(path)) for path, c in self.objective.controllers().items()]

    def measure(self, count: int) -> _gradient.Gradient:
        """The gradient weights at so many ratios."""
        return _gradient.measure(self.objective, _gradient.spaced(count))

    def write_plot(self, path: Path) -> None:
        """The gradient weight over the ratio as PNG."""
        found = self.measure(CURVE_POINTS)
        _gradient_chart.png(found, path, self.name, " ".join(_gradient.notes(self.objective, found)))

    # -- in the terminal ----------------------------------------------------------------------------------------------

    def print(self, out: Console) -> None:
        """Everything, section by section."""
        out.print(self._head())
        for title, body in self._sections():
            out.print(Text(f"\n{title}", "bold"))
            out.print(body, soft_wrap=isinstance(body, str), markup=False)
        self._print_gradient(out)

    def _head(self) -> Text:
        text = Text(self.name, "bold cyan")
        if self.entry:
            where = f"arXiv:{self.entry.arxiv}" if self.papers() else "ours: docs/frontier.md"
            text.append(f"\n{self.entry.title}", "default").append(f"  {where}", "dim")
            text.append(f"\n{self.entry.changes}; entropy: {self.entry.entropy}", "default")
            moves = [f"more of {path} {effect} it" for path, effect in self.entry.knobs]
            text.append(f"; {', '.join(moves)}" if moves else "", "default")
        else:
            text.append(f"\nits rules cite {', '.join(f'arXiv:{arxiv}' for arxiv, _ in self.papers())}", "dim")
        closest, differences = catalogue.closest_preset(self.objective)
        if closest != self.name:
            what = f"differs in {', '.join(differences)}" if differences else "no difference"
            text.append(f"\nclosest preset: {closest} ({what})", "default")
        return text

    def _sections(self) -> Iterator[tuple[str, Any]]:
        yield "Formula", self._formula()
        if self.numbers():
            yield "Numbers", table(("number", "value", "place in the paper"), self._number_rows())
        if self.controllers():
            yield "Controllers", self._controllers_shown()
        yield "Columns", table(("column", "needed by", "what it is", "who supplies it"), self.columns())
        yield "Specification (TOML)", spec.dumps(self.objective).rstrip()

    def _formula(self) -> Group:
        lines: list[Any] = [Padding(Text(_docstrings.overall_formula()), (0, 0, 0, INDENT))]
        for path, rule, documented in self.formulas():
            lines.append(Padding(Text.assemble((path, "cyan"), "  ", name_of(rule)), (0, 0, 0, INDENT)))
            lines.append(Padding(Text(documented or "(no docstring)"), (0, 0, 0, 2 * INDENT)))
        return Group(*lines)

    def _number_rows(self) -> list[tuple[str, str, str]]:
        return [(name, ", ".join(map(short, values)) or "", place or "-") for name, values, place in self.numbers()]

    def _controllers_shown(self) -> Group:
        found = self.controllers()
        rows = [(c["path"], c["rule"], short(c["start"]), _bounds(c), short(c["target"]), _others(c)) for c in found]
        shown = table(("number", "controller", "start", "bounds", "target", "other settings"), rows)
        kinds = {c["rule"]: c["summary"] for c in found}
        lines = [Padding(Text.assemble(kind, ": ", what), (0, 0, 0, INDENT)) for kind, what in kinds.items()]
        return Group(shown, *lines)

    def _print_gradient(self, out: Console) -> None:
        out.print(Text("\nGradient weight over the ratio", "bold"))
        width = min(CHART_WIDTH, out.width - _gradient_chart.MARGIN - _gradient_chart.TAG - 1)
        try:
            found = self.measure(_gradient_chart.dots(width))
        except IsentropeError as error:
            out.print(str(error), markup=False)
            return
        for note in _gradient.notes(self.objective, found):
            out.print(note, markup=False)
        if out.encoding.startswith("utf"):
            out.print(_gradient_chart.terminal(found, width), soft_wrap=True)
        else:
            out.print("This terminal shows no braille: --plot FILE.png draws it, --json prints the numbers.")


def describe(name: str, objective: Objective) -> Portrait:
    """The portrait of an objective that the user named so."""
    closest, differences = catalogue.closest_preset(objective)
    preset = name if name in catalogue.ENTRIES or differences else closest
    return Portrait(name, objective, catalogue.ENTRIES.get(preset))


def _rank(name: str) -> tuple[int, str]:
    """In the glossary's order, others after it."""
    return (list(GLOSSARY).index(name) if name in GLOSSARY else len(GLOSSARY), name)


def _phases(name: str, needs: Any) -> str:
    both = [phase for phase in ("prepare", "loss") if name in getattr(needs, phase)]
    return ", ".join(both) or "optional"


def _known(name: str) -> tuple[str, str]:
    """Meaning and source of a column."""
    if name not in GLOSSARY:
        return "a column of the rule's own", "yours: a dataset column, or the engine's"
    entry = GLOSSARY[name]
    return f"{entry.meaning} [{','.join(entry.shape)}]", entry.source


def _controller(path: str, controller: Any, start: float | None) -> dict[str, Any]:
    settings = _docstrings.settings(controller)
    return {
        "path": path,
        "rule": name_of(controller),
        "start": start,
        "low": settings.pop("low", None) if "start" in settings else None,
        "high": settings.pop("high", None) if "start" in settings else None,
        "target": settings.pop("target", settings.pop("reference", None)),
        "settings": {name: x for name, x in settings.items() if name != "start"},
        "summary": _docstrings.summary(controller),
    }


def _bounds(controller: dict[str, Any]) -> str:
    low, high = controller["low"], controller["high"]
    return "-" if low is None and high is None else f"[{short(low)}, {short(high)}]"


def _others(controller: dict[str, Any]) -> str:
    return ", ".join(f"{name} {short(x)}" for name, x in controller["settings"].items())


def _curves(found: _gradient.Gradient) -> dict[str, Any]:
    return {
        "ratio": found.ratios,
        "positive": found.positive,
        "negative": found.negative,
        "entropy_weight": found.entropy,
        "old_probability": _gradient.OLD_PROBABILITY,
        "position_entropy": _gradient.ENTROPY,
        "assumed": found.assumed,
    }
