"""The reference: a page for each module that users import, by mkdocstrings; commands, recipe keys and metrics by what
defines them.

Every module of the package has a page, except those that HIDDEN names and any with a leading underscore. One that no
group names stands in the last.
"""

import ast
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from typing import Any, get_args, get_origin

import typer
from pages import ROOT, Made, table
from prose import markdown as prose
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

import isentrope
from isentrope.cli import app
from isentrope.columns import GLOSSARY
from isentrope.recipe import Recipe
from isentrope.spec import CONTROLLERS, RULE_MODULES

SOURCE = ROOT / "src" / "isentrope"
RULES = [module.__name__.removeprefix("isentrope.") for module in RULE_MODULES]
GROUPS: dict[str, list[str]] = {
    "Objectives": ["", "objective", "presets", "spec", "columns", "catalogue", "errors"],
    "Rules": RULES,
    "Controllers": ["control", "schedule"],
    "Laws and theory": ["check", "laws*", "theory", "masked", "slots"],
    "Measurements": ["diagnostics", "tally", "logprobs", "precision", "curves"],
    "Engines": ["engines*"],
    "Runs and findings": ["record", "token_dump", "run", "readers*", "findings*", "report*"],
    "Tasks": ["tasks*", "episodes"],
    "Evaluation": ["evaluate", "results", "estimates", "sampl*", "saved", "models", "seeds", "comparison"],
    "Recipes and sizes": ["recipe", "assignments", "parsing", "sizing", "warmup"],
    "More": ["*"],
}
# What is no interface: the command (it has a page of its own), scripts, and the inside of engines and of the sandbox.
HIDDEN = ("__main__", "cli*", "study*", "pretrain", "tasks.sandbox.*", "tasks.math_worker", "report.*", "findings.*")
INSIDE = ("engines.trl_*", "engines.verl_*", "engines.tabular_*")
SHOWN = (
    "engines.trl_fp16",
    "engines.trl_guards",
    "engines.trl_options",
    "engines.trl_sampler",
    "engines.trl_tools",
    "engines.verl_policy_loss",
    "engines.verl_trainer",
    "engines.tabular_table",
    "report.chart",
    "report.still",
    "findings.base",
)
OWN = {"commands.md": "Commands", "recipe-keys.md": "Recipe keys", "metrics.md": "Metrics", "glossary.md": "Columns"}


@cache
def modules() -> tuple[str, ...]:
    """The modules that have a page, without the package's name; "" is the package itself."""
    found = [module.name.removeprefix("isentrope.") for module in pkgutil.walk_packages([str(SOURCE)], "isentrope.")]
    return ("", *(name for name in found if is_shown(name)))


def is_shown(name: str) -> bool:
    if any(part.startswith("_") for part in name.split(".")):
        return False
    return name in SHOWN or not any(fnmatch(name, pattern) for pattern in (*HIDDEN, *INSIDE))


def nav() -> list[Any]:
    """The pages by group; a module is in the first group that names it."""
    grouped: dict[str, list[str]] = {title: [] for title in GROUPS}
    for name in modules():
        title = next(t for t, patterns in GROUPS.items() if any(fnmatch(name, pattern) for pattern in patterns))
        grouped[title].append(name)
    for title in ("Objectives", "Rules"):
        grouped[title].sort(key=GROUPS[title].index)
    listed = [{title: [{_title(name): _path(name)} for name in names]} for title, names in grouped.items() if names]
    return ["reference/index.md", *({title: f"reference/{path}"} for path, title in OWN.items()), *listed]


def _title(name: str) -> str:
    return name or "isentrope"


def _path(name: str) -> str:
    return f"reference/{'.'.join(['isentrope', name]) if name else 'isentrope'}.md"


def pages() -> list[Made]:
    """All pages of the reference."""
    own = {"index.md": _index, "commands.md": _commands, "recipe-keys.md": _keys, "metrics.md": _metrics}
    made = [Made(f"reference/{path}", text()) for path, text in (own | {"glossary.md": _columns}).items()]
    return made + [Made(_path(name), _module(name)) for name in modules()]


def _module(name: str) -> str:
    full = f"isentrope.{name}" if name else "isentrope"
    return f"::: {full}\n"


def _index() -> str:
    """What `import isentrope` offers, the rules by slot, the controllers; then where the rest is."""
    surface = [f"- [`isentrope.{name}`][isentrope.{name}]" for name in isentrope.__all__ if not name.startswith("_")]
    slots = [(f"`{module.__name__.rpartition('.')[2]}`", ", ".join(_linked(module))) for module in RULE_MODULES]
    controllers = ", ".join(f"[`{c.__name__}`][{c.__module__}.{c.__name__}]" for c in CONTROLLERS)
    others = [f"- [{title}]({path})" for path, title in OWN.items()]
    return "\n\n".join(
        [
            "# Reference",
            "From the docstrings, which are the specification: formula, shapes, units, edge cases, source.",
            "## What `import isentrope` offers\n\n" + "\n".join(surface),
            "## Rules by slot\n\n" + table(("slot", "rules"), slots),
            f"## Controllers\n\nThey stand where a number goes: {controllers}.",
            "## Presets\n\nThey have [pages of their own](../presets/index.md).",
            "## Names outside the code\n\n" + "\n".join(others),
        ]
    )


def _linked(module: Any) -> list[str]:
    return [f"[`{name}`][{module.__name__}.{name}]" for name in module.__all__]


def _columns() -> str:
    head = "# Columns\n\nThe batch is a mapping of these; [`isentrope.columns`](isentrope.columns.md) checks them.\n\n"
    rows = [
        (f"`{c.name}`", f"[{','.join(c.shape)}] {c.kind}".replace("[", "\\["), prose(c.meaning), prose(c.source))
        for c in GLOSSARY.values()
    ]
    return head + table(("column", "shape and type", "what it is", "who supplies it"), rows)


# -- commands ---------------------------------------------------------------------------------------------------------


def _commands() -> str:
    """Every verb with its arguments and options, from the command itself."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    intro = "# Commands\n\n`isentrope VERB --help` says the same in a terminal.\n"
    return "\n".join([intro, *(_verb(name, command) for name, command in sorted(group.commands.items()))])


def _verb(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=f"isentrope {name}")
    usage = " ".join(["isentrope", name, *command.collect_usage_pieces(context)])
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [(f"`{option}`", prose(said)) for option, said in filter(None, records)]
    said = prose(inspect.cleandoc(command.help or ""))
    listed = table(("argument or option", "what it does"), rows)
    return f"## isentrope {name}\n\n```text\n{usage}\n```\n\n{said}\n\n{listed}\n"


# -- recipe keys ------------------------------------------------------------------------------------------------------


def _keys() -> str:
    """Every section of a recipe and every key in it: type, default, and the section's docstring."""
    head = "# Recipe keys\n\nAs `--set section.key=value` too. [Recipes](../recipes.md) has how they are used."
    return "\n\n".join([head, *_sections("At the top", "", Recipe)])


def _sections(title: str, name: str, model: type[BaseModel]) -> Iterator[str]:
    """A section, then those that its keys hold."""
    inner = {key: found for key, entry in model.model_fields.items() if (found := _inner(entry.annotation))}
    yield _section(title, model, set(inner))
    for key, held in inner.items():
        full = f"{name}.{key}".lstrip(".")
        many = get_origin(model.model_fields[key].annotation) is list
        yield from _sections(f"`[[{full}]]`" if many else f"`[{full}]`", full, held)


def _inner(annotation: Any) -> type[BaseModel] | None:
    """The section that a key holds, or may hold, or a list of which it holds."""
    for held in (annotation, *get_args(annotation)):
        if inspect.isclass(held) and issubclass(held, BaseModel):
            return held
    return None


def _section(title: str, model: type[BaseModel], left_out: set[str]) -> str:
    schema = model.model_json_schema()["properties"]
    rows = []
    for key, entry in model.model_fields.items():
        if key not in left_out:
            rows.append((f"`{key}`", prose(_kind(schema[key])), _default(entry)))
    said = prose(inspect.cleandoc(model.__doc__ or ""))
    return f"## {title}\n\n{said}\n\n{table(('key', 'type', 'default'), rows)}"


def _default(entry: FieldInfo) -> str:
    if entry.is_required():
        return "required"
    return "left out" if entry.default is None else f"`{json.dumps(entry.default)}`"


def _kind(schema: dict[str, Any]) -> str:
    """A key's type with its bounds, in words."""
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(_kind(part) for part in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    names = {"object": "table", "number": "float", "null": "left out"}
    kind = names.get(schema.get("type", ""), schema.get("type", "any"))
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    return ", ".join([kind, *(f"{word} {schema[name]:g}" for name, word in bounds.items() if name in schema)])


# -- metrics ----------------------------------------------------------------------------------------------------------


def _metrics() -> str:
    """The tables of keys in the docstrings of the modules that log them."""
    parts = [
        "# Metrics\n\nThe keys that engines log, by the module that logs them. A host's own keys keep their names."
        " [`isentrope.run`](isentrope.run.md) has the names by which `diagnose` and `report` read all of them."
    ]
    for path in sorted(SOURCE.rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found = re.search(r"^\| key \| meaning \|\n(?:\|.*\n?)+", text, re.MULTILINE)
        if found:
            name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            parts.append(f"## {name}\n\n{prose(text.splitlines()[0])}\n\n{found[0].strip()}")
    return "\n\n".join(parts)
