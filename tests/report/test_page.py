"""The markup: nothing from outside gets in, nothing from a run gets out of its text."""

import base64
import hashlib
import html.parser
import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from isentrope.report import page as pages
from isentrope.report.data import RunData


class Reader(html.parser.HTMLParser):
    """Collects elements and text."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def parsed(markup):
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@given(st.text())
def test_text_stays_text_in_markup_and_in_attributes(value):
    reader = parsed(f'<p title="{pages.text(value)}">{pages.text(value)}</p>')
    assert [tag for tag, _ in reader.tags] == ["p"]
    assert "".join(reader.texts) == reader.tags[0][1]["title"]
    pages.text(value).encode()


@given(st.text())
def test_embedded_json_reads_back_and_ends_nothing(value):
    found = pages.embedded({"a": [value]})
    assert json.loads(found) == {"a": [value]}
    assert not re.search("[<>&\u2028\u2029]", found)
    found.encode()


def test_a_run_with_markup_in_its_name_adds_no_element():
    name = '"><script>alert(1)</script>'
    run = RunData(name, Path("a"), recipe_text=f"# {name}")
    plain = RunData("name", Path("a"), recipe_text="# name")
    rendered = [pages.render(r.name, "now", [r], [pages.recipe(r, 0)], {"runs": [r.name]}) for r in (run, plain)]
    tags = [[tag for tag, _ in parsed(text).tags] for text in rendered]
    assert tags[0] == tags[1]


def test_the_policy_allows_this_script_alone_and_no_request():
    markup = pages.render("title", "now", [], [], {})
    policy = next(a["content"] for tag, a in parsed(markup).tags if a.get("http-equiv") == "Content-Security-Policy")
    script = re.search(r"<script>(.*?)</script>", markup, re.S)[1]
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http:" not in policy
    assert "https:" not in policy


def test_nothing_on_the_page_points_outside():
    markup = pages.render("title", "now", [], [], {})
    for tag, attributes in parsed(markup).tags:
        for name in ("src", "href", "action", "poster", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), tag
    addresses = set(re.findall(r"https?://[^\"'\s]+", markup))
    assert addresses == {"http://www.w3.org/2000/svg"}, "a name space, which no browser asks for"
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttp|WebSocket|sendBeacon|eval\(|innerHTML", markup)


def test_embedded_numbers_that_are_not_finite_are_words():
    assert pages.embedded([float("nan"), float("-inf"), 1.5]) == '["nan","-inf",1.5]'
