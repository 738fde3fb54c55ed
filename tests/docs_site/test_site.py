"""The built site: complete, whole in its links, and silent on the network."""

import ast
import json
import os
import re
from collections import Counter
from pathlib import PurePosixPath
from urllib.parse import unquote

import pytest
import typer
from pydantic import BaseModel

import isentrope
from isentrope import presets
from isentrope.cli import app, verbs
from isentrope.columns import GLOSSARY
from isentrope.recipe import Recipe
from isentrope.spec import CONTROLLERS, RULE_MODULES

from ..report.browser import INSTALL, Browser, find
from .conftest import ROOT

pytestmark = pytest.mark.slow

SOURCE = ROOT / "src" / "isentrope"
FACES = ("trl", "verl", "tabular", "skyrl", "openrlhf", "prime_rl", "loss_hook", "metrics")
# Addresses that stand in the theme's files and are fetched by nothing: namespaces, licences, hints in comments.
MENTIONED = {"www.w3.org", "clipboardjs.com", "fontawesome.com", "lunrjs.com", "tartarus.org", "bit.ly"}
TEXT = {".css", ".js", ".svg"}


def is_remote(address):
    return re.match(r"(?:[a-z][a-z0-9+.-]*:)?//", address) is not None


def assigned(path, name):
    """The literal that a module gives to a name, None where it does not."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == name for target in node.targets):
            return ast.literal_eval(node.value)
    return None


def public_names(path):
    """What a module offers: `__all__`, else functions and classes without an underscore."""
    listed = assigned(path, "__all__")
    if listed is not None:
        return [name for name in listed if not name.startswith("_")]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


def module_name(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="module")
def documented(pages):
    """Everything that the reference has an anchor for."""
    return {name for path, page in pages.items() if path.startswith("reference/") for name in page.ids}


def test_every_name_of_the_public_surface_rule_controller_and_preset_is_in_the_reference(documented):
    surface = {f"isentrope.{name}" for name in isentrope.__all__ if not name.startswith("_")}
    rules = {f"{module.__name__}.{name}" for module in RULE_MODULES for name in module.__all__}
    controllers = {f"{kind.__module__}.{kind.__name__}" for kind in CONTROLLERS}
    named = {f"isentrope.presets.{name}" for name in presets.names()}
    assert min(map(len, (surface, rules, controllers, named))) > 5
    assert (surface | rules | controllers | named) - documented == set()


def test_every_public_name_of_every_module_that_is_no_inside_is_in_the_reference(documented, machinery):
    import reference_pages

    shown = [path for path in SOURCE.rglob("*.py") if reference_pages.is_shown(module_name(path)[10:])]
    assert len(shown) > 60
    names = {f"{module_name(path)}.{name}" for path in shown for name in public_names(path)}
    elsewhere = assigned(SOURCE / "engines" / "verl.py", "_ELSEWHERE")  # what that module makes when asked for
    lazy = {f"isentrope.engines.verl.{name}": f"isentrope.engines.{at}.{name}" for name, at in elsewhere.items()}
    assert {lazy.get(name, name) for name in names} - documented == set()


def test_what_people_import_is_no_inside(machinery):
    import reference_pages

    flat = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__", "pretrain"}
    folders = {
        f"{name}.{path.stem}" for name in ("laws", "readers", "tasks") for path in (SOURCE / name).glob("[!_]*.py")
    }
    folders -= {"tasks.math_worker"}
    assert {
        name for name in flat | folders | {f"engines.{face}" for face in FACES} if not reference_pages.is_shown(name)
    } == set()


def test_every_verb_with_every_option_is_in_the_reference(pages):
    page = pages["reference/commands.html"]
    commands = typer.main.get_command(app).commands
    assert set(commands) == {verb.replace("_", "-") for verb in verbs()}
    for name, command in commands.items():
        assert f"isentrope-{name}" in page.ids
        section = page.text.split(f"isentrope {name} [OPTIONS]")[1].split("[OPTIONS]")[0]
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        assert options
        assert [option for option in options if option not in section] == []


def recipe_keys(model):
    for key, entry in model.model_fields.items():
        yield key
        for held in (entry.annotation, *getattr(entry.annotation, "__args__", ())):
            if isinstance(held, type) and issubclass(held, BaseModel):
                yield from recipe_keys(held)


def test_every_key_of_a_recipe_is_in_the_reference(site):
    text = (site / "reference" / "recipe-keys.html").read_text(encoding="utf-8")
    keys = set(recipe_keys(Recipe))
    assert len(keys) > 50
    assert [key for key in keys if not re.search(rf"<code>\[*(\w+\.)*{key}\]*</code>", text)] == []


def test_every_metric_that_a_docstring_lists_and_every_column_is_in_the_reference(pages):
    metrics = set()
    for path in SOURCE.rglob("*.py"):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        table = re.search(r"^\| key \| meaning \|\n((?:\|.*\n?)+)", doc, re.MULTILINE)
        for row in table[1].splitlines()[1:] if table else []:
            metrics |= set(re.findall(r"`([^`]+)`", row.split("|")[1]))
    assert len(metrics) > 40
    assert [name for name in metrics if name not in pages["reference/metrics.html"].text] == []
    assert [name for name in GLOSSARY if name not in pages["reference/glossary.html"].text] == []


@pytest.mark.parametrize("name", presets.names())
def test_a_page_of_a_preset_is_whole(pages, site, name):
    page = pages[f"presets/{name}.html"]
    wanted = {
        "formula",
        "paper-numbers-departures",
        "what-to-watch",
        "columns",
        "engines-and-settings",
        "specification",
    }
    assert wanted - set(page.ids) == set()
    assert ("img", "src", f"{name}.svg") in page.addresses
    assert ("a", "href", "../engines.html#presets") in page.addresses
    assert "](" not in page.text
    picture = (site / "presets" / f"{name}.svg").read_text(encoding="utf-8")
    assert picture.count("<polyline") == 2
    assert [kind for _, kind in re.findall(r"`(\w+)`: `(\w+)`", page.text)] == []  # no Markdown left over


def test_pictures_of_presets_with_another_gradient_differ(site):
    pictures = [
        (site / "presets" / f"{name}.svg").read_text(encoding="utf-8") for name in ("grpo", "ce_gppo", "gppo", "sapo")
    ]
    lines = {"".join(re.findall(r"<polyline points='([^']+)'", picture)) for picture in pictures}
    assert len(lines) == 4


def test_every_document_is_in_the_navigation(pages):
    linked = {target for _, _, target in pages["index.html"].addresses}
    documents = {
        path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")
    }
    assert len(documents) > 40
    assert documents - {address.split("#")[0] for address in linked} == set()


def test_every_link_within_the_site_leads_to_a_file_and_an_anchor(pages, site):
    broken = []
    for path, page in pages.items():
        for tag, _, address in page.addresses:
            where, _, anchor = unquote(address).partition("#")
            if is_remote(address) or address.startswith(("mailto:", "data:", "javascript:")) or path == "404.html":
                continue
            target = os.path.normpath(PurePosixPath(path).parent / where) if where else path
            if not (site / target).is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                broken.append((path, tag, address))
    assert broken == []


def test_no_id_stands_twice_on_a_page(pages):
    twice = {path: [name for name, count in Counter(page.ids).items() if count > 1] for path, page in pages.items()}
    assert {path: names for path, names in twice.items() if names} == {}


def test_nothing_is_fetched_from_elsewhere(pages, site):
    """Only links that a reader follows, and only of <a>, lead out."""
    fetched = [(path, *found) for path, page in pages.items() for found in page.addresses if found[0] != "a"]
    assert len(fetched) > 500
    assert [found for found in fetched if is_remote(found[3])] == []
    for path in sorted(site.rglob("*")):
        if path.suffix in TEXT and path.is_file() and path.parent.name != "search":
            hosts = set(re.findall(r"https?://([\w.-]+)", path.read_text(encoding="utf-8")))
            assert hosts <= MENTIONED, path


def test_a_page_that_draws_diagrams_by_a_script_is_not_there(site):
    """The theme would fetch the script; pictures are drawn beforehand."""
    assert [path for path in site.rglob("*.html") if 'class="mermaid"' in path.read_text(encoding="utf-8")] == []


@pytest.fixture(scope="module")
def browser():
    executable = find()
    if executable is None:
        pytest.skip(INSTALL)
    started = Browser(executable)
    yield started
    started.close()


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("path", ["index.html", "presets/ce_gppo.html", "reference/isentrope.surrogate.html"])
def test_a_page_opens_from_a_folder_without_a_complaint_a_remote_request_or_an_overflow(browser, site, path, width):
    browser.open(site / path, width=width)
    assert browser.complaints() == []
    assert [address for address in browser.requests() if not address.startswith(("file:", "data:", "about:"))] == []
    assert browser("document.documentElement.scrollWidth") <= width


def test_the_search_finds_a_rule_from_a_folder_without_a_server(browser, site):
    browser.open(site / "index.html")
    browser("document.querySelector('[data-md-component=search-query]').focus()")
    browser("""{const field = document.querySelector('[data-md-component=search-query]');
        field.value = 'GradientPreservingClip'; field.dispatchEvent(new Event('keyup', {bubbles: true}));}""")
    browser.wait("document.querySelectorAll('.md-search-result__link').length > 0")
    links = browser("[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)")
    assert any("reference/isentrope.surrogate.html" in link for link in links), json.dumps(links)
