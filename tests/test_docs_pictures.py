"""The pictures of the concepts: computed, as committed, and shown on a page each."""

import doctest
import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from isentrope import presets

DOCS = Path(__file__).resolve().parent.parent / "docs"
SPACE = "{http://www.w3.org/2000/svg}"
SHAPE = re.compile(r"(?<=[ '\",])-?\d+(?:\.\d+)?")  # a number of a drawing; another machine may round its last digit


def _script():
    spec = importlib.util.spec_from_file_location("make_pictures", DOCS / "make_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script():
    return _script()


def test_the_scripts_examples_are_true(script):
    assert doctest.testmod(script) == (0, 2)


def test_the_committed_pictures_are_what_the_script_draws(script):
    assert {path.name for path in (DOCS / "pictures").glob("*.svg")} == set(script.DRAWN)
    for name, draw in script.DRAWN.items():
        drawn, kept = draw(), (DOCS / "pictures" / name).read_text("utf-8")
        assert SHAPE.sub("#", drawn) == SHAPE.sub("#", kept), name
        numbers = [[float(x) for x in SHAPE.findall(text)] for text in (drawn, kept)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.11), name  # a tenth of a unit of the picture


def test_every_picture_is_small_told_in_words_and_on_a_page(script):
    pages = "".join(page.read_text("utf-8") for page in (DOCS / "concepts").glob("*.md"))
    for name in script.DRAWN:
        path = DOCS / "pictures" / name
        root = ElementTree.fromstring(path.read_text("utf-8"))
        assert len(root.find(f"{SPACE}desc").text) > 100
        assert path.stat().st_size < 15_000
        assert f"](../pictures/{name})" in pages


def test_nothing_stands_outside_the_diagram_of_a_step(script):
    root = ElementTree.fromstring(script.step())
    width, height = map(float, root.get("viewBox").split()[2:])
    for text in root.iter(f"{SPACE}text"):
        room = 6.6 * len(text.text)  # about the width of a letter, pixels
        x = float(text.get("x")) - {"end": room, "middle": room / 2}.get(text.get("text-anchor"), 0.0)
        assert x >= 0
        assert x + room <= width
        assert 0 < float(text.get("y")) < height


def test_entropy_rises_first_where_the_good_answer_is_rare_and_only_falls_where_it_is_likely(script):
    for start, has_hump in ((0.6, False), (0.1, True), (0.01, True)):
        reward, entropy = script.path(start)
        assert reward == sorted(reward)
        assert (max(entropy) > 1.01 * entropy[0]) == has_hump
        assert entropy[-1] < 0.2


def test_shares_of_weight_tell_what_is_known_of_the_objectives(script):
    batch = script.drawn_batch()
    same = script.shares(presets.rloo, batch, {})
    assert list(same.values()) == pytest.approx([1.0] * 4, abs=1e-6)
    only_good = script.shares(presets.psr, batch, {})
    assert [round(only_good[q], 6) for q in ("NA&HP", "NA&LP")] == [0, 0]
    assert script.shares(presets.grpo, batch, {})["PA&LP"] < 0.95  # the upper bound cuts there
    loud = script.shares(presets.repo_r, batch, {"shaping.0.zeta.value": 0.05})
    quiet = script.shares(presets.repo_r, batch, {"shaping.0.zeta.value": 0.0})
    assert loud["PA&LP"] > quiet["PA&LP"]
    assert loud["NA&LP"] < quiet["NA&LP"]


def test_a_controller_that_is_not_there_is_named(script):
    with pytest.raises(KeyError, match=r"no controller holds .'surrogate\.high\.value'"):
        script.weights(presets.grpo, script.drawn_batch(), {"surrogate.high.value": 1.0})


def test_quadrants_share_out_all_tokens_of_groups_with_both_rewards(script):
    batch = script.drawn_batch()
    masks = torch.stack(list(script.quadrant_masks(batch).values()))
    assert int(masks.sum(0).max()) == 1
    assert masks.any(0).float().mean() > 0.95
