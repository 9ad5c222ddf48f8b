"""The report in a reader's hands: by keyboard, on a small screen, on paper, by its links, and of 256 ranks."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddptrace.analysis.result import About, Result
from ddptrace.render.report import write_report
from tests.devtools import Browser
from tests.unit.made_meetings import met_result, with_all

FIRST_PAINT_MAX_MS = 3_000
LARGEST_NBYTES = 15_000_000
CONTROLS = (
    "[...document.querySelectorAll('a[href], button, summary, [tabindex=\"0\"]')].filter(x => x.checkVisibility())"
)
FOCUSED = """
(() => {
  const at = document.activeElement, ring = getComputedStyle(at);
  return [CONTROLS.indexOf(at), ring.outlineStyle !== 'none' && parseFloat(ring.outlineWidth) > 0];
})()
""".replace("CONTROLS", CONTROLS)
WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
WIDTHS = "[...document.querySelectorAll('figure .main-svg')].map(svg => svg.getBoundingClientRect().width)"


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with Browser(chromium, 1366, 768) as browser:
        yield browser


@pytest.fixture(scope="module")
def result() -> Result:
    about = About(name="gpt", command=("python", "train.py", "--took", "5 ms"))
    return dataclasses.replace(with_all(met_result(6, 12, 14)), about=about)


@pytest.fixture(scope="module")
def page(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(result, tmp_path_factory.mktemp("report") / "report.html")


def press(browser: Browser, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
        browser.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)


def test_every_control_is_reached_by_tab_and_shows_where_the_reader_is(browser: Browser, page: Path) -> None:
    browser.open_drawn(page)
    count = browser.value(f"{CONTROLS}.length")
    reached = []
    for _ in range(count):
        press(browser, "Tab", 9)
        reached.append(browser.value(FOCUSED))
    assert [place for place, _ in reached] == list(range(count))
    assert all(ring for _, ring in reached)


def test_the_first_tab_offers_to_skip_the_contents(browser: Browser, page: Path) -> None:
    browser.open_drawn(page)
    press(browser, "Tab", 9)
    assert browser.value("document.activeElement.textContent") == "Skip to the answer"
    press(browser, "Enter", 13)
    assert browser.value("document.activeElement.tagName") == "MAIN"


def test_the_contents_fit_a_laptop_and_stay_beside_what_is_read(browser: Browser, page: Path) -> None:
    browser.open_drawn(page)
    assert browser.value(
        "(({scrollHeight, clientHeight}) => scrollHeight <= clientHeight)(document.querySelector('nav'))"
    )
    assert not browser.value(WIDE)
    browser.value("document.querySelector('#critical-path').scrollIntoView()")
    browser.settle(0.5)
    assert browser.value("document.querySelector('.contents').getBoundingClientRect().top") == 0
    assert browser.value("document.querySelector('.contents [aria-current]').textContent") == "Critical path"


def test_a_buckets_link_shows_where_it_ran(browser: Browser, page: Path, result: Result) -> None:
    browser.open_drawn(page)
    whole = browser.value("document.getElementById('figure-timeline').layout.xaxis.range")
    browser.value("document.querySelector('td a[data-bucket]').click()")
    browser.settle(0.5)
    begin, end = browser.value("document.getElementById('figure-timeline').layout.xaxis.range")
    assert whole[0] <= begin + 50 and (end - begin) < (whole[1] - whole[0]) * 0.9
    assert browser.value("document.querySelector('#a-typical-step').getBoundingClientRect().top") < 100
    # THEN the bars of this bucket are all in the picture
    key = browser.value("document.querySelector('td a[data-bucket]').dataset.bucket")
    bars: list[Any] = browser.value(f"""
        document.getElementById('figure-timeline').data.flatMap(trace => (trace.customdata || [])
          .flatMap((one, at) => one === '{key}' ? [[trace.base[at], trace.base[at] + trace.x[at]]] : []))
    """)
    assert bars and all(begin <= low and high <= end for low, high in bars)


def test_on_a_narrow_screen_tables_scroll_and_the_page_does_not(browser: Browser, page: Path) -> None:
    browser.ask("Emulation.setDeviceMetricsOverride", width=390, height=780, deviceScaleFactor=1, mobile=False)
    try:
        browser.open_drawn(page)
        assert not browser.value(WIDE)
        assert browser.value("[...document.querySelectorAll('.scroll')].some(box => box.scrollWidth > box.clientWidth)")
        scrolling = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)"
        assert browser.value(f"{scrolling}.every(box => box.tabIndex === 0)")
    finally:
        browser.ask("Emulation.clearDeviceMetricsOverride")


def test_on_paper_the_page_is_light_without_contents_and_no_figure_is_cut(browser: Browser, page: Path) -> None:
    browser.open_drawn(page, "dark")
    letters = "document.querySelector('figure .xtick text').style.fill"
    shown = browser.value(letters), browser.value(WIDTHS)
    browser.ask("Emulation.setEmulatedMedia", media="print")
    browser.value("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.value("getComputedStyle(document.querySelector('.contents')).display") == "none"
    assert max(browser.value(WIDTHS)) <= 690
    assert browser.value(letters) != shown[0]
    browser.value("window.dispatchEvent(new Event('afterprint'))")
    browser.ask("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.settle(0.5)
    assert (browser.value(letters), browser.value(WIDTHS)) == shown
    paper = browser.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]
    assert base64.b64decode(paper).startswith(b"%PDF")


def test_256_ranks_with_100_buckets_are_a_small_page_that_is_seen_at_once(browser: Browser, tmp_path: Path) -> None:
    path = write_report(with_all(met_result(256, 2, 100)), tmp_path / "report.html")
    assert path.stat().st_size < LARGEST_NBYTES
    seen = browser.open_drawn(path)
    assert (seen.requests, seen.errors) == ([], [])
    paint = "performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)"
    assert 0 < browser.value(paint)[0] < FIRST_PAINT_MAX_MS
    marks = "[...document.querySelectorAll('figure > div')].map(div => div.querySelectorAll('.point').length)"
    assert max(browser.value(marks)) <= 2_500


def test_a_command_is_copied_and_a_unit_stays_with_its_number(browser: Browser, page: Path) -> None:
    browser.open_drawn(page)
    command = browser.value("document.querySelector('.about pre').textContent")
    browser.value("window.taken = ''; navigator.clipboard.writeText = async (words) => { window.taken = words; }")
    browser.value("document.querySelector('.about .copy').click()")
    assert browser.value("window.taken") == command == "python train.py --took '5 ms'"
    assert not browser.value(
        r"/\d (ms|%)/.test([...document.querySelectorAll('.lead')].map(x => x.textContent).join())"
    )


def test_paper_shows_what_is_folded_away(browser: Browser, page: Path) -> None:
    browser.open_drawn(page)
    folded = "document.querySelectorAll('details:not([open])').length"
    before = browser.value(folded)
    browser.value("window.dispatchEvent(new Event('beforeprint'))")
    assert before > 0 and browser.value(folded) == 0
    browser.value("window.dispatchEvent(new Event('afterprint'))")
    assert browser.value(folded) == before
