"""The documentation is true: its Python runs, its commands exist, its links lead somewhere, its tables are complete.

Conventions of the documents: a block marked `python` is run, all blocks of a file one after another in one namespace.
One marked `python engine` needs a host framework. In a block marked `console` a line starting with `$ ` is a command. A
block with a title (`python title="rule.py"`) is a file that the reader writes, so it is written, too. What
`test_docs_run.py` does with the commands of some pages is said there.
The block marked `text tree` of the README is the file tree.
"""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from isentrope import presets, recipe, tasks
from isentrope.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLLOWED = [
    ROOT / "docs" / "start.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]  # test_docs_run runs them whole
FENCE = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
ROW_NAME = re.compile(r"`([a-z0-9_]+)`")
TITLE = re.compile(r'title="([\w.-]+)"')
PROGRAMS = {"make", "isentrope", "source", "git", "cd"}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int  # of the first line inside the fence, counted from 1
    words: tuple[str, ...]  # of the fence's info string
    text: str

    @property
    def file(self) -> str:
        """The name of the file that the block shows, else empty."""
        found = TITLE.search(" ".join(self.words))
        return found[1] if found else ""

    def write(self, folder: Path) -> None:
        """What a reader does with a block that has a title."""
        if self.file:
            (folder / self.file).write_text(self.text, encoding="utf-8")

    def run(self, namespace: dict[str, object]) -> None:
        """Executes the text; a traceback shows the page and the line in it."""
        code = compile("\n" * (self.line - 1) + self.text, str(self.page), "exec")
        exec(code, namespace)


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, match.start()) + 2, tuple(match["info"].split()), match["text"])
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if block.words[0] == language]


def python_pages(engine: bool) -> list[Path]:
    """Pages with Python blocks that do (or do not) need a host framework."""
    return [page for page in PAGES if any(("engine" in block.words) == engine for block in blocks(page, "python"))]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of every console block: where it stands, its words."""
    for page in PAGES:
        for block in blocks(page, "console"):
            text = block.text.replace("\\\n", "  ")
            for number, line in enumerate(text.splitlines(), start=block.line):
                if line.startswith("$ "):
                    yield f"{page.name}:{number}", line.removeprefix("$ ").split("#")[0].split()


def anchors(page: Path) -> set[str]:
    """What the headings of a page can be linked by, as GitHub builds it."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table_names(page: Path, heading: str) -> set[str]:
    """Names in the first column of the table that follows the heading (or the start of the page)."""
    text = page.read_text(encoding="utf-8")
    section = text[text.index(heading) :]
    rows = [line for line in section.splitlines() if line.startswith("| ") or line.startswith("| [")]
    return {name for row in rows for name in ROW_NAME.findall(row.split("|")[1])}


@pytest.mark.parametrize("page", python_pages(engine=False), ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        if "engine" not in block.words:
            block.write(tmp_path)
            block.run(namespace)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in python_pages(engine=True) if page not in FOLLOWED], ids=lambda page: page.name
)
def test_python_blocks_that_need_a_host_framework_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        block.write(tmp_path)
        block.run(namespace)


def test_the_readme_has_python_and_console_blocks() -> None:
    readme = ROOT / "README.md"
    assert blocks(readme, "python")
    assert blocks(readme, "console")
    assert python_pages(engine=True)


def test_the_two_commands_stand_on_the_first_screen() -> None:
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30]
    assert "$ make train" in first_screen
    assert "$ make test" in first_screen


def test_every_documented_command_is_one_of_known_programs() -> None:
    found = list(commands())
    assert found
    assert [(where, words) for where, words in found if words[0] not in PROGRAMS] == []


def test_every_documented_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = [
        (where, word) for where, words in commands() if words[0] == "make" for word in words[1:] if "=" not in word
    ]
    inline = [
        (page.name, name) for page in PAGES for name in re.findall(r"`make ([a-z0-9]+)`", page.read_text("utf-8"))
    ]
    plain = [(where, word) for where, word in named if re.fullmatch(r"[a-z0-9]+", word)]
    assert plain
    assert [(where, word) for where, word in plain + inline if word not in targets] == []


def test_every_documented_verb_and_option_exists() -> None:
    verbs = typer.main.get_command(app).commands
    found = [(where, words[1:]) for where, words in commands() if words[0] == "isentrope"]
    assert found
    for where, (verb, *arguments) in found:
        assert verb in verbs, where
        options = {option for parameter in verbs[verb].params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= options, where


def test_every_documented_setting_task_and_objective_exists() -> None:
    for where, words in commands():
        given = list(pairwise(words))
        recipe.load("default", [value for option, value in given if option == "--set"], {})
        named = [(option, value) for option, value in given if ".py:" not in value]  # not a file of one's own
        assert {value for option, value in named if option == "--task"} <= set(tasks.names()), where
        assert {value for option, value in named if option == "--objective"} <= set(presets.names()), where


def test_every_documented_extra_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = {extra for group in re.findall(r"isentrope\[([a-z,]+)\]", text) for extra in group.split(",")}
    assert named
    assert named - set(project["optional-dependencies"]) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = match["target"].partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" in path:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(match["target"])
    assert broken == []


def tree(lines: list[str]) -> Iterator[Path]:
    """The paths of an indented tree; a line holds names separated by commas, then two spaces and a remark."""
    parents: dict[int, Path] = {}
    for line in filter(str.strip, lines):
        indent = len(line) - len(line.lstrip())
        above = [depth for depth in parents if depth < indent]
        folder = parents[max(above)] if above else Path()
        for name in re.split(r"\s{2,}", line.strip())[0].split(", "):
            parents = {depth: path for depth, path in parents.items() if depth < indent} | {indent: folder / name}
            yield folder / name


def committed(folder: Path) -> list[str]:
    """Files below a folder, by git: what lies about in a working tree is nobody's to document."""
    listing = subprocess.run(["git", "ls-files", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return listing.stdout.splitlines()


def test_the_file_tree_of_the_readme_is_the_real_one() -> None:
    (block,) = [block for block in blocks(ROOT / "README.md", "text") if "tree" in block.words]
    shown = set(tree(block.text.splitlines()))
    assert sorted(path for path in shown if not (ROOT / path).exists()) == []
    source = Path("src/isentrope")
    real = {source / Path(name).relative_to(source).parts[0] for name in committed(source)}
    assert real
    assert sorted(real - shown - {source / "py.typed", source / "__main__.py"}) == []


def test_the_readme_lists_every_preset_and_no_other() -> None:
    assert table_names(ROOT / "README.md", "## Objectives") == set(presets.names())


def test_every_test_that_stands_behind_a_promise_exists():
    named = re.findall(
        r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    )
    assert len(named) > 30
    for file, function in named:
        assert f"def {function}" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{function}"
