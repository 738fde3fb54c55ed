"""The page in a real browser: drawn, readable by pointer and keys, silent on the network, at home on a phone."""

import pytest

from isentrope import report

from . import synthetic

PHONE = 360  # CSS pixels wide


def paths(browser, chart, kind):
    return browser(f"document.querySelectorAll('#{chart} .stage path.{kind}').length")


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    return browser


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (PHONE, "light"), (PHONE, "dark")])
def test_opens_without_a_complaint_a_request_or_an_overflow(browser, page, width, scheme):
    browser.open(page, width=width, scheme=scheme)
    assert browser.complaints() == []
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser("document.documentElement.scrollWidth") <= width
    assert browser(f"probeWide({width})") == []


def test_every_chart_draws_every_series_with_ticks_and_units(opened):
    found = opened("probeCharts()")
    assert {chart["kind"] for chart in found} == {"lines", "areas", "scatter"}
    assert len(found) > 15
    for chart in found:
        assert len(chart["lengths"]) >= chart["series"] > 0, chart
        assert min(chart["lengths"]) > 8, chart
        assert chart["ticks"] >= 4, chart
        assert len(chart["names"]) == 2, chart
        assert all(chart["names"]), chart


def test_no_number_on_the_page_is_broken_and_no_id_stands_twice(opened):
    assert opened("probeBroken()") == []
    assert opened("probeDoubleIds()") == []


def test_figures_have_text_alternatives_with_their_numbers(opened):
    labels = opened("[...document.querySelectorAll('figure .stage svg')].map(s => s.getAttribute('aria-label'))")
    assert len(labels) > 15
    entropy = next(label for label in labels if label.startswith("Entropy of the policy"))
    assert "nats against optimizer step. mine: 0.9" in entropy


def test_the_pointer_shows_the_numbers_of_a_step(opened):
    opened.move(*opened.centre("#policy-entropy .stage"))
    text = opened.tip()
    assert text.startswith("step 2"), text
    assert "mine" in text
    assert "other" in text
    opened.move(2, 2)
    assert opened.tip() is None


def test_arrow_keys_read_a_chart_and_say_it_aloud(opened):
    opened.focus("#reward .stage")
    opened.press("ArrowRight")
    opened.press("ArrowRight")
    assert opened.tip().startswith("step 2\n")
    opened.press("End")
    assert opened.tip().startswith("step 40\n")
    assert opened.text("#live").startswith("step 40: mine 0.")
    opened.press("Escape")
    assert opened.tip() is None


def test_a_scatter_is_read_point_by_point(opened):
    opened.focus("#prediction .stage")
    opened.press("ArrowRight")
    assert "predicted change, nats" in opened.tip()


def test_a_drag_zooms_all_charts_over_steps_and_the_button_resets(opened):
    x, y = opened.centre("#reward .stage")
    opened.drag((x - 100, y), (x + 100, y))
    low, high = opened("chosen.zoom")
    assert 0 < low < high < 40
    ticks = opened("[...document.querySelectorAll('#policy-entropy .tick')].map(t => Number(t.textContent))")
    assert max(ticks) <= high
    opened.click("#reset")
    assert opened("chosen.zoom") is None
    opened.focus("#reward .stage")
    opened.press("+")
    assert opened("chosen.zoom") is not None


def test_a_chip_hides_its_run_everywhere(opened):
    assert paths(opened, "reward", "line") == 2
    opened.focus(".chip", 1)
    opened.press("Enter")
    assert opened("document.querySelectorAll('.chip')[1].getAttribute('aria-pressed')") == "false"
    assert paths(opened, "reward", "line") == 1
    assert opened.text("#reward .legend") == "mine"


def test_smoothing_keeps_the_raw_curve_in_sight(opened):
    assert paths(opened, "reward", "faint") == 0
    opened.focus("#smooth")
    opened.press("ArrowRight")
    assert paths(opened, "reward", "faint") == 2
    assert opened.text("#smooth-value") == "3 points"


def test_numbers_open_as_a_table(opened):
    opened.click("#reward .data summary")
    opened.wait("document.querySelectorAll('#reward .data tbody tr').length > 0")
    assert opened("document.querySelectorAll('#reward .data tbody tr').length") == 40
    heads = opened("[...document.querySelectorAll('#reward .data thead th')].map(t => t.textContent)")
    assert heads == ["optimizer step", "mine", "other"]


def test_a_picture_is_saved_with_its_colours_written_out(opened):
    opened("window.saved = []; URL.createObjectURL = blob => { blob.text().then(t => saved.push(t)); return '#'; }; 1")
    opened("[...document.querySelectorAll('#reward .foot button')].at(-1).click()")
    opened.wait("saved.length === 1")
    picture = opened("saved[0]")
    assert picture.startswith("<svg")
    assert 'stroke="rgb(' in picture


def background(browser):
    return browser("getComputedStyle(document.body).backgroundColor")


def test_dark_follows_the_system_and_the_button_overrules_it(browser, page):
    browser.open(page, scheme="dark")
    dark = background(browser)
    browser.prefer("light")
    light = background(browser)
    assert browser(f"probeLuminance('{dark}')") < 0.05
    assert browser(f"probeLuminance('{light}')") > 0.8
    browser.click("#theme")
    assert browser.text("#theme") == "Light"
    browser.prefer("dark")
    assert background(browser) == light
    browser.click("#theme")
    browser.prefer("light")
    assert background(browser) == dark
    browser("localStorage.clear()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_that_reading_needs(browser, page, scheme):
    browser.open(page, scheme=scheme)
    ratio, where = browser("probeContrast()")
    assert ratio >= 4.5, where


def test_everything_is_reached_by_tab_and_in_order(opened):
    opened("document.body.focus()")
    seen = []
    for _ in range(5):
        opened.press("Tab")
        seen.append(opened("(n => n.id || n.className)(document.activeElement)"))
    assert seen == ["skip", "chip", "chip", "smooth", "theme"]
    assert opened("probeUnreachable()") == []


def test_a_finding_leads_to_its_steps(browser, tmp_path):
    run = synthetic.write_run(tmp_path / "collapsing", steps=120, dumped=(), collapse=True)
    report.write([run], tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert "collapse" in browser.text("#findings").lower()
    browser.click("#findings .show")
    low, high = browser("chosen.zoom")
    assert 0 <= low < high <= 120


# -- edges


def without_evaluation(run):
    for name in ("evaluation-before.json", "evaluation-after.json"):
        (run / name).unlink()
    return run


def test_runs_of_one_step_and_runs_with_little_in_them_draw(browser, tmp_path):
    one = synthetic.write_run(tmp_path / "one", steps=1, dumped=(1,), tasks=("countdown",))
    bare = without_evaluation(synthetic.write_run(tmp_path / "bare", steps=3, dumped=(), live=False))
    (bare / "versions.json").unlink()
    for runs in ([one], [bare], [one, bare]):
        report.write(runs, tmp_path / "report.html")
        browser.open(tmp_path / "report.html", width=PHONE)
        assert browser.complaints() == []
        assert browser("probeBroken()") == []
        assert browser("document.documentElement.scrollWidth") <= PHONE


def test_what_is_missing_says_what_to_switch_on(browser, tmp_path):
    bare = without_evaluation(synthetic.write_run(tmp_path / "bare", steps=3, dumped=(), live=False))
    report.write([bare], tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    said = browser("[...document.querySelectorAll('.missing')].map(n => n.innerText).join(' ')")
    for advice in ("diagnostics", "evaluation.problems", "--tokens", "trainer.minibatches"):
        assert advice in said
    assert browser("[...document.querySelectorAll('figure.chart')].every(f => f.querySelector('path, .missing'))")


def test_twelve_runs_share_the_page_and_none_looks_like_another(browser, tmp_path):
    runs = [
        synthetic.write_run(tmp_path / f"a-run-with-a-rather-long-name-{i}", steps=5, seed=i, dumped=())
        for i in range(12)
    ]
    report.write(runs, tmp_path / "report.html")
    browser.open(tmp_path / "report.html", width=PHONE)
    assert browser.complaints() == []
    assert browser("document.documentElement.scrollWidth") <= PHONE
    looks = browser("[...document.querySelectorAll('#reward .stage .line')].map(p => p.getAttribute('class'))")
    assert len(set(looks)) == 12
