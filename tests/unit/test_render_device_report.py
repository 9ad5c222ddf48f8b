"""What the report says and draws of devices, and of traces that others recorded."""

from __future__ import annotations

import dataclasses
import json
import re
from html import escape

import pytest
from made_device import KERNELS, make_device_result, match_row, moved, windows_of, without_steps

from ddptrace.analysis.collectives.digest import collectives
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.device import Population, RankRow, StreamRow
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.analysis.tables.table import Table
from ddptrace.load.tables import Identity
from ddptrace.render.device.device_figures import device_figure
from ddptrace.render.figure import MARKS_MAX
from ddptrace.render.headline import headline
from ddptrace.render.report import page
from ddptrace.render.step_timeline import timeline_figure
from ddptrace.schema import Evidence
from tests.made import make_result, with_savings
from tests.unit.test_render_report import EVIL, figures_of, marks, obeyed

NAMES = (*KERNELS, EVIL[1], EVIL[0], EVIL[2])
"""Module, annotation and operator are markup."""


def evil_device_result() -> Result:
    """As evil_result, with every text that a device's trace adds."""
    result = make_device_result(2, 4, NAMES)
    collectives = [dataclasses.replace(row, op=EVIL[1], group=EVIL[0]) for row in result.collectives]
    return dataclasses.replace(
        result,
        streams=Table(StreamRow, [dataclasses.replace(row, stream=EVIL[1]) for row in result.streams]),
        collectives=Table(CollectiveRow, collectives),
        matches=Table(MatchRow, [dataclasses.replace(row, op=EVIL[0], group=EVIL[1]) for row in result.matches]),
    )


def sections_of(text: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", text)


def rows_of(text: str, title: str) -> list[list[str]]:
    """The cells of a section's table, without markup."""
    table = re.search(f"<h2>{re.escape(title)}</h2>.*?<tbody>(.*?)</tbody>", text, re.S)
    assert table is not None
    return [re.findall("<td.*?>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", table[1])]


def test_a_run_on_devices_has_their_sections_and_one_without_has_none() -> None:
    names = ["Device time", "Streams", "Does the host keep up?", "Copies", "Kernels", "What the device worked for"]
    found = sections_of(page(make_device_result(2, 3, (*KERNELS, "m", "a", "o"))))
    at = found.index(names[0])
    assert found[at : at + len(names)] == names
    assert set(sections_of(page(make_result()))) & set(names) == set()


def test_the_tables_of_copies_and_kernels_say_what_the_tables_hold() -> None:
    # GIVEN two ranks and three steps: per rank 9 products in 8.1 us, 3 all-reduces in 9 us and 3 copies in 1.5 us
    text = page(make_device_result(2, 3))
    # THEN a row tells a category: 27,000 ns of FLOPs in 8,100 ns are not more than the peak, which takes 900 of them
    assert rows_of(text, "Kernels")[:3] == [
        ["communication", "all", "0.01", "48 %", "3", "3.00 µs", "-", "-"],
        ["matrix product", "all", "0.01", "44 %", "9", "900 ns", "123", "11 %"],
        ["copy", "all", "0.00", "8 %", "3", "500 ns", "-", "-"],
    ]
    assert rows_of(text, "Copies")[0][1:4] == ["0.00", "0.00", "0.00"]
    assert rows_of(text, "Copies")[0][4:] == ["1", "4.10 kB", "8.19 GB/s", KERNELS[2].replace(">", "&gt;")]


def test_no_name_from_a_device_becomes_markup() -> None:
    text = page(evil_device_result())
    assert obeyed(text) == []
    for figure in figures_of(evil_device_result()):
        shown = json.dumps(figure.data) + json.dumps(figure.layout)
        assert not re.search(r"<(?!/?b>|br>)", shown), figure.key


@pytest.mark.parametrize(("ranks", "matched"), [(1, 1), (700, 3000)])
def test_every_figure_of_devices_has_a_bounded_number_of_marks(ranks: int, matched: int) -> None:
    import plotly.graph_objects

    result = make_device_result(ranks, 1, (*KERNELS, "m", "a", "o"))
    result = dataclasses.replace(result, matches=Table(MatchRow, [match_row(k, ranks) for k in range(matched)]))
    keys = set()
    for figure in figures_of(result):
        assert 0 < marks(figure) <= MARKS_MAX, figure.key
        plotly.graph_objects.Figure(figure.data, figure.layout)
        keys.add(figure.key)
    assert keys >= {"device", "streams", "matches", "scopes-module", "scopes-annotation", "scopes-operator"}


def test_the_bars_of_a_devices_time_fill_it_whole_in_both_populations() -> None:
    figure = device_figure(make_device_result(2, 3))
    assert figure is not None
    labels = figure.layout["yaxis"]["ticktext"]
    assert [label.split(" · ")[0] for label in labels] == [
        "rank 0",
        "rank 0, with launch",
        "rank 1",
        "rank 1, with launch",
    ]
    for place in range(4):
        shares = [x for trace in figure.data for x, y in zip(trace["x"], trace["y"], strict=True) if y == place]
        assert sum(shares) == pytest.approx(100, abs=0.001)


def test_a_population_that_tells_nothing_else_has_no_bar_of_its_own() -> None:
    result = make_device_result(1, 3)
    same = Table(RankRow, [dataclasses.replace(row, with_launch=row.all) for row in result.ranks])
    figure = device_figure(dataclasses.replace(result, ranks=same))
    assert figure is not None and len(figure.layout["yaxis"]["ticktext"]) == 1
    assert "second bar" not in figure.caption


def test_a_clock_that_counts_from_no_date_gives_none() -> None:
    result = make_device_result(1, 2)
    assert " UTC</span>" in page(result)
    assert " UTC</span>" not in page(dataclasses.replace(result, zero_unix_ns=77 * 10**9))


def test_the_tables_of_devices_say_what_the_digests_say() -> None:
    result = make_device_result(2, 4)
    text = page(result)
    calm, bound = rows_of(text, "Does the host keep up?")
    assert calm == ["0", "5", "200 ns", "500 ns", "503 ns", "40 %", "0.00", "0.00", "30 %", "0 of 4"]
    assert bound[-1] == "4 of 4"
    [match] = rows_of(text, "The same collective on all ranks")
    assert match == ["all_reduce · 4.10 kB", "2", "4", "2.30 µs"]  # without columns in which nothing was measured
    kinds = collectives(result).kinds
    assert [row[2] for row in rows_of(text, "Collectives")] == ["4.20 MB", "4 B"]  # the group's size is not known
    assert [row[5] for row in rows_of(text, "Collectives")] == [f"{(kinds[0].exposed_ns or 0) / 1e6:.1f}", "-"]


def test_where_collectives_come_from_stands_below_them_where_it_is_known() -> None:
    result = make_result(1, 2, 2)
    told = {"origin": "fsdp", "module": EVIL[1], "site": "train.py:7 in step"}
    rows = [dataclasses.replace(row, **(told if row.nbytes == 4 else {})) for row in result.collectives]
    text = page(dataclasses.replace(result, collectives=Table(CollectiveRow, rows)))
    notes = re.findall(r'<tr class="note"><td colspan="\d+">(.*?)</td></tr>', text)
    assert notes == [f"fsdp · {escape(EVIL[1])} · train.py:7 in step"]
    assert "Below each" in text and "Below each" not in page(result)


def test_begins_that_were_inferred_are_said_to_be() -> None:
    result = make_device_result()
    rows = [dataclasses.replace(row, match=0, evidence=Evidence.CALLBACK) for row in result.collectives]
    assert "begins were inferred" in page(dataclasses.replace(result, collectives=Table(CollectiveRow, rows)))
    assert "begins were inferred" not in page(result)


def test_the_headline_without_steps_is_that_of_the_devices() -> None:
    # BY HAND: 2.1 of each 10 us are exposed on both ranks, and the last step ends after 6
    result = without_steps(make_device_result(2, 100))
    result = dataclasses.replace(result, matches=Table(MatchRow), windows=windows_of(result))
    text = page(with_savings(result))
    assert '<span class="number">21 %</span>' in text
    told = "of the profiled window is exposed communication, more than computation could hide: 210 µs of 996 µs."
    assert told in text  # 3 of 10 us communicate, and 2.7 compute
    assert text.count('<i class="exposed_comm" style=') == 1


def test_a_device_without_communication_is_told_by_how_busy_it_was() -> None:
    result = without_steps(make_device_result(1, 3))
    rows = [dataclasses.replace(row, all=Population(1000, 250, 700, 0, 100, 0, 0, None)) for row in result.ranks]
    calm = dataclasses.replace(result, ranks=Table(RankRow, rows))
    top = headline(calm, summarize(calm))
    assert (top.number, top.words, top.calm) == (
        "75 %", "of the device's time it was busy. No communication and no step was found.", True,
    )  # fmt: skip


def test_what_a_foreign_run_rests_on_is_said_and_what_it_has_not_is_not() -> None:
    result = make_device_result(2, 3)
    buckets = [dataclasses.replace(row, identity="order", parameters=()) for row in result.buckets]
    calls = [dataclasses.replace(row, identity=Identity.NAME) for row in result.collectives]
    foreign = dataclasses.replace(
        result, buckets=Table(BucketRow, buckets), collectives=Table(CollectiveRow, calls), world_size=16
    )
    text = page(foreign)
    assert "none: all of this is read out of profiler files" in text
    assert "numbered in the order of their launch" in text and "numbered as they were launched" in text
    assert "identified by the kernel&#x27;s name" in text
    assert "30 kernels, copies and fills; the launch of 7 % is not in the files" in text
    assert "14 ranks of 16 have no file here." in text
    assert '<th class="names">parameters</th>' not in text and "run </" not in text
    recorded = page(make_result(2, 3, 2))
    assert "profiler files that something else" not in recorded and "identified by" not in recorded.split("What was")[1]
    assert '<th class="names">parameters</th>' in recorded


def test_ranks_that_share_no_time_are_listed_and_drawn_from_their_own_begins() -> None:
    result = moved(make_device_result(3), 2, 3 * 365 * 86_400 * 10**9)
    assert "2 stretches of time that do not overlap" in page(result)
    figure = timeline_figure(result)
    assert figure is not None and "counts from its own begin" in figure.caption
    assert max(max(trace["base"]) for trace in figure.data) < 1000
