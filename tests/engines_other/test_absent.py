"""Where the host of an adapter is not installed, the import says so."""

import importlib
import importlib.util

import pytest


@pytest.mark.parametrize(("name", "host"), [("skyrl", r"SkyRL 0\.3"), ("openrlhf", r"OpenRLHF 0\.11")])
def test_an_adapter_without_its_host_says_what_is_missing(name: str, host: str) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is here")
    with pytest.raises(ImportError, match=rf"isentrope\.engines\.{name} needs {host}"):
        importlib.import_module(f"isentrope.engines.{name}")
