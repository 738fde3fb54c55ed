"""What `isentrope list` lists, as plain data and as tables."""

from typing import Any

from rich.table import Table

from isentrope import catalogue, presets, spec
from isentrope.cli import _docstrings
from isentrope.cli._output import table
from isentrope.columns import name_of
from isentrope.errors import IsentropeError
from isentrope.objective import Objective

SIGNS = {catalogue.RAISES: "+", catalogue.LOWERS: "-"}
LEGEND = (
    "slots: in which it differs from grpo. knobs: + more of it raises entropy, - lowers it; * a controller moves it."
    "\nisentrope show NAME says more; isentrope list --rules lists what objectives are made of."
)


def objectives() -> list[dict[str, Any]]:
    """The named objectives, presets first: name, where from, papers, slots, knobs, what becomes of entropy.

    An objective of another package that cannot be loaded is listed with the reason under `error`, so that one broken
    package does not hide the rest.
    """
    return [_named(name, held) for name, held in spec.objective_names().items()]


def _named(name: str, held: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "from": "isentrope" if name in presets.names() else held.value}
    try:
        objective = spec.load(name)
    except IsentropeError as error:
        return found | {"papers": [], "slots": [], "knobs": [], "changes": None, "entropy": None, "error": str(error)}
    entry = catalogue.ENTRIES.get(name)
    return found | {
        "papers": [entry.arxiv] if entry else [*_docstrings.papers_cited(objective)],
        "slots": [*catalogue.slots_changed(objective)],
        "knobs": _knobs(objective, entry),
        "changes": entry.changes if entry else None,
        "entropy": entry.entropy if entry else None,
        "error": None,
    }


def _knobs(objective: Objective, entry: catalogue.Entry | None) -> list[dict[str, str | None]]:
    """Path of each knob, what more of it does to entropy (None: not stated), the controller that moves it (or None)."""
    effects = dict(entry.knobs) if entry else {}
    controllers = {path: name_of(controller) for path, controller in objective.controllers().items()}
    return [
        {"path": path, "entropy": effects.get(path), "controller": controllers.get(path)}
        for path in dict.fromkeys([*effects, *controllers])
    ]


def objective_table() -> Table:
    """The same for a reader."""
    rows = [
        (o["name"], _origin(o), ", ".join(o["slots"]), ", ".join(map(_knob_text, o["knobs"])), _effect(o))
        for o in objectives()
    ]
    return table(("objective", "paper", "slots", "knobs", "entropy"), rows)


def _origin(found: dict[str, Any]) -> str:
    return ", ".join(found["papers"]) if found["from"] == "isentrope" else found["from"]


def _knob_text(knob: dict[str, Any]) -> str:
    return _knob(knob["path"]) + SIGNS.get(knob["entropy"], "") + ("*" if knob["controller"] else "")


def _knob(path: str) -> str:
    return path.rpartition(".")[2]


def _effect(found: dict[str, Any]) -> str:
    return found["error"] or found["entropy"] or ""


def rules() -> list[dict[str, str]]:
    """Every rule and controller: slot, name, and the first sentence of its docstring."""
    modules = {module.__name__.rpartition(".")[2]: module for module in spec.RULE_MODULES}
    known = spec.rule_names()
    listed = [(slot, name) for slot, module in modules.items() for name in module.__all__ if name in known]
    listed += [("any number", controller.__name__) for controller in spec.CONTROLLERS]
    return [{"slot": _slot(slot), "name": name, "summary": _docstrings.summary(known[name])} for slot, name in listed]


def _slot(module: str) -> str:
    """The slot that a module's rules go into."""
    return {"penalty": "penalties"}.get(module, module)


def rule_table() -> Table:
    """The same for a reader, with each slot named once."""
    found = rules()
    above = ["", *(rule["slot"] for rule in found[:-1])]
    rows = [
        ("" if rule["slot"] == slot else rule["slot"], rule["name"], rule["summary"])
        for rule, slot in zip(found, above, strict=True)
    ]
    return table(("slot", "rule", "what it computes"), rows)
