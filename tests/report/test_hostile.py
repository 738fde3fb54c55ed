"""Texts of unknown origin: shown letter for letter, never run."""

import pytest

from isentrope import record, report
from isentrope.record import RunFolder

from . import synthetic

MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>'
ENDING = "</script><script>window.hacked=3</script>\u2028\u2029]]>--><!--"
NAME = "a<img src=x onerror=hacked=9> & 'b'"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run in which every text tries to break out."""
    path = tmp_path_factory.mktemp("runs") / NAME
    synthetic.write_run(path, tasks=(MARKUP, ENDING))
    folder = RunFolder(path)
    record.write_text(folder.recipe, folder.recipe.read_text() + f"# {MARKUP} {ENDING}\n")
    record.write_json(folder.versions, {MARKUP: ENDING, "torch": MARKUP})
    pieces = [MARKUP, ENDING, "a\u202eb", "\x00\x1b[31m", "'\"`", *synthetic.LETTERS]
    synthetic.save_tokenizer(folder, pieces)
    out = path.parent / "report.html"
    report.write([path], out)
    return out


def test_texts_are_shown_and_not_run(browser, hostile):
    browser.open(hostile)
    assert browser("window.hacked") is None
    assert browser.complaints() == []
    assert browser.requests() == [hostile.resolve().as_uri()]
    assert browser("document.querySelectorAll('main img, main script, .text *:not(.token)').length") == 0
    assert browser.text("h1") == NAME
    assert MARKUP in browser.text("#learning")
    assert MARKUP in browser.text("#recipes")


def test_completions_that_hold_markup_are_read_token_by_token(browser, hostile):
    browser.open(hostile)
    seen = ""
    for _ in range(8):
        seen += browser.text(".text")
        browser("document.querySelector('.pager button:last-child').click()")
    assert MARKUP in seen
    assert "</script><script>window.hacked=3</script>[U+2028]" in seen
    assert "a[U+202E]b" in seen
    assert "\u2400\u241b[31m" in seen
    browser.focus(".token")
    for _ in range(20):
        browser.press("ArrowRight")
    assert browser("document.querySelectorAll('.text *:not(.token), #tip img, #tip script').length") == 0
    assert browser("window.hacked") is None


def test_the_policy_of_the_page_refuses_what_gets_in_all_the_same(browser, hostile):
    browser.open(hostile)
    browser("probeInject()")
    browser.settle()
    assert browser("window.hacked") is None
    refused = " ".join(str(complaint) for complaint in browser.complaints())
    assert "Content Security Policy" in refused
