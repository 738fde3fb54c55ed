"""docs/notebooks/*.ipynb as pages: text, code, and the outputs that the file holds. Nothing is executed here."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pages import DOCS, Made

PICTURES = {"image/svg+xml": "svg", "image/png": "png"}
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal


def pages() -> list[Made]:
    """The pages and their pictures."""
    return [made for path in sorted((DOCS / "notebooks").glob("*.ipynb")) for made in _made(path)]


def _made(path: Path) -> Iterator[Made]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts, pictures = [], []
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else _code(source))
        for text, picture in _outputs(cell.get("outputs", []), f"{path.stem}-{number}"):
            parts.append(text)
            pictures += [picture] if picture else []
    parts.append(f"[This notebook]({path.name}) as a file.")
    yield Made(f"notebooks/{path.stem}.md", "\n\n".join(parts) + "\n")
    yield from pictures


def _code(source: str) -> str:
    language = "bash" if source.startswith(("%%sh", "%%bash", "!")) else "python"
    return f"```{language}\n{source}\n```"


def _outputs(outputs: list[dict[str, Any]], stem: str) -> Iterator[tuple[str, Made | None]]:
    """What a cell left behind: pictures as files, anything else as text; lines of a stream together."""
    said = ""
    for number, output in enumerate(outputs):
        data = output.get("data", {})
        kind = next((kind for kind in PICTURES if kind in data), None)
        if kind is None:
            said += _joined(output.get("text", data.get("text/plain", "")))
        else:
            name = f"{stem}-{number}.{PICTURES[kind]}"
            yield f"![output]({name})", Made(f"notebooks/{name}", _picture(kind, _joined(data[kind])))
    if said.strip():
        yield f"```text\n{COLOUR.sub('', said).rstrip()}\n```", None


def _picture(kind: str, held: str) -> str | bytes:
    return base64.b64decode(held) if kind == "image/png" else held


def _joined(text: str | list[str]) -> str:
    """A text as notebooks keep it: whole, or a list of lines."""
    return text if isinstance(text, str) else "".join(text)
