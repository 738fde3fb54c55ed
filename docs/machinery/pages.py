"""A page that is no file of docs/, and where the repository lies."""

from dataclasses import dataclass
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Made:
    """path: below the site, such as "reference/index.md". content: Markdown for a page, else the file as it stands."""

    path: str
    content: str | bytes

    def file(self, config: MkDocsConfig) -> File:
        """The same for MkDocs."""
        return File.generated(config, self.path, content=self.content)


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    r"""A table in Markdown.

    >>> print(table(("a", "b"), [("1", "x|y")]))
    | a | b |
    | --- | --- |
    | 1 | x\|y |
    """
    lines = [head, ("---",) * len(head), *(tuple(map(cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
