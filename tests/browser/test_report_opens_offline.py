"""The report in a real browser: it draws, asks for nothing, throws nothing, and obeys no name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from made_device import KERNELS, make_device_result, without_steps

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.render.report import write_report
from tests.devtools import Browser
from tests.made import empty_result, make_result
from tests.unit.made_meetings import met_result, with_all
from tests.unit.test_render_across import evil_meetings
from tests.unit.test_render_device_report import evil_device_result
from tests.unit.test_render_report import EVIL, evil_result

FIGURES = "[...document.querySelectorAll('figure > div')].map(div => div.id.slice('figure-'.length))"
STEPS = {"timeline", "buckets", "steps", "ranks", "phases"}
"""What is drawn of any run that has steps and buckets."""
WIDE_TABLES = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length"
HOVER_ALL = """
(async () => {
  const shown = [];
  for (const div of document.querySelectorAll('figure > div'))
    for (const [curve, trace] of div.data.entries()) {
      if (trace.hoverinfo === 'skip') continue;
      const pointNumber = trace.type === 'heatmap' ? [0, 0] : 0;
      Plotly.Fx.hover(div, [{curveNumber: curve, pointNumber}], 'x' + (trace.yaxis || 'y'));
      await new Promise(done => setTimeout(done, 80));
      shown.push(...[...div.querySelectorAll('.hovertext')].map(label => label.textContent));
    }
  return shown;
})()
"""


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with Browser(chromium) as browser:
        yield browser


def report(result: Result, folder: Path) -> Path:
    return write_report(result, folder / "report.html")


def plant(path: Path, markup: str) -> None:
    """Put something into a page that it must not have."""
    path.write_text(path.read_text("utf-8").replace("</main>", f"{markup}</main>", 1), "utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_draws_and_asks_for_nothing(browser: Browser, tmp_path: Path, scheme: str) -> None:
    seen = browser.open_drawn(report(make_result(2, 8, 6), tmp_path), scheme)
    assert seen.requests == []
    assert seen.errors == []
    assert {*browser.value(FIGURES)} == STEPS | {"buckets-by-rank", "bandwidth"}


def test_the_page_is_light_or_dark_as_the_reader_wants(browser: Browser, tmp_path: Path) -> None:
    path = report(make_result(1, 3, 2), tmp_path)
    background = "getComputedStyle(document.body).backgroundColor"
    letters = "document.querySelector('figure text').style.fill"
    browser.open_drawn(path, "light")
    light = browser.value(background), browser.value(letters)
    browser.open_drawn(path, "dark")
    assert (browser.value(background), browser.value(letters)) != light
    # AND figures follow when the reader changes their mind
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    browser.settle(0.5)
    assert (browser.value(background), browser.value(letters)) == light


def test_a_first_step_of_ten_times_the_length_leaves_the_others_readable(browser: Browser, tmp_path: Path) -> None:
    result = make_result(1, 12, 4)
    first = replace(result.steps[0], compute_ns=result.steps[0].compute_ns + 9 * result.steps[0].window_ns)
    long = replace(result, steps=Table(StepRow, [first, *result.steps[1:]]))
    seen = browser.open_drawn(report(long, tmp_path))
    assert (seen.requests, seen.errors) == ([], [])
    figure = "[...document.querySelectorAll('figure')].find(one => one.textContent.includes('cut off'))"
    points = f"[...{figure}.querySelectorAll('.point path')]"
    heights = browser.value(f"{points}.map(one => one.getBoundingClientRect().height)")
    # THEN the others' compute takes a good part of the picture's height, and the first one's length is written there
    assert sorted(heights)[-2] > 80
    assert "↑ step 0: " in browser.value(f"{figure}.querySelector('.infolayer').textContent")


def test_a_name_made_of_markup_is_shown_and_not_obeyed(browser: Browser, tmp_path: Path) -> None:
    # GIVEN a run whose every name is markup, WHEN the report is opened and every bar pointed at
    browser.open_drawn(report(evil_result(), tmp_path))
    shown = "".join(browser.value(HOVER_ALL))
    browser.settle(0.5)
    # THEN it is shown as it is
    assert all(name in shown for name in EVIL[:3])
    # AND nothing of it ran, nothing was asked for, and no element came of it
    seen = browser.seen((tmp_path / "report.html").resolve().as_uri())
    assert (seen.requests, seen.errors) == ([], [])
    assert browser.value("window.hacked === undefined")
    assert browser.value("document.querySelectorAll('img, a[href^=javascript]').length") == 0


def test_the_pictures_of_devices_draw(browser: Browser, tmp_path: Path) -> None:
    result = make_device_result(8, 4, (*KERNELS, "Linear_0", "## forward ##", "aten::linear"))
    seen = browser.open_drawn(report(result, tmp_path))
    assert (seen.requests, seen.errors) == ([], [])
    devices = {"device", "streams", "scopes-module", "scopes-annotation", "scopes-operator"}
    assert {*browser.value(FIGURES)} == STEPS | devices | {"buckets-by-rank", "matches", "bandwidth"}
    assert browser.value(WIDE_TABLES) == 0


def test_what_is_said_of_the_ranks_together_draws_and_fits(browser: Browser, tmp_path: Path) -> None:
    seen = browser.open_drawn(report(with_all(met_result(8, 6, 4)), tmp_path))
    assert (seen.requests, seen.errors) == ([], [])
    assert {*browser.value(FIGURES)} == STEPS | {"buckets-by-rank", "matches", "path", "jitter", "bandwidth"}
    assert browser.value(WIDE_TABLES) == 0


def test_names_of_modules_and_lines_make_no_table_wider_than_the_page(browser: Browser, tmp_path: Path) -> None:
    # GIVEN two reducers, and collectives of long names that come from many modules and lines
    result = make_result(2, 4, 5)
    told = {"op": "reduce_scatter_tensor", "group_size": 1024, "origin": "fsdp", "algbw_bytes_per_s": 1.234e9}
    calls = [
        replace(row, module=f"transformer.blocks.{row.seq}.attention", site=f"train.py:{row.seq} in train_step", **told)
        for row in result.collectives
    ]
    buckets = [replace(row, reducer=row.index % 2) for row in result.buckets]
    long = replace(result, collectives=Table(CollectiveRow, calls), buckets=Table(BucketRow, buckets))
    browser.open_drawn(report(long, tmp_path))
    assert "fsdp · transformer.blocks." in browser.value("document.querySelector('tr.note').textContent")
    assert browser.value(WIDE_TABLES) == 0


def test_devices_without_steps_open(browser: Browser, tmp_path: Path) -> None:
    seen = browser.open_drawn(report(without_steps(make_device_result(2, 3)), tmp_path))
    assert (seen.requests, seen.errors) == ([], [])
    assert {*browser.value(FIGURES)} == {"device", "streams", "matches", "bandwidth"}


def test_a_name_from_a_device_is_shown_and_not_obeyed(browser: Browser, tmp_path: Path) -> None:
    browser.open_drawn(report(evil_device_result(), tmp_path))
    shown = "".join(browser.value(HOVER_ALL))
    seen = browser.seen((tmp_path / "report.html").resolve().as_uri())
    assert all(name in shown for name in EVIL[:2])
    assert (seen.requests, seen.errors) == ([], [])
    assert browser.value("window.hacked === undefined")
    assert browser.value("document.querySelectorAll('img, a[href^=javascript]').length") == 0


def test_a_name_from_the_ranks_together_is_shown_and_not_obeyed(browser: Browser, tmp_path: Path) -> None:
    browser.open_drawn(report(evil_meetings(), tmp_path))
    shown = "".join(browser.value(HOVER_ALL))
    seen = browser.seen((tmp_path / "report.html").resolve().as_uri())
    assert EVIL[0] in shown
    assert (seen.requests, seen.errors) == ([], [])
    assert browser.value("window.hacked === undefined")


def test_a_run_without_steps_opens(browser: Browser, tmp_path: Path) -> None:
    seen = browser.open_drawn(report(empty_result(), tmp_path))
    assert (seen.requests, seen.errors) == ([], [])
    assert browser.value(FIGURES) == []


PLANTED = {
    "a script from elsewhere": '<script src="https://cdn.example/x.js"></script>',
    "an image from elsewhere": '<img src="http://192.0.2.1/x.png">',
    "a font from elsewhere": "<style>@font-face{font-family:f;src:url(https://f.example/f)} h1{font-family:f}</style>",
    "a fetch": "<script>fetch('https://example.invalid/x').catch(() => 0)</script>",
    "a socket": "<script>try { new WebSocket('ws://192.0.2.1/x') } catch (error) {}</script>",
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED.keys())
def test_a_request_would_be_seen(browser: Browser, tmp_path: Path, planted: str) -> None:
    """The test of the tests, on a page that allows requests."""
    page = tmp_path / "planted.html"
    page.write_text(f"<!doctype html><h1>x</h1>{planted}")
    assert len(browser.open(page).requests) == 1


def test_the_report_itself_forbids_requests(browser: Browser, tmp_path: Path) -> None:
    path = report(make_result(1, 2, 2), tmp_path)
    plant(path, PLANTED["a script from elsewhere"])
    seen = browser.open(path)
    assert any("Content Security Policy" in error for error in seen.errors)


@pytest.mark.parametrize(
    "planted",
    ["throw new Error('planted')", "setTimeout(() => { missing() }, 100)", "Promise.reject(new Error('planted'))"],
    ids=["at once", "later", "in a promise"],
)
def test_a_script_error_would_be_seen(browser: Browser, tmp_path: Path, planted: str) -> None:
    path = report(make_result(1, 2, 2), tmp_path)
    plant(path, f"<script>{planted}</script>")
    assert len(browser.open(path).errors) == 1
