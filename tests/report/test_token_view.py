"""The token view in a real browser: colours, numbers, choices, keys."""

import pytest

from isentrope.record import RunFolder
from isentrope.token_dump import read_tokens


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    return browser


NUMBERS = (
    "position",
    "token id",
    "probability",
    "log-probability, nats",
    "entropy, nats",
    "ratio to the old policy",
    "advantage",
    "weight dJ/dlogp",
)


def test_tokens_are_coloured_and_show_their_numbers_to_the_pointer(opened):
    count = opened("document.querySelectorAll('.token').length")
    assert count >= 4
    coloured = opened("[...document.querySelectorAll('.token')].filter(t => t.style.backgroundColor).length")
    assert coloured > count / 2
    opened.move(*opened.centre(".token:nth-child(2)"))
    for name in NUMBERS:
        assert name in opened.tip()
    opened.move(2, 2)
    assert opened.tip() is None


def test_a_click_puts_the_focus_on_a_token(opened):
    opened.click(".token:nth-child(3)")
    assert opened("document.activeElement.dataset.i") == "2"
    assert "position\t3" in opened.tip()


def test_keys_move_from_token_to_token_and_say_the_numbers(opened):
    count = opened("document.querySelectorAll('.token').length")
    opened.focus(".token")
    opened.press("ArrowRight")
    assert "position\t2" in opened.tip()
    opened.press("End")
    assert f"position\t{count}" in opened.tip()
    assert f"position {count}," in opened.text("#live")
    opened.press("Home")
    assert "position\t1" in opened.tip()
    opened.press("Escape")
    assert opened.tip() is None


def test_keys_move_from_line_to_line(browser, page):
    browser.open(page, width=360)
    browser("document.querySelector('.text').style.width = '60px'")
    browser.focus(".token")
    top = "document.activeElement.getBoundingClientRect().top"
    first = browser(top)
    browser.press("ArrowDown")
    assert browser(top) > first
    browser.press("ArrowUp")
    assert browser("document.activeElement.dataset.i") == "0"


def test_the_numbers_stay_with_the_focus_while_the_page_scrolls(opened):
    opened.focus(".token", 1)
    opened.settle()
    top = "document.getElementById('tip').getBoundingClientRect().top"
    before = opened(top)
    opened("window.scrollBy(0, 40)")
    opened.settle()
    assert opened(top) == pytest.approx(before - 40, abs=2)


def test_the_numbers_of_a_token_are_those_of_the_dump(opened, two_runs):
    table = read_tokens(RunFolder(two_runs[0]).tokens, 40).to_pylist()
    shown = opened("({row: reader.item.row, ids: reader.item.ids, tokens: reader.tokens})")
    expected = [token for token in table if token["row"] == shown["row"]]
    assert shown["ids"] == [token["token_id"] for token in expected]
    for mine, theirs in zip(shown["tokens"], expected, strict=True):
        assert mine["entropy"] == pytest.approx(theirs["entropy"], rel=1e-4)
        assert mine["weight"] == pytest.approx(theirs["weight"], rel=1e-4)
        assert mine["logRatio"] == pytest.approx(theirs["logp"] - theirs["old_logp"], abs=1e-4)


def test_completion_step_colour_and_run_can_be_chosen(opened):
    first = opened.text(".text")
    opened("document.querySelector('.pager button:last-child').click()")
    assert opened.text(".text") != first
    boxes = "document.querySelectorAll('.controls select')"
    opened(f"probeChoose({boxes}[1], 0)")
    assert "of step 20 are" in opened.text(".about-row")
    for mode in ("weight", "ratio", "surprisal", "advantage"):
        opened.click(f"label[for=mode-{mode}]")
        assert opened("[...document.querySelectorAll('.token')].some(t => t.style.backgroundColor)"), mode
    opened(f"probeChoose({boxes}[0], 1)")
    assert opened.text(".text").startswith("#")
    assert "for want of a tokenizer" in opened.text("#reader > .notes")


def test_the_sign_of_a_weight_decides_its_hue(opened):
    opened.click("label[for=mode-weight]")
    found = opened("reader.spans.map((s, i) => [reader.tokens[i].weight, s.style.backgroundColor])")
    for weight, colour in found:
        assert ("--neg" if weight < 0 else "--pos") in colour
