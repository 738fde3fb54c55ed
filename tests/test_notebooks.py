"""The notebooks run, and what they show was made by running them."""

import importlib.util
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebooks are run where nbclient is installed")
pytest.importorskip("nbclient", reason="the notebooks are run where nbclient is installed")

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
PRIVATE = re.compile(r"/(tmp|home|Users|root|work|var|opt)/|\d\d:\d\d:\d\d|\b20\d\d-\d\d-\d\d\b")


def script():
    spec = importlib.util.spec_from_file_location("make_notebooks", DOCS / "make_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path):
    return nbformat.read(path, as_version=4)


def code(path: Path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def words(path: Path) -> str:
    """All texts that the cells put out."""
    outputs = [output for cell in code(path) for output in cell.outputs]
    texts = [output.get("text", "") for output in outputs]
    return "\n".join([*texts, *(str(data) for output in outputs for data in output.get("data", {}).values())])


def test_there_are_three_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["first-run", "own-rule", "someone-elses-run"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_holds_what_one_run_from_the_top_put_out(path):
    assert 8 <= len(read(path).cells) <= 15
    assert path.stat().st_size < 100_000
    assert [cell.execution_count for cell in code(path)] == list(range(1, 1 + len(code(path))))
    assert sum(bool(cell.outputs) for cell in code(path)) >= 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_no_error_and_nothing_of_the_machine_it_ran_on(path):
    assert not [o for cell in code(path) for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert words(path)
    assert PRIVATE.findall(words(path)) == []
    assert read(path).metadata == script().METADATA
    assert {str(cell.metadata) for cell in read(path).cells} == {"{}"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_somewhere(path):
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    found = [target for target in LINK.findall(text) if "://" not in target]
    assert found
    assert [target for target in found if not (path.parent / target).exists()] == []


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_the_top_in_an_empty_folder(path, tmp_path):
    made = script().execute(path, tmp_path)
    before = [[output.output_type for output in cell.outputs] for cell in code(path)]
    after = [[output.output_type for output in cell.outputs] for cell in made.cells if cell.cell_type == "code"]
    assert after == before


@pytest.mark.slow
def test_a_cell_that_fails_stops_the_script_and_leaves_the_notebook_as_it_was(tmp_path):
    from nbclient.exceptions import CellExecutionError

    path = tmp_path / "broken.ipynb"
    for source in ("1 / 0", "%%sh\nexit 3"):
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        text = nbformat.writes(made)
        path.write_text(text, encoding="utf-8")
        with pytest.raises(CellExecutionError):
            script().main([path])
        assert path.read_text(encoding="utf-8") == text
