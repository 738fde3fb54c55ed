"""What every test shares: an offline, single-threaded process, the reference cases and the evaluation data."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before any host framework is imported: nothing is fetched from a model hub, and the workers share the cores.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.pop("COLUMNS", None)  # xdist gives its workers a width that nobody chose
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "agg")
if not Path("/dev/nvidia0").exists():  # read when a kernel is defined, so before anything imports Triton
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "cases"

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# No deadline: a shared machine stalls. CI draws the same examples every time; elsewhere each run explores.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def cases() -> Callable[[str], list[dict[str, Any]]]:
    """`cases("ce_gppo")`: the reference cases of one file in tests/cases; its README says what the fields mean."""

    def read(name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))["cases"]
        assert found, f"tests/cases/{name}.json holds no case"
        return found

    return read


@pytest.fixture(scope="session")
def evaluation_data() -> Path:
    """The folder of evaluation problems: $ISENTROPE_DATA, else ../shared/data beside the repository."""
    folder = Path(os.environ.get("ISENTROPE_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no evaluation data in {folder}; set ISENTROPE_DATA to a folder that holds gsm8k_test.jsonl")
    return folder
