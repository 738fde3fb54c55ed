"""Executes docs/notebooks/*.ipynb afresh and keeps their outputs: python docs/make_notebooks.py [NOTEBOOK ...]

Each notebook runs from its first cell in an empty folder of its own, offline and on one thread, so what it shows holds
no path of this machine. A cell that fails ends the script, and the notebook stays as it was.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from isentrope import record

NOTEBOOKS = Path(__file__).with_name("notebooks")
TIMEOUT = 900  # seconds a cell; the longest takes half a minute of one free core
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
VOLATILE = {"application/vnd.jupyter.widget-view+json"}  # outputs that say nothing without a running kernel


@contextmanager
def environment() -> Iterator[None]:
    """The commands of this interpreter first, no network, one thread; as it was afterwards."""
    before = dict(os.environ)
    here = Path(sys.executable).parent
    os.environ.update(
        PATH=os.pathsep.join([str(here), before.get("PATH", "")]),
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false",
        NO_COLOR="1",
        PYTHONWARNINGS="ignore:IProgress not found",  # of tqdm, where there are no widgets
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def execute(path: Path, folder: Path) -> Any:
    """The notebook with what its cells put out, run in `folder`. Raises CellExecutionError at the first that fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )
    with environment():
        client.execute()
    return cleaned(notebook)


def cleaned(notebook: Any) -> Any:
    """The notebook without what changes from one run to the next, though nothing that it says has."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not VOLATILE & set(output.get("data", {}))]
    return notebook


def main(paths: list[Path]) -> None:
    for path in paths or sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            made = execute(path, Path(folder))
        record.write_text(path, nbformat.writes(made).rstrip() + "\n")
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
