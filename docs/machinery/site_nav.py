"""The navigation, spelled out from mkdocs.yml: no page has to be entered twice, and none can be forgotten."""

from collections.abc import Iterator
from typing import Any

import preset_pages
import reference_pages
from mkdocs.structure.files import Files

# Folders with an order of their own; the pages of any other stand in the order of their names.
ORDERS = {"presets": preset_pages.nav, "reference": reference_pages.nav}


def spelled_out(nav: list[Any], files: Files) -> list[Any]:
    """The navigation with every "folder/*" replaced by the folder's pages, and "*" by what is named nowhere else."""
    pages = sorted(file.src_uri for file in files.documentation_pages() if not file.src_uri.startswith("files/"))
    taken = set(_named(nav))
    folders = {name.removesuffix("/*") for name in taken if name.endswith("/*")}
    rest = [page for page in pages if page not in taken and page.split("/")[0] not in folders]
    return _expanded(nav, pages, rest)


def _named(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    else:
        for part in node if isinstance(node, list) else node.values():
            yield from _named(part)


def _expanded(nodes: list[Any], pages: list[str], rest: list[str]) -> list[Any]:
    found: list[Any] = []
    for node in nodes:
        if node == "*":
            found += rest
        elif isinstance(node, str):
            found.append(node)
        else:
            ((title, inside),) = node.items()
            below = _folder(inside, pages) if isinstance(inside, str) else _expanded(inside, pages, rest)
            found += [{title: below}] if below else []
    return found


def _folder(name: str, pages: list[str]) -> Any:
    """What stands below a title: one page, or the pages of a folder."""
    if not name.endswith("/*"):
        return name
    folder = name.removesuffix("/*")
    if folder in ORDERS:
        return ORDERS[folder]()
    return [page for page in pages if page.startswith(f"{folder}/")]
