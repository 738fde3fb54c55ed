"""The cluster engine's tests run where verl is installed (make verl: in .venv-verl) and skip elsewhere."""

import importlib.util
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HAS_VERL = importlib.util.find_spec("verl") is not None
# What verl and what it imports warn of, about themselves; everything else stays an error here too.
OF_OTHERS = (
    "ignore::DeprecationWarning:(verl|ray|torch|torchdata|tensordict|hydra|omegaconf|transfer_queue|pynvml|google).*",
    "ignore::FutureWarning:(verl|ray|torch|tensordict|transformers).*",
    "ignore::UserWarning:(verl|torch|torchdata|tensordict|hydra|pydantic).*",
    "ignore:.*is deprecated:FutureWarning",  # verl's decorator warns in the name of its caller
    "ignore::ResourceWarning",  # Ray leaves sockets to the collector
)

if HAS_VERL:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing verl warns of every engine that is not installed
        import verl  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for line in reversed(OF_OTHERS):
                item.add_marker(pytest.mark.filterwarnings(line), append=False)
