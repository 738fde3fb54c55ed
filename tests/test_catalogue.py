"""The catalogue agrees with the presets and with docs/papers.md, word for word and number for number."""

import re

import pytest

from isentrope import catalogue, presets, spec
from isentrope.catalogue import ENTRIES, OURS, Figure
from isentrope.control import is_controller

NUMBER = re.compile(r"(?<![\w.])\d*\.?\d+(?:e-?\d+)?")


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs" / "papers.md").read_text(encoding="utf-8")


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def index_rows(page):
    """{preset: (presets of its row, paper, what it changes, entropy)} of the table at the top."""
    table = page[: page.index("\n## ")]
    rows = [cells(line) for line in table.splitlines() if line.startswith("| [")]
    return {
        name: (re.findall(r"`(\w+)`", first), *rest) for first, *rest in rows for name in re.findall(r"`(\w+)`", first)
    }


def sections(page):
    """{preset: text of its section}."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)[1:]
    return {name: text for head, text in zip(parts[::2], parts[1::2], strict=True) for name in head.split(", ")}


def number_rows(section):
    """(name, value, place) of the tables of numbers; a row without a name is a variant of the one above."""
    rows = [cells(line) for line in section.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [tuple(row) for row in rows if len(row) == 3 and row[0] not in ("number", "")]


def test_every_preset_has_an_entry_and_no_other_name_has():
    assert set(ENTRIES) == set(presets.names())


@pytest.mark.parametrize("name", ENTRIES)
def test_the_index_of_papers_says_the_same(name, page):
    together, paper, changes, entropy = index_rows(page)[name]
    entry = ENTRIES[name]
    assert paper == entry.arxiv
    assert changes == entry.changes
    assert entropy == entry.entropy or (len(together) > 1 and entry.entropy in entropy)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_page_has_the_title_beside_the_paper(name, page):
    entry = ENTRIES[name]
    assert re.search(rf"{re.escape(entry.title)}.{{0,120}}{entry.arxiv}", " ".join(page.split()))


@pytest.mark.parametrize("name", ENTRIES)
def test_every_figure_stands_in_the_section_with_value_and_place(name, page):
    rows = {row[0]: row for row in number_rows(sections(page)[name])}
    objective = getattr(presets, name)
    for figure in ENTRIES[name].figures:
        assert figure.name in rows, f"{figure.name!r} is not among {list(rows)}"
        _, value, place = rows[figure.name]
        printed = {float(x) for x in NUMBER.findall(value)}
        held = {abs(x) for x in figure.values(objective) if isinstance(x, int | float)}
        assert held <= printed, (name, figure.name, value)
        assert (f"**{OURS}**" if figure.place == OURS else figure.place) in place
        assert bool(figure.place) == bool(place), f"{name}, {figure.name}: one of the two does not know its place"


def test_every_row_of_numbers_in_the_page_is_a_figure(page):
    named = {name: {figure.name for figure in entry.figures} for name, entry in ENTRIES.items()}
    together = {}
    for name, section in sections(page).items():
        if name in ENTRIES:
            together.setdefault(section, set()).update(named[name])
    for section, figures in together.items():
        assert {row[0] for row in number_rows(section)} - figures == set()


def numbers_of_its_own(name):
    """Paths where a preset holds a number that grpo does not hold."""
    found = spec.difference(presets.grpo, getattr(presets, name))
    return {path for path, (_, held) in found.items() if isinstance(held, float | int) and not isinstance(held, bool)}


# Numbers that no paper of the preset gives: defaults of a rule, and what stands in for another preset's numbers.
NOT_FROM_THE_PAPER = re.compile(
    r"advantage\.(advantage\.)?(eps|ddof)|advantage\.coef|\.seed$|surrogate\.surrogate\.|rollout\.(rounds|share)"
    r"|\.start$|surrogate\.(low|high)$"
)


@pytest.mark.parametrize("name", ENTRIES)
def test_every_number_of_a_preset_is_accounted_for(name):
    listed = {path for figure in ENTRIES[name].figures for path in figure.paths}
    assert {path for path in numbers_of_its_own(name) - listed if not NOT_FROM_THE_PAPER.search(path)} == set()


@pytest.mark.parametrize("name", ENTRIES)
def test_knobs_are_numbers_or_controllers_of_the_preset(name):
    for path, effect in ENTRIES[name].knobs:
        held = catalogue.at(getattr(presets, name), path)
        assert isinstance(held, float) or is_controller(held), path
        assert effect in (catalogue.RAISES, catalogue.LOWERS)


def test_a_servo_raises_its_knob_when_entropy_is_low_where_that_raises_entropy():
    """The catalogue's signs are those by which the presets' own controllers steer."""
    steered = 0
    for name, entry in ENTRIES.items():
        objective = getattr(presets, name)
        for path, effect in entry.knobs:
            controller = objective.controllers().get(path)
            if controller is None:
                continue
            state = controller.init() | {"target": 1.0}
            before = controller.value(controller.observe(state, measured_entropy=1.5))
            after = controller.value(controller.observe(state, measured_entropy=0.5))
            assert (after > before) == (effect == catalogue.RAISES), name
            steered += 1
    assert steered >= 5


def test_the_closest_preset_of_a_preset_is_itself():
    for name in presets.names():
        assert catalogue.closest_preset(getattr(presets, name)) == (name, ())


def test_figures_read_their_values_from_the_objective():
    figure = Figure("x", paths=("surrogate.high.rate", "surrogate.low"), constant=7.0)
    assert figure.values(presets.adapo) == (1.1, 0.2, 7.0)
