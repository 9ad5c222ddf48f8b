"""A sheet as Markdown, as JSON and as a page: names from outside are text there, whatever they are made of."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ddptrace.render.sheet import Chart, Grid, Line, Sheet, markdown
from ddptrace.render.sheet_page import PALETTE, figure, looks, page, write_sheet
from tests.devtools import Browser

EVIL = "<b onclick=x>a|b</b></script><script>throw 1</script>"
X = ("one", EVIL)
STEP = Line(EVIL, X, (1.0, 2.0), (0.5, 1.5), (1.25, 4.0))
CHARTS = tuple(Chart(EVIL, EVIL, EVIL, (STEP, replace(STEP, name="other")), kind, caption=EVIL)
               for kind in ("line", "bars", "stack"))  # fmt: skip
SHEET = Sheet("evil", EVIL, ((EVIL, EVIL),), (EVIL,), (Grid(EVIL, ("head|", EVIL), (("x\ny", EVIL),), EVIL),), CHARTS)
DRAWN = "[...document.querySelectorAll('figure > div')].map(div => div.querySelectorAll('.main-svg').length > 0)"
AXIS_NAMES = "[...document.querySelectorAll('.xtitle')].map(name => name.textContent)"


def test_a_table_of_markdown_stays_a_table_with_bars_and_newlines_in_its_cells() -> None:
    rows = [line for line in markdown(SHEET).splitlines() if line.startswith("|")]
    assert len(rows) == 3, "heads, rule and one row"
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}
    assert len({len(row) for row in rows}) == 1, "columns stand under each other"
    assert "x y" in rows[2] and r"a\|b" in rows[2]


def test_markdown_holds_title_setup_words_tables_and_notes_in_this_order() -> None:
    sheet = Sheet(
        "s", "Title", (("ranks", "2"), ("torch", "3")), ("Words.",), (Grid("Table", ("h",), (("c",),), "Note."),)
    )
    assert markdown(sheet).split("\n\n") == [
        "# Title", "ranks 2 · torch 3", "Words.", "## Table", "| h |\n|---|\n| c |", "Note.\n"
    ]  # fmt: skip


def test_a_note_that_holds_for_several_tables_stands_under_the_first_alone() -> None:
    notes = {"Table A": "This holds.", "Table B": "This holds.", "Table C": "That too."}
    grids = tuple(Grid(title, ("h",), (("c",),), note) for title, note in notes.items())
    sheet = Sheet("s", "Title", (), (), grids)
    for text in (markdown(sheet), page(sheet)):
        assert (text.count("This holds."), text.count("That too.")) == (1, 1)
        assert text.index("This holds.") < text.index("Table B") < text.index("That too.")


def test_no_name_becomes_markup_in_the_page() -> None:
    html = page(SHEET)
    assert "<b onclick" not in html and "throw 1</script>" not in html
    assert html.count("&lt;b onclick=x&gt;a|b") >= 9
    assert html.count("</script>") == 3, "plotly, the figures and what draws them"


def test_an_interval_reaches_from_each_point_to_its_ends() -> None:
    error = figure("k", CHARTS[0]).data[0]["error_y"]
    assert (error["arrayminus"], error["array"]) == ([0.5, 0.5], [0.25, 2.0])
    unknown = Line("u", (1, 2), (None, 1.0), (None, None), (None, 3.0))
    error = figure("k", Chart("t", "x", "y", (unknown,))).data[0]["error_y"]
    assert (error["arrayminus"], error["array"]) == ([None, None], [None, 2.0])


def test_a_stack_stacks_and_bars_stand_side_by_side() -> None:
    assert [figure("k", chart).layout["barmode"] for chart in CHARTS[1:]] == ["group", "stack"]
    assert [figure("k", chart).data[0]["type"] for chart in CHARTS] == ["scatter", "bar", "bar"]


def test_lines_of_one_kin_share_a_colour_and_no_two_lines_look_alike() -> None:
    lines = [Line(f"{op} {n}", (1,), (1,), kin=op) for op in ("a", "b") for n in range(3)]
    assert [colour for colour, _ in looks(lines)] == [PALETTE[0]] * 3 + [PALETTE[1]] * 3
    alone = [Line("same name", (1,), (1,)) for _ in range(3 * len(PALETTE))]
    assert len(set(looks(lines))) == 6 and len(set(looks(alone))) == len(alone)


def test_a_chart_of_many_lines_is_high_enough_for_its_legend() -> None:
    few, many = (Chart("t", "x", "y", tuple(Line(str(at), (1, 2), (1, 2)) for at in range(n))) for n in (3, 27))
    assert figure("k", many).height_px > figure("k", few).height_px + 200
    assert figure("k", many).layout["legend"]["orientation"] == "v"


@pytest.mark.parametrize(("values", "told"), [((1.0, 20.0), True), ((2.0, None, 9.0), False)])
def test_a_logarithmic_axis_has_few_ticks_and_enough(values: tuple[float | None, ...], told: bool) -> None:
    chart = Chart("t", "x", "y", (Line("l", tuple(range(1, len(values) + 1)), values),), log_y=True)
    axis = figure("k", chart).layout["yaxis"]
    assert axis["type"] == "log" and ("dtick" in axis) is told and "rangemode" not in axis


def test_a_sheet_is_written_as_three_files_that_say_the_same(tmp_path: Path) -> None:
    write_sheet(SHEET, {"measured": [{"x": 1}]}, tmp_path)
    told = json.loads((tmp_path / "evil.json").read_text())
    assert told["measured"] == [{"x": 1}] and told["sheet"]["title"] == EVIL
    assert (tmp_path / "evil.md").read_text() == markdown(SHEET)
    assert (tmp_path / "evil.html").read_text() == page(SHEET)
    assert {path.name for path in tmp_path.iterdir()} == {"evil.md", "evil.json", "evil.html"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_offline_and_draws_every_chart(chromium: str, tmp_path: Path, scheme: str) -> None:
    write_sheet(SHEET, {}, tmp_path)
    with Browser(chromium) as browser:
        seen = browser.open_drawn(tmp_path / "evil.html", scheme)
        assert (seen.requests, seen.errors) == ([], [])
        assert browser.value(DRAWN) == [True] * 3
        assert browser.value("document.querySelectorAll('main b, svg b, svg a').length") == 0
        assert browser.value(AXIS_NAMES) == [EVIL] * 3
        assert browser.value("document.title") == EVIL
