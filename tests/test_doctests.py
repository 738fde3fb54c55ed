"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil
from importlib.util import find_spec

import pytest

import isentrope

MODULES = [module.name for module in pkgutil.walk_packages(isentrope.__path__, "isentrope.")]
WITH_HOST = [name for name in MODULES if name.startswith("isentrope.engines.")]
LEFT_OUT = ["isentrope.__main__"] + ([] if find_spec("triton") else ["isentrope._kernels.fused"])
WITHOUT_HOST = [name for name in MODULES if name not in WITH_HOST + LEFT_OUT]


def run(name: str) -> doctest.TestResults:
    return doctest.testmod(importlib.import_module(name), optionflags=doctest.FAIL_FAST)


@pytest.mark.parametrize("name", WITHOUT_HOST)
def test_the_examples_of_a_module_hold(name: str) -> None:
    assert run(name).failed == 0


@pytest.mark.engine
@pytest.mark.parametrize("name", WITH_HOST)
def test_the_examples_of_an_engine_hold(name: str) -> None:
    host = name.split(".")[2].partition("_")[0]
    try:
        found = run(name)
    except ImportError:
        if find_spec(host) is None:
            pytest.skip(f"needs {host}, which has an environment of its own")
        raise
    assert found.failed == 0


def test_there_are_examples_to_run() -> None:
    assert sum(run(name).attempted for name in WITHOUT_HOST) > 10
