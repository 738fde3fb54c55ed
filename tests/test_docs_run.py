"""The commands of the first steps and the how-to pages are run, in order, page by page, in an empty folder each.

Conventions, beside those of `test_docs.py`: a `console` block's `$ ` lines are run in this process; one that ends with
another status than 0 says so in its comment (`# exit status 1`). A block marked `text output` shows lines of what the
commands before it print; they must be among them, in any numbers. What cannot be run here stands behind a comment
`<!-- not run: REASON -->`, with one of the reasons below. A `toml` block without a title is part of a recipe, and must
be a recipe by itself.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isentrope import recipe, spec
from isentrope.cli import app
from isentrope.errors import IsentropeError

from .test_docs import FENCE, FOLLOWED, Block

REASONS = {
    "installs",
    "takes minutes",
    "needs GPUs",
    "needs verl's environment",
    "needs a model of yours",
    "a fragment",
}
NOT_RUN_AT_MOST = 12  # blocks, of all pages together
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\n\Z")
STATUS = re.compile(r"exit status (\d)")
NUMBER = re.compile(r"[-+]?[\d.,:]*\d%?")
DRAWING = re.compile("[\u2800-\u28ff]+")  # a curve in braille: other numbers, another curve


@dataclass(frozen=True)
class Step(Block):
    reason: str = ""  # why it is not run

    @property
    def commands(self) -> list[str]:
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def steps(page: Path) -> Iterator[Step]:
    """All fenced blocks of a page, with the reason of those that are not run."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        marked = NOT_RUN.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 2
        yield Step(page, line, tuple(match["info"].split()), match["text"], marked[1] if marked else "")


def plain(text: str) -> str:
    """An output without what another machine may print otherwise: numbers, curves, widths and broken lines."""
    return " ".join(NUMBER.sub("#", DRAWING.sub(" ", text)).split())


@dataclass
class Reader:
    """Somebody who goes through a page and does what it says."""

    folder: Path
    namespace: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})
    seen: str = ""

    def follow(self, step: Step) -> None:
        if step.reason:
            return
        step.write(self.folder)
        if step.words[0] == "python":
            step.run(self.namespace)
        elif step.words[0] == "console":
            self.seen = plain("\n".join(map(self.run, step.commands)))
        elif step.words[0] == "toml" and not step.file:
            (self.folder / "part.toml").write_text(step.text, encoding="utf-8")
            spec.load(recipe.load(str(self.folder / "part.toml"), [], {}).objective)
        elif step.words[0] in ("sh", "bash"):
            raise AssertionError(f"{step.page.name}:{step.line}: write it as console, or say why it is not run")
        elif "output" in step.words:
            shown = [plain(line) for line in step.text.splitlines()]
            assert [line for line in shown if line not in self.seen] == [], f"{step.page.name}:{step.line}"

    def run(self, command: str) -> str:
        """What the command prints, after its exit status was found to be the one that was announced."""
        program, *words = shlex.split(command, comments=True)
        assert program == "isentrope", command
        announced = STATUS.search(command)
        done = CliRunner().invoke(app, words)
        assert done.exit_code == int(announced[1] if announced else 0), f"$ {command}\n{done.output}"
        return done.output


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.name)
def test_who_follows_a_page_arrives(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    for step in steps(page):
        reader.follow(step)


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.name)
def test_every_page_has_something_to_do(page: Path) -> None:
    assert [step for step in steps(page) if not step.reason and step.words[0] in ("python", "console")]


def test_little_is_left_unrun_and_for_a_known_reason() -> None:
    reasons = Counter(step.reason for page in FOLLOWED for step in steps(page) if step.reason)
    assert set(reasons) <= REASONS
    assert 0 < reasons.total() <= NOT_RUN_AT_MOST


def test_no_marker_stands_where_no_block_follows() -> None:
    for page in FOLLOWED:
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- not run:") == sum(bool(step.reason) for step in steps(page)), page.name


def test_an_output_is_compared_without_its_numbers_and_curves() -> None:
    assert plain("entropy  0.25 \u2811\u2822 nats\n\n 43% in 1:27") == plain("entropy 1.7 nats\n 5% in   0:02")
    assert plain("warning  entropy collapses") != plain("error  entropy collapses")


def step_of(words: str, text: str) -> Step:
    return Step(Path("page.md"), 1, tuple(words.split()), text)


def test_an_output_that_no_command_printed_is_noticed(tmp_path: Path) -> None:
    reader = Reader(tmp_path, seen=plain("error  entropy has collapsed, from 1.7 to 0.1 nats"))
    reader.follow(step_of("text output", "error  entropy has collapsed, from 0.807 to 0.0717 nats\n"))
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        reader.follow(step_of("text output", "error  entropy explodes\n"))


def test_what_cannot_be_followed_is_an_error(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    with pytest.raises(AssertionError, match="say why it is not run"):
        reader.follow(step_of("sh", "ray start\n"))
    with pytest.raises(AssertionError, match="make train"):
        reader.follow(step_of("console", "$ make train\n"))
    with pytest.raises(AssertionError, match="isentrope nothing"):
        reader.follow(step_of("console", "$ isentrope nothing\n"))
    with pytest.raises(AssertionError, match="isentrope list"):
        reader.follow(step_of("console", "$ isentrope list  # exit status 1\n"))
    with pytest.raises(IsentropeError, match="has no key"):
        reader.follow(step_of("toml", "no_such_key = 1\n"))


def test_a_block_with_a_title_is_written_and_one_with_a_reason_is_left_alone(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.follow(step_of('toml title="mine.toml"', "seed = 3\n"))
    reader.follow(Step(Path("page.md"), 1, ("sh",), "ray start\n", "needs GPUs"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"mine.toml": "seed = 3\n"}
