"""Specifications: an objective as a plain dict or TOML and back, names for objectives, and what differs between two.

A rule is a table with `rule`, its class name here or "file.py:Name" (or "package.module:Name") elsewhere, and its
fields; a field that holds a rule or a controller is a table of the same form. A field that is None is left out. A
slot of several rules is an array of tables. `preset = "name"` starts from a preset; the other tables then change
single fields, or replace the rule where they name one.
"""

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from isentrope import (
    advantage,
    aggregate,
    control,
    correction,
    penalty,
    presets,
    ratio,
    rollout,
    schedule,
    select,
    shaping,
    surrogate,
)
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.parsing import toml_table
from isentrope.rollout import Rollout

RULE_MODULES = (advantage, select, shaping, ratio, surrogate, penalty, correction, aggregate, rollout)
CONTROLLERS = (
    schedule.Constant,
    schedule.Cosine,
    control.EntropyGain,
    control.EntropyPI,
    control.EntropyServo,
    control.EntropyStep,
    control.EntropySwitch,
    control.GroupEntropyThreshold,
    control.Hysteresis,
    schedule.Linear,
    schedule.Piecewise,
)
ENTRY_POINT_GROUP = "isentrope.objectives"


@cache
def rule_names() -> dict[str, type]:
    """The rules and controllers of this library by name."""
    rules = {name: getattr(module, name) for module in RULE_MODULES for name in module.__all__ if name != "Totals"}
    return rules | {controller.__name__: controller for controller in CONTROLLERS}


def objective_names() -> dict[str, Any]:
    """Objectives by name: the presets, and entry points of other packages (not yet loaded); IsentropeError for a name
    given twice.
    """
    found: dict[str, Any] = {name: getattr(presets, name) for name in presets.names()}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name in found:
            raise IsentropeError(
                f"objective {entry.name!r} is offered twice, by {entry.value} and another: uninstall one of them"
            )
        found[entry.name] = entry
    return found


def load(source: "Objective | str | Path | Mapping[str, Any]") -> Objective:
    """An objective from a name, "file.py:name", a .toml file, TOML text, a table, or itself.

    IsentropeError says what was not understood and lists what is close to it.
    """
    if isinstance(source, Objective):
        return source
    if isinstance(source, Mapping):
        return from_dict(source)
    text = str(source)
    if "\n" in text or "=" in text:
        return from_dict(_parse(text, "the objective"))
    if text.endswith(".toml"):
        return from_dict(_parse(_read(Path(text)), text))
    return _named(text)


def _named(name: str) -> Objective:
    if ":" in name:
        found = load_object(name)
    else:
        known = objective_names()
        if name not in known:
            raise IsentropeError(
                f"there is no objective {name!r}{_nearest(name, known)}; `file.py:name` takes one of your own"
            )
        found = known[name] if isinstance(known[name], Objective) else _offered(known[name])
    if not isinstance(found, Objective):
        raise IsentropeError(f"{name} is {type(found).__name__}, not an Objective")
    return found


def _offered(entry: EntryPoint) -> Any:
    """What another package offers under a name."""
    try:
        return entry.load()
    except Exception as error:
        raise IsentropeError(
            f"objective {entry.name!r}: {entry.value} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def load_object(reference: str) -> Any:
    """The object that "file.py:name" or "package.module:name" names. A file runs once a process, and again when its
    text has changed, as in a notebook.
    """
    place, _, name = reference.rpartition(":")
    module = module_from_file(Path(place).resolve()) if place.endswith(".py") else _module(place, reference)
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise IsentropeError(f"{place} has no {name!r}{_nearest(name, public)}")
    return getattr(module, name)


def _module(place: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise IsentropeError(f"cannot import {place!r} for {reference!r}: {error}") from error


def module_from_file(path: Path) -> ModuleType:
    """The module that a file of rules or tasks is. IsentropeError where there is none, or it does not run."""
    if not path.is_file():
        raise IsentropeError(f"there is no file {path}")
    source = path.read_bytes()
    name = f"isentrope_file_{path.stem}_{sha256(str(path).encode() + source).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    if found is None:
        raise IsentropeError(f"{path} cannot be imported as Python")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their module up while the file runs
    try:
        exec(compile(source, str(path), "exec"), vars(module))  # a loader may find the bytecode of an earlier text
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception):
            raise IsentropeError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
        raise
    return module


def reference_to(rule: Any) -> str:
    """How a rule (a class or a function) is named in a specification."""
    name = rule.__qualname__
    if rule_names().get(name) is rule:
        return str(name)
    if rule.__module__.startswith("isentrope_file_"):
        return f"{inspect.getfile(rule)}:{name}"
    return f"{rule.__module__}:{name}"


# -- objective to dict -----------------------------------------------------------------------------


def to_dict(objective: Objective) -> dict[str, Any]:
    """The specification as a dict of plain values; slots that hold nothing are left out."""
    table = {f.name: _plain(getattr(objective, f.name)) for f in fields(objective)}
    return {slot: held for slot, held in table.items() if held not in (None, []) and held != _plain(Rollout())}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if inspect.isfunction(value):
        return {"rule": reference_to(value)}
    if is_dataclass(value):
        held = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        return {"rule": reference_to(type(value))} | {name: x for name, x in held.items() if x is not None}
    raise IsentropeError(
        f"{value!r} cannot be written down: rules and controllers must be functions or dataclasses of plain values"
    )


# -- dict to objective -----------------------------------------------------------------------------


def from_dict(table: Mapping[str, Any]) -> Objective:
    """The objective that a specification describes; IsentropeError names the place of what is not understood."""
    given = dict(table)
    base = to_dict(load(given.pop("preset"))) if "preset" in given else {}
    slots = [f.name for f in fields(Objective)]
    for slot in given:
        if slot not in slots:
            raise IsentropeError(f"an objective has no slot {slot!r}{_nearest(slot, slots)}")
    merged = base | {slot: _merge(base.get(slot), held) for slot, held in given.items()}
    return _construct(Objective, {slot: _value(held, slot) for slot, held in merged.items()}, "the objective")


def _merge(base: Any, change: Any) -> Any:
    """A table that names a rule replaces the base's; one that does not changes its fields (a list's by number)."""
    if isinstance(base, list) and isinstance(change, Mapping) and all(_is_place(key, base) for key in change):
        return [_merge(held, change.get(str(i), {} if isinstance(held, dict) else held)) for i, held in enumerate(base)]
    if not isinstance(base, dict) or not isinstance(change, Mapping) or "rule" in change:
        return change
    return base | {key: _merge(base.get(key), held) for key, held in change.items()}


def _is_place(key: str, base: list[Any]) -> bool:
    return key.isdecimal() and int(key) < len(base)


def _value(held: Any, place: str) -> Any:
    if isinstance(held, Mapping):
        return _rule(held, place)
    if isinstance(held, list | tuple):
        return tuple(_value(item, f"{place}.{i}") for i, item in enumerate(held))
    return held


def _rule(table: Mapping[str, Any], place: str) -> Any:
    given = dict(table)
    name = given.pop("rule", None)
    if not isinstance(name, str):
        raise IsentropeError(
            f'{place}: the table does not name its rule; add `rule = "..."` (found {", ".join(given) or "nothing"})'
        )
    known = rule_names()
    if name not in known and ":" not in name:
        raise IsentropeError(
            f"{place}: there is no rule {name!r}{_nearest(name, known)}; `file.py:Name` takes one of your own"
        )
    kind = known[name] if name in known else load_object(name)
    if not inspect.isclass(kind):
        if given:
            raise IsentropeError(f"{place}: {name} takes no fields; found {', '.join(given)}")
        return kind
    return _construct(kind, {field: _value(x, f"{place}.{field}") for field, x in given.items()}, place)


def _construct(kind: Any, given: dict[str, Any], place: str) -> Any:
    known = [f.name for f in fields(kind)] if is_dataclass(kind) else list(inspect.signature(kind).parameters)
    for field in given:
        if field not in known:
            raise IsentropeError(f"{place}: {kind.__name__} has no field {field!r}{_nearest(field, known)}")
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise IsentropeError(f"{place}: {error}") from error


def _nearest(name: str, known: Any) -> str:
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"


# -- TOML ------------------------------------------------------------------------------------------


def dumps(objective: Objective) -> str:
    """The specification as TOML; `load` reads it back to an equal objective."""
    return "\n".join(_toml_slot(slot, held) for slot, held in to_dict(objective).items())


def _toml_slot(slot: str, held: Any) -> str:
    if isinstance(held, list):
        return "\n".join(_toml_table(f"[[{slot}]]", item) for item in held)
    return _toml_table(f"[{slot}]", held)


def _toml_table(header: str, table: Mapping[str, Any]) -> str:
    return "\n".join([header, *(f"{key} = {_toml_value(x)}" for key, x in table.items()), ""])


def _toml_value(x: Any) -> str:
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml_value(held)}" for key, held in x.items()) + " }"
    if isinstance(x, list):
        return "[" + ", ".join(_toml_value(item) for item in x) + "]"
    if isinstance(x, str):
        return json.dumps(x, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's escapes are JSON's
    return repr(x)


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return toml_table(text)
    except ValueError as error:
        raise IsentropeError(f"{where} is not valid TOML: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise IsentropeError(f"cannot read {path}: {error}") from error


# -- differences -----------------------------------------------------------------------------------


def difference(a: Objective, b: Objective) -> dict[str, tuple[Any, Any]]:
    """{path: (value in a, value in b)} for every place where the two specifications differ; None where one has
    nothing.
    """
    left, right = dict(_flat(to_dict(a), "")), dict(_flat(to_dict(b), ""))
    paths = list(left) + [path for path in right if path not in left]
    return {path: (left.get(path), right.get(path)) for path in paths if left.get(path) != right.get(path)}


def _flat(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    items: Any = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else None
    if items is None:
        yield path, node
        return
    for key, held in items:
        yield from _flat(held, f"{path}.{key}" if path else str(key))
