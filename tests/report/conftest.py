"""A browser, and pages to look at in it."""

import pytest

from isentrope import report
from isentrope.record import RunFolder

from . import synthetic
from .browser import INSTALL, Browser, find


@pytest.fixture(scope="session")
def browser():
    executable = find()
    if executable is None:
        pytest.skip(INSTALL)
    started = Browser(executable)
    yield started
    started.close()


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory):
    """Two runs with everything in them; the first has a tokenizer, the second shows ids."""
    folder = tmp_path_factory.mktemp("runs")
    mine = synthetic.write_run(folder / "mine")
    synthetic.save_tokenizer(RunFolder(mine), synthetic.LETTERS)
    other = synthetic.write_run(folder / "other", seed=1, objective="repo_r")
    synthetic.no_model(RunFolder(other))
    return [mine, other]


@pytest.fixture(scope="session")
def page(two_runs, tmp_path_factory):
    """The report on both."""
    out = tmp_path_factory.mktemp("page") / "report.html"
    report.write(two_runs, out)
    return out
