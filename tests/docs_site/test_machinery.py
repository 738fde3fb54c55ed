"""What makes the site's pages."""

import doctest
import importlib
import re

import pytest

from isentrope import catalogue, presets
from isentrope.diagnostics import QUADRANTS

from .conftest import ROOT

DOCS = ROOT / "docs"
TRL_KEYS = {"completions/mean_length", "completions/clipped_ratio"}  # TRL's own


@pytest.fixture
def load(machinery):
    return importlib.import_module


@pytest.mark.parametrize("name", ["prose", "pages"])
def test_the_examples_in_the_machinery_run(load, name):
    assert doctest.testmod(load(name)).attempted > 0
    assert doctest.testmod(load(name)).failed == 0


def test_prose_keeps_formulas_lists_tables_and_code(load):
    markdown = load("prose").markdown
    assert markdown("a * b_i, [B,T] and `x*y` of\n**that**.") == "a \\* b\\_i, \\[B,T\\] and `x*y` of\n**that**."
    assert markdown("* one: `a`\n  two\n* three") == "* one: `a`\n  two\n* three"
    assert markdown("| a | b |\n| --- | --- |\n| x*y | 2 |") == "| a | b |\n| --- | --- |\n| x*y | 2 |"
    assert markdown("Code:\n\n    a = b*c") == "Code:\n\n    a = b*c"
    assert markdown("```python\na = 1\n\n\nb = 2\n```") == "```python\na = 1\n\n\nb = 2\n```"
    assert markdown("`a*b\nc_d` e*") == "`a*b\nc_d` e\\*"


def test_prose_lists_arguments_and_ends_the_list_at_what_is_returned_or_cited(load):
    text = "J.\n\nlow, high: bounds,\n    both.\ncoef: a factor.\nnoise: no argument.\nSource: eq. 1."
    expected = "J.\n\n- **low, high**: bounds,\n  both.\n- **coef**: a factor.\n  noise: no argument.\n\nSource: eq. 1."
    assert load("prose").markdown(text, ["low", "high", "coef"]) == expected


def test_docstrings_get_the_columns_that_a_rule_reads(load):
    griffe = importlib.import_module("griffe")
    source = 'class Rule:\n    """J = r A."""\n    def __call__(self, x, *, logp, mask=None): ...\n'
    module = griffe.visit("rules", filepath=DOCS / "rules.py", code=source)
    load("prose").Prose().on_object(obj=module["Rule"])
    assert module["Rule"].docstring.value == "J = r A.\n\nColumns: `logp`, `mask` (where it is)."


def test_constants_are_listed_by_their_comments_and_presets_by_their_entries(load, tmp_path):
    griffe, prose = importlib.import_module("griffe"), load("prose")

    def shown(package, source, name):
        path = tmp_path / "rules.py"
        path.write_text(source, encoding="utf-8")
        lines = griffe.LinesCollection()
        lines[path] = source.splitlines()
        module = griffe.visit(package, filepath=path, code=source, lines_collection=lines)
        prose.Prose().on_object(obj=module[name])
        return module[name].docstring and module[name].docstring.value

    lines = ['__all__ = ["LISTED"]', "LONG = 20.0  # nats; 2 * 10", "# Above,", "# in two lines.", "WIDE = 1"]
    source = "\n".join([*lines, "", "BARE = 2", "LISTED = 3", ""])
    assert shown("rules", source, "LONG") == "nats; 2 \\* 10"
    assert shown("rules", source, "WIDE") == "Above, in two lines."
    assert shown("rules", source, "BARE") is None
    assert shown("rules", source, "LISTED") == "&nbsp;"
    package = griffe.Module("isentrope")
    assert "clipped tokens keep a bounded gradient" in _entry(griffe, prose, package)


def _entry(griffe, prose, package):
    """What is shown of a preset."""
    module = griffe.Module("presets", parent=package)
    package["presets"] = module
    module["ce_gppo"] = griffe.Attribute("ce_gppo", parent=module)
    prose.Prose().on_object(obj=module["ce_gppo"])
    return module["ce_gppo"].docstring.value


@pytest.mark.parametrize(
    ("path", "home"),
    [
        ("README.md", "index.md"),
        ("CHANGELOG.md", "changelog.md"),
        ("docs/verl.md", "verl.md"),
        ("docs/pictures/curves.png", "pictures/curves.png"),
        ("docs/make_cluster.py", "files/docs/make_cluster.py.md"),
        ("docs/notebooks/first-run.ipynb", "notebooks/first-run.md"),
        ("examples", "files/examples.md"),
        ("examples/explore_hard.py", "files/examples/explore_hard.py.md"),
        ("bench/README.md", "files/bench/README.md"),
    ],
)
def test_whatever_a_page_links_to_has_its_place_in_the_site(load, path, home):
    outside = load("outside")
    assert (ROOT / path).exists()
    assert outside.home_of(ROOT / path) == home
    if not path.endswith(".ipynb"):
        assert outside.source_of(home) == ROOT / path


def test_links_are_followed_outside_code_alone(load):
    text = (
        "[a](../README.md)\n\n```python\nx = '[b](../bench/README.md)'\n```\n\n`[c](../SECURITY.md)` [d](https://x.y/z)"
    )
    assert list(load("outside")._targets("verl.md", text)) == [ROOT / "README.md"]


def test_links_of_the_readme_lead_to_the_pages_of_the_site(load):
    files = type("Files", (), {"get_file_from_path": lambda self, path: path if path != "gone.md" else None})()
    page = type("Page", (), {"file": type("File", (), {"src_uri": "index.md"})})
    text = "[`a` b](docs/recipes.md#x) [c](examples) [d](nowhere.md) `[e](docs/verl.md)` [f](CHANGELOG.md)"
    expected = "[`a` b](recipes.md#x) [c](files/examples.md) [d](nowhere.md) `[e](docs/verl.md)` [f](changelog.md)"
    assert load("outside").redirected(text, page, files) == expected
    assert load("outside").redirected("```text tree\na\n```\n", page, files) == "```text\na\n```\n"
    page.file.src_uri = "concepts/step.md"
    assert (
        load("outside").redirected("[a](../../README.md) [b](../verl.md)", page, files)
        == "[a](../index.md) [b](../verl.md)"
    )


@pytest.mark.parametrize(
    ("fence", "shown"),
    [
        ("```python engine", "```python"),
        ("```text tree", "```text"),
        ("```console", "```console"),
        ('```python title="a.py"', '```python title="a.py"'),
        ('```python engine title="a.py"', '```python title="a.py"'),
    ],
)
def test_words_for_the_tests_do_not_reach_the_reader(load, fence, shown):
    assert load("outside")._fence(f"{fence}\na = 1\n```") == f"{shown}\na = 1\n```"


def test_the_navigation_takes_whole_folders_and_what_is_named_nowhere(load):
    class Page:
        def __init__(self, path):
            self.src_uri = path

    class Pages:
        def documentation_pages(self):
            return list(map(Page, ["index.md", "b/two.md", "b/one.md", "rest.md", "files/x.md"]))

    nav = [{"Start": ["index.md"]}, {"B": "b/*"}, {"C": "c/*"}, {"More": ["*"]}]
    spelled_out = load("site_nav").spelled_out(nav, Pages())
    assert spelled_out == [{"Start": ["index.md"]}, {"B": ["b/one.md", "b/two.md"]}, {"More": ["rest.md"]}]


def test_a_notebook_becomes_text_code_and_pictures(load, tmp_path, monkeypatch):
    notebooks = load("notebook_pages")
    monkeypatch.setattr(notebooks, "DOCS", tmp_path)
    outputs = (
        '[{"output_type": "stream", "name": "stdout", "text": ["\\u001b[1mbold\\u001b[0m\\n", "b\\n"]},'
        ' {"output_type": "display_data", "data": {"image/svg+xml": ["<svg/>"], "text/plain": "x"}}]'
    )
    cells = (
        '{"cell_type": "markdown", "source": ["# T\\n", "text"]},'
        f' {{"cell_type": "code", "source": "print(1)", "outputs": {outputs}}}'
    )
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "a.ipynb").write_text(f'{{"cells": [{cells}]}}', encoding="utf-8")
    page, picture = notebooks.pages()
    assert page.path == "notebooks/a.md"
    expected = "# T\ntext\n\n```python\nprint(1)\n```\n\n![output](a-1-1.svg)\n\n```text\nbold\nb\n```\n\n"
    assert page.content.startswith(expected)
    assert (picture.path, picture.content) == ("notebooks/a-1-1.svg", "<svg/>")


def test_the_theme_loses_the_addresses_that_it_might_fetch_from(load, tmp_path):
    scripts = tmp_path / "assets" / "javascripts"
    scripts.mkdir(parents=True)
    (scripts / "bundle.1.min.js").write_text('load("https://unpkg.com/mermaid@11/dist/mermaid.min.js");a()')
    load("site_hooks").on_post_build({"site_dir": str(tmp_path)})
    assert (scripts / "bundle.1.min.js").read_text() == 'load("about:blank");a()'


def test_a_picture_that_does_not_show_what_a_preset_is_about_says_so(load):
    same = load("preset_pages")._same
    assert same("grpo") == same("ce_gppo") == same("dapo") == []
    assert "the picture of dapo" in same("repo_d")[0]


def test_the_formula_of_a_preset_names_its_rules_with_their_docstrings_and_arguments(load):
    text = load("preset_pages")._formula(presets.ce_gppo)
    assert "reference/isentrope.surrogate.md#isentrope.surrogate.GradientPreservingClip" in text
    assert "keep\\_low (1 - low) u A" in text
    assert "> - **ddof**: 1 for the sample standard deviation" in text
    assert ">>>" not in text


def test_a_page_without_its_heading_and_a_preset_without_its_page_are_refused(load, tmp_path, monkeypatch):
    preset_pages, exceptions = load("preset_pages"), load("mkdocs.exceptions")
    page = type("Page", (), {"file": type("File", (), {"src_uri": "presets/grpo.md"})})
    with pytest.raises(exceptions.PluginError, match="no heading '## What to watch'"):
        preset_pages.continued("# grpo\n\nIdea.\n", page)
    monkeypatch.setattr(preset_pages, "DOCS", tmp_path)
    with pytest.raises(exceptions.PluginError, match=r"docs/presets/\w+\.md is missing"):
        preset_pages.pages()


def patterns():
    """The metrics that docstrings list, as regular expressions: <x> and * stand for anything."""
    found = set()
    for path in (ROOT / "src" / "isentrope").rglob("*.py"):
        for names in re.findall(r"^\| (`[^|]+`) \|", path.read_text(encoding="utf-8"), re.MULTILINE):
            found |= set(re.findall(r"`([^`]+)`", names))
    return [re.sub(r"\\?<\w+\\?>|\\\*", ".+", re.escape(name)) for name in found]


def test_what_to_watch_is_what_is_logged():
    known = patterns()
    names = set()
    for name in presets.names():
        text = (DOCS / "presets" / f"{name}.md").read_text(encoding="utf-8").split("## What to watch")[1]
        names |= set(re.findall(r"`([a-z_]+/[\w/.&<>]+)`", text))
    assert len(names) > 20
    assert [name for name in names - TRL_KEYS if not any(re.fullmatch(p, name) for p in known)] == []
    shares = [name.rpartition("/")[2] for name in names if "change_share" in name]
    assert shares
    assert set(shares) <= set(QUADRANTS)


def test_every_number_of_a_controller_that_a_page_names_is_in_the_state():
    for name in presets.names():
        objective = getattr(presets, name)
        text = (DOCS / "presets" / f"{name}.md").read_text(encoding="utf-8")
        for path in re.findall(r"`controller/([\w.]+)`", text):
            knob, _, number = path.rpartition(".")
            assert catalogue.at(objective, knob) is not None, (name, path)
            assert number == "value", (name, path)
            assert knob in objective.controllers() or "where a controller holds it" in text, (name, path)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_has_its_page_with_an_idea_and_what_to_watch(name):
    path = DOCS / "presets" / f"{name}.md"
    assert path.exists(), f"write docs/presets/{name}.md: its idea, then the heading '## What to watch'"
    head, _, watch = path.read_text(encoding="utf-8").partition("\n## What to watch\n")
    assert head.startswith(f"# {name}\n\n")
    assert len(head.split()) > 20
    assert len(re.findall(r"^- ", watch, re.MULTILINE)) >= 2


def test_no_page_stands_for_a_preset_that_is_gone():
    assert {path.stem for path in (DOCS / "presets").glob("*.md")} - {"index"} == set(presets.names())
