"""The package stays easy to enter: no circles among modules, none over 400 lines, no function whose body is over 60."""

import ast
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src"
MODULES = {
    ".".join(path.with_suffix("").relative_to(SOURCES).parts).removesuffix(".__init__"): path
    for path in sorted((SOURCES / "isentrope").rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imported(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The package's modules that a module imports when it is imported itself, so outside functions."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            parts = (f"{node.module}.{name.name}" for name in node.names)
            yield from (part if part in MODULES else str(node.module) for part in parts)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "TYPE_CHECKING" not in ast.dump(node):
            for block in ("body", "orelse", "handlers", "finalbody"):
                yield from imported(getattr(node, block, ()))


def circle_free(edges: dict[str, set[str]]) -> tuple[str, ...]:
    """An order in which everything comes after what it needs; graphlib.CycleError, which names them, for a circle."""
    return tuple(TopologicalSorter(edges).static_order())


def long_functions(tree: ast.Module, limit: int) -> list[str]:
    """Functions whose body, docstring and signature apart, is over the limit."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body and body[-1].end_lineno - body[0].lineno + 1 > limit:
                found.append(node.name)
    return found


def test_no_circle_of_imports() -> None:
    edges = {name: set(imported(tree.body)) & MODULES.keys() - {name} for name, tree in TREES.items()}
    assert {"isentrope.masked", "isentrope.theory"} <= edges["isentrope.diagnostics"], "imports are found at all"
    assert len(circle_free(edges)) == len(MODULES)
    with pytest.raises(ValueError, match="cycle"):
        circle_free(edges | {"isentrope.masked": {"isentrope.diagnostics"}})


def test_modules_and_functions_are_short() -> None:
    assert [name for name, path in MODULES.items() if path.read_text(encoding="utf-8").count("\n") > 400] == []
    assert {name: found for name, tree in TREES.items() if (found := long_functions(tree, 60))} == {}


def test_a_long_function_is_seen() -> None:
    lines = "\n".join(f"    x = {n}" for n in range(4))
    assert long_functions(ast.parse(f'def f(\n    a,\n    b,\n):\n    """Two\n    lines."""\n{lines}\n'), 3) == ["f"]
