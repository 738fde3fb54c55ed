"""A page for each preset: docs/presets/NAME.md by hand, its idea and what to watch, and what the code knows of it.

Formula, columns, numbers and the picture are taken from the objective, from docs/papers.md and from docs/engines.md
when the site is built. A preset without its file fails the build.
"""

import inspect
import re
from dataclasses import fields
from functools import cache

from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page
from pages import DOCS, Made, table
from prose import markdown as prose

from isentrope import catalogue, presets, spec
from isentrope.cli import _docstrings, _gradient, _portrait
from isentrope.columns import name_of
from isentrope.objective import Objective
from isentrope.report.chart import Axis, Chart, Series
from isentrope.report.still import svg

BASELINES = ("grpo", "dapo")
WATCH = "## What to watch"
RATIOS = _gradient.spaced(401, 0.25, 4.0)  # further out PPO's line to -10 would flatten what happens near the clip


def nav() -> list[str]:
    """The pages in the order of the presets' module."""
    return ["presets/index.md", *(f"presets/{name}.md" for name in presets.names())]


def pages() -> list[Made]:
    """The pictures; PluginError for a preset without a page, and for a page without a preset."""
    written = {path.stem for path in (DOCS / "presets").glob("*.md")} - {"index"}
    for name in set(presets.names()) ^ written:
        what = "belongs to no preset: remove it" if name in written else f"is missing: its idea, then {WATCH!r}"
        raise PluginError(f"docs/presets/{name}.md {what}")
    return [Made(f"presets/{name}.svg", _picture(name)) for name in presets.names()]


def continued(text: str, page: Page) -> str:
    """A preset's page with what the code knows put in, the index with its table; any other page as it is."""
    folder, _, file = page.file.src_uri.rpartition("/")
    if folder != "presets":
        return text
    name = file.removesuffix(".md")
    if name == "index":
        return f"{text.rstrip()}\n\n{_index()}\n"
    idea, mark, watch = text.partition(WATCH)
    if not mark:
        raise PluginError(f"{page.file.src_uri} has no heading {WATCH!r}")
    objective = getattr(presets, name)
    above = [idea.rstrip(), _gradient_section(name, objective), _formula(objective), _numbers(name)]
    below = [_columns(name, objective), _engines(name, objective), _specification(name, objective)]
    return "\n\n".join([*above, f"{mark}{watch.rstrip()}", *below]) + "\n"


def _index() -> str:
    rows = []
    for name in presets.names():
        entry = catalogue.ENTRIES[name]
        source = "../frontier.md" if entry.arxiv == catalogue.OURS else f"https://arxiv.org/abs/{entry.arxiv}"
        paper = f"[{entry.arxiv}]({source})"
        rows.append((f"[`{name}`]({name}.md)", paper, prose(entry.changes), prose(entry.entropy)))
    return table(("preset", "paper", "what it does", "entropy"), rows)


@cache
def _measured(name: str) -> _gradient.Gradient:
    return _gradient.measure(getattr(presets, name), RATIOS)


def _picture(name: str) -> str:
    found = _measured(name)
    series = [Series("A = +1", RATIOS, found.positive, 0), Series("A = -1", RATIOS, found.negative, 1)]
    ratio = Axis("ratio of the new to the old probability, log scale", log=True)
    weight = Axis("gradient weight dJ/dlogp")
    return svg(Chart(name, f"{name}: gradient weight of a token", "", weight, tuple(series), x=ratio))


def _gradient_section(name: str, objective: Objective) -> str:
    notes = " ".join([*_gradient.notes(objective, _measured(name)), *_same(name)])
    return f"## Gradient weight over the ratio\n\n![gradient weight of {name}]({name}.svg)\n\n{prose(notes)}"


def _same(name: str) -> list[str]:
    """A sentence where the picture is that of a baseline, for then it does not show what the preset is about."""
    found = _measured(name)
    for base in BASELINES:
        other = _measured(base)
        if base != name and (found.positive, found.negative) == (other.positive, other.negative):
            return [f"This is the picture of {base}: what sets {name} apart is no function of the ratio alone."]
    return []


def _formula(objective: Objective) -> str:
    parts = [f"## Formula\n\n{prose(_docstrings.overall_formula())}"]
    for path, rule in _docstrings.parts(objective):
        kind = type(rule)
        text = inspect.cleandoc(kind.__doc__ or "").split("\n>>> ")[0]
        link = f"[`{name_of(rule)}`](../reference/{kind.__module__}.md#{kind.__module__}.{kind.__name__})"
        said = prose(text, [field.name for field in fields(kind)])
        parts.append(f"`{path}`: {link}\n\n" + "\n".join(f"> {line}" for line in said.splitlines()))
    return "\n\n".join(parts)


def _numbers(name: str) -> str:
    """The preset's section of docs/papers.md."""
    text = (DOCS / "papers.md").read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        if name in heading.split(", "):
            body = re.sub(r"\]\(#", "](../papers.md#", re.sub(r"\]\((?=\w+\.md)", "](../", body))
            return f"## Paper, numbers, departures\n\n{body.strip()}"
    raise PluginError(f"docs/papers.md has no section on {name}")


def _columns(name: str, objective: Objective) -> str:
    rows = [(f"`{column}`", *map(prose, what)) for column, *what in _portrait.describe(name, objective).columns()]
    return f"## Columns\n\n{table(('column', 'needed by', 'what it is', 'who supplies it'), rows)}"


def _engines(name: str, objective: Objective) -> str:
    """Where it runs, and what the loop has to allow for it to act."""
    (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", (DOCS / "engines.md").read_text(encoding="utf-8"), re.MULTILINE)
    others = dict(zip(("SkyRL", "OpenRLHF", "prime-rl"), (part.strip() for part in row.split("|")), strict=True))
    hosted = "; ".join(f"{engine}: {what}" for engine, what in others.items())
    lines = ["TRL, verl and the tabular engine host it whole, where its columns can be had."]
    lines += [f"{hosted}."]
    lines += [said.partition(": ")[2] for said in objective.inert(updates_per_rollout=1, group_size=1)]
    listed = "\n".join(f"- {prose(line)}" for line in lines)
    return f"## Engines and settings\n\n{listed}\n\n[Other engines](../engines.md#presets) says what these words mean."


def _specification(name: str, objective: Objective) -> str:
    commands = f"$ isentrope show {name}\n$ isentrope diff grpo {name}\n$ isentrope train --objective {name}"
    return (
        f'## Specification\n\nAs TOML, for a recipe\'s `[objective]`; `preset = "{name}"` is short for it.\n\n'
        f"```toml\n{spec.dumps(objective).rstrip()}\n```\n\n```console\n{commands}\n```"
    )
