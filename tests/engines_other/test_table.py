"""docs/engines.md says of every preset what the adapters say of it."""

import re
from pathlib import Path
from typing import Any

import pytest

from isentrope import presets

from .conftest import load

skyrl = load("isentrope.engines.skyrl")
openrlhf = load("isentrope.engines.openrlhf")
prime_rl = load("isentrope.engines.prime_rl")

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
ENGINES = {"SkyRL": skyrl, "OpenRLHF": openrlhf, "prime-rl": prime_rl}
WORDS = {"needs a length": "set length=", "controller": " is held by ", "scope": 'set scope="micro_batch"'}
SLOTS = ("aggregate", "select", "shaping", "rollout")


def table() -> dict[str, dict[str, str]]:
    section = PAGE.read_text(encoding="utf-8").partition("## Presets")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): dict(zip(ENGINES, row[1:], strict=True)) for row in rows}


def test_the_table_has_every_preset() -> None:
    assert list(table()) == list(presets.names())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("preset", presets.names())
def test_a_cell_is_what_the_adapter_says(preset: str, engine: str) -> None:
    found, cell = ENGINES[engine].refusals(getattr(presets, preset)), table()[preset][engine]
    if not found:
        assert cell == ("loss alone" if engine == "prime-rl" else "yes")
        return
    reasons = cell.split(", ")
    assert all(any(says(reason, sentence) for sentence in found) for reason in reasons)
    assert all(any(says(reason, sentence) for reason in reasons) for sentence in found)


def says(reason: str, sentence: str) -> Any:
    if reason in WORDS:
        return WORDS[reason] in sentence
    if reason in SLOTS:
        return re.match(rf"{reason}(\.\d+)?:", sentence)
    return f"`{reason}`" in sentence
