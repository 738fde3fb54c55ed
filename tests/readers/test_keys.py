"""The names that engines log under: every engine is recognised by its own, documented, and complete."""

from pathlib import Path

import pytest

from isentrope.findings.knobs import ANY, KNOBS
from isentrope.readers import _keys

DOCS = Path(__file__).resolve().parents[2] / "docs"
SHARED = {"trl"}  # its names are ours, too: what tells them apart is what only we log


def own_names(engine):
    return [name for names in _keys.KEYS[engine].values() for name in names]


@pytest.mark.parametrize("engine", sorted(set(_keys.KEYS) - SHARED))
def test_an_engine_is_recognised_by_the_names_it_logs(engine):
    assert _keys.engine_of(own_names(engine)) == engine, "give it a line in MARKS that no other engine's names match"


@pytest.mark.parametrize("engine", sorted(_keys.KEYS))
def test_an_engine_says_under_which_name_it_logs_entropy_and_reward(engine):
    assert {"entropy", "reward"} <= set(_keys.KEYS[engine])
    assert _keys.entropy_kind(engine, _keys.KEYS[engine]["entropy"][0]) == "exact"


@pytest.mark.parametrize("engine", sorted(_keys.KEYS))
def test_an_engine_stands_in_the_table_of_what_is_read(engine):
    rows = [line for line in (DOCS / "diagnose.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    assert any(row.split("|")[1].strip().lower() == engine for row in rows), "add a row to docs/diagnose.md"


def test_knobs_are_those_of_known_engines_and_each_has_general_words():
    assert {engine for words in KNOBS.values() for engine in words} <= {ANY, *_keys.KEYS}
    assert all(ANY in words for words in KNOBS.values())
