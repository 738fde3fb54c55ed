"""What lies outside docs/ and belongs to the documentation: README and its like, and every file that a page links to.

Pages link relative to their place in the repository, so that they read on a forge. Here a link finds out which page of
the site shows its target: the README is the front page, and a source file gets a page under files/.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files, InclusionLevel
from mkdocs.structure.pages import Page
from pages import DOCS, ROOT, Made

HOMES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")  # from its text's end on: the text may hold code
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yaml": "yaml", ".yml": "yaml", ".sh": "sh"}
SKIPPED = {"__pycache__"}


def add(files: Files, config: MkDocsConfig) -> None:
    """Adds README and its like to the site's files, then everything that pages link to and that has no page yet."""
    for name, home in HOMES.items():
        files.append(Made(home, (ROOT / name).read_text(encoding="utf-8")).file(config))
    queue = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while queue:
        where, text = queue.pop()
        for target in _targets(where, text):
            home = home_of(target)
            if target.exists() and files.get_file_from_path(home) is None:
                made = Made(home, _shown(target)).file(config)
                made.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(made)
                queue.append((home, made.content_string))


def home_of(target: Path) -> str:
    """The site's file that shows a file or folder of the repository."""
    path = target.relative_to(ROOT).as_posix()
    if path in HOMES:
        return HOMES[path]
    if DOCS in target.parents and target.suffix not in (".py", ".json", ".ipynb"):
        return target.relative_to(DOCS).as_posix()
    if path.endswith(".ipynb") and DOCS in target.parents:
        return target.relative_to(DOCS).with_suffix(".md").as_posix()
    return f"files/{path}" if path.endswith(".md") else f"files/{path}.md"


def source_of(home: str) -> Path:
    """The file of the repository that a page of the site shows."""
    names = {page: name for name, page in HOMES.items()}
    if home in names:
        return ROOT / names[home]
    if not home.startswith("files/"):
        return DOCS / home
    path = ROOT / home.removeprefix("files/")
    return path if path.exists() else path.with_suffix("")


def redirected(markdown: str, page: Page, files: Files) -> str:
    """The text of a page with its links leading to pages of the site; what leads nowhere stays: MkDocs reports it."""
    home = page.file.src_uri

    def lead(match: re.Match[str]) -> str:
        target = _resolved(home, match[2])
        if target is None or files.get_file_from_path(home_of(target)) is None:
            return match[0]
        there = os.path.relpath(home_of(target), str(PurePosixPath(home).parent))
        return f"{match[1]}{there}{match[3] or ''}{match[4]}"

    pieces = CODE.split(markdown)
    return "".join(_fence(piece) if number % 2 else LINK.sub(lead, piece) for number, piece in enumerate(pieces))


def _fence(code: str) -> str:
    """Code with the language alone behind its fence, and a title: further words are for tests/test_docs.py."""
    return re.sub(r"^( *```\w+)(?: \w+)+(?= |$)", r"\1", code, count=1, flags=re.MULTILINE)


def _targets(home: str, text: str) -> Iterator[Path]:
    """What of the repository a page links to."""
    for match in LINK.finditer(CODE.sub("", text)):
        target = _resolved(home, match[2])
        if target is not None:
            yield target


def _resolved(home: str, link: str) -> Path | None:
    """The file or folder of the repository that a link on a page leads to; None for one that leads elsewhere."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    target = Path(os.path.normpath(source_of(home).parent / link))
    return target if ROOT in target.parents and target.exists() else None


def _shown(target: Path) -> str:
    """A file or a folder as a page."""
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        inside = sorted(path for path in target.iterdir() if path.name not in SKIPPED and not path.name.startswith("."))
        listed = "\n".join(f"- [{path.name}]({target.name}/{path.name})" for path in inside)
        return f"# {name}\n\n{listed}\n"
    text = target.read_text(encoding="utf-8")
    if target.suffix == ".md":
        return text
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"# {name}\n\n{fence}{LANGUAGES.get(target.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"
