"""What the terminal and the report say of the ranks together."""

from __future__ import annotations

import dataclasses
import json
import re
from html import escape

import pytest

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.ranks import ArrivalRow, ClockRow, MatchRow, PathRow, SuspectRow
from ddptrace.analysis.tables.steps import ContentionRow, JitterRow
from ddptrace.analysis.tables.table import Table
from ddptrace.errors import printable
from ddptrace.render.clocks import ROWS_MAX, apart, clock_table
from ddptrace.render.ranks.pages import across_lines
from ddptrace.render.report import drawn, page
from ddptrace.render.report_top import unmeasured
from ddptrace.render.terminal import summary_text
from ddptrace.render.words import WIDTH
from tests.made import MS, empty_result, make_result
from tests.unit.made_meetings import met_result, played_result, with_all, with_clocks
from tests.unit.made_training import Plan, only
from tests.unit.test_render_report import EVIL, obeyed

ACROSS = (
    "Ranks that the others wait for", "The same collective on all ranks", "Critical path",
    "Computing beside communication", "What varies from step to step", "Clocks",
)  # fmt: skip


def rows_of(text: str, title: str) -> list[list[str]]:
    """The cells of all rows of a section's tables, without the notes below them."""
    section = re.search(f"<h2>{re.escape(title)}</h2>(.*?)</section>", text, re.S)
    assert section is not None
    rows = re.findall("<tr>(.*?)</tr>", section[1])
    return [cells for row in rows if (cells := re.findall("<td.*?>(.*?)</td>", row))]


def late_result() -> Result:
    """Rank 1 is 8 ms late for everything, of 3 ranks."""
    return played_result(Plan(3, 12, late=only(1, "forward", 8 * MS)), ["a", "a", "b"])


def test_the_terminal_says_who_came_last_and_what_the_steps_waited_for() -> None:
    # of 12 steps the middle half of 11: 7. Data 1, forward 5 + 8, backward 8 until 22, transfers 18 to 21, 22 to 25
    lines = list(across_lines(late_result()))
    text = "\n".join(lines)
    matched = "14 collectives of typical steps; both estimates of transfer agree in 14 of 14"
    assert lines[1] == f"  {'matched':<16} {matched}"
    assert "last to arrive   rank 1 in 100 %, by 8.00 ms" in text
    assert "critical path    rank 1 forward 48 % · rank 1 backward 30 %" in text
    assert "clocks" not in text
    assert all(len(line) <= WIDTH for line in lines)


def test_collectives_that_nobody_saw_running_are_counted_beside_those_that_are_matched() -> None:
    result = played_result(Plan(3, 12, late=only(1, "forward", 8 * MS), loss=MS // 10), ["a", "a", "b"])
    words = " ".join(" ".join(across_lines(result)).split())
    assert "matched 14 collectives of typical steps;" in words
    assert "7 more are known by the host's wait alone" in words  # one a step, on whichever rank


def test_a_run_of_one_rank_says_nothing_of_others() -> None:
    assert list(across_lines(make_result(1))) == list(across_lines(empty_result())) == []


def test_clocks_that_lie_apart_are_told_with_how_sure_that_is() -> None:
    text = summary_text(with_clocks(met_result(4)))
    told = " ".join(text.split())
    assert "clocks ranks 1 and 3 are 50.0 ms ahead of rank 0 and 100 ppm faster, ± 200 µs: fitted to what" in told
    behind = with_clocks(met_result(4), why="clock pairs", offset_ns=-3 * MS)
    assert "ranks 1 and 3 are 3.00 ms behind rank 0 and 100 ppm faster: by the wall clocks alone" in " ".join(
        summary_text(behind).split()
    )
    assert "  clocks  " not in summary_text(met_result(4))


def test_no_line_of_the_terminal_is_too_wide() -> None:
    result = with_all(met_result(12, 6, 6))
    long = [dataclasses.replace(row, bucket=None, op="reduce_scatter_tensor_coalesced_") for row in result.matches]
    assert all(len(line) <= WIDTH for line in summary_text(result).splitlines())
    wide = dataclasses.replace(result, matches=Table(MatchRow, long))
    assert all(len(line) <= WIDTH for line in summary_text(wide).splitlines())


def test_the_report_has_a_section_for_each_thing_that_needs_several_ranks() -> None:
    text = page(with_all(met_result(4, 6, 3)))
    assert [title for title in re.findall(r"<h2>(.*?)</h2>", text) if title in ACROSS] == list(ACROSS)
    [suspect] = rows_of(text, "Ranks that the others wait for")
    assert suspect == [
        "1", "node1", "backward", "garbage collection", "3.00", "10 %", "2.00 – 4.00", "nearly every step",
    ]  # fmt: skip
    [tax] = rows_of(text, "Computing beside communication")
    assert tax == ["<code>aten::mm</code>", "4", "24", "36", "100 µs", "150 µs", "1.20"]
    assert rows_of(text, "What varies from step to step")[0] == [
        "0", "20", "30.0", "35.0", "1.00", "50 %", "20 %", "20 %", "10 %", "10 %", "-10 %",
    ]  # fmt: skip


def test_a_run_whose_ranks_never_met_has_none_of_these_sections() -> None:
    for result in (make_result(2), empty_result()):
        assert not set(ACROSS) & set(re.findall(r"<h2>(.*?)</h2>", page(result)))


def test_skew_wait_and_transfer_of_a_bucket_stand_in_its_row() -> None:
    # rank 1 launches the two parts of a backward 8 ms after the others; executions begin with launches
    text = page(late_result())
    rows = rows_of(text, "The same collective on all ranks")
    kind, ranks = rows[0], rows[1:]
    assert kind[:2] == ["all_reduce · 8 B · group 0", "3"]
    assert kind[3:5] == ["8.00 ms", "8.00 ms"]
    assert kind[-1] == "rank 1, 100 %"
    assert [row[0] for row in ranks] == ["0", "1", "2"]
    assert [row[2].split(" · ")[1] for row in ranks] == ["0 %", "100 %", "0 %"]


def test_the_clocks_of_many_ranks_of_one_host_are_one_row() -> None:
    result = with_clocks(met_result(8))
    rows = rows_of(page(result), "Clocks")
    assert [row[0] for row in rows] == ["0, 2, 4 and 6", "1, 3, 5 and 7"]
    assert rows[1][2:6] == ["50.0 ms", "+100 ppm", "200 µs", "18"]
    [other] = apart(result)
    assert other.ranks == (1, 3, 5, 7)


def test_a_clock_of_many_pieces_has_a_bounded_table() -> None:
    result = met_result(2)
    rows = [dataclasses.replace(with_clocks(result).clocks[1], begin_at_ns=at) for at in range(500)]
    assert clock_table(dataclasses.replace(result, clocks=Table(ClockRow, rows))).count("<tr>") == ROWS_MAX + 2


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("fitted", "Instants of ranks with different clocks are right against each other"),
        ("clock pairs", "Compare no instants of ranks 1 and 3 with those of others"),
        ("not fitted", "Compare no instants of ranks 1 and 3 with those of others"),
        ("as recorded", "Instants are those of each rank's own clock, and these lie apart"),
        ("same clock", None),
    ],
)
def test_what_instants_are_worth_is_said_where_clocks_lie_apart(why: str, told: str | None) -> None:
    result = with_clocks(met_result(4), why=why)
    said = [line for line in unmeasured(result) if "nstants" in line]
    assert len(said) == (0 if told is None else 1)
    assert told is None or said[0].startswith(told)


def evil_meetings() -> Result:
    """Every text that the tables across ranks hold, made of markup."""
    result = with_all(met_result(3, 4, 2))
    evil = {"host": EVIL[0], "phase": EVIL[1], "cause": EVIL[2], "evidence": EVIL[3]}
    return dataclasses.replace(
        result,
        suspects=Table(SuspectRow, [dataclasses.replace(row, **evil) for row in result.suspects]),
        matches=Table(MatchRow, [
            dataclasses.replace(row, bucket=None, op=EVIL[1], group=EVIL[2]) for row in result.matches
        ]),
        critical_path=Table(PathRow, [
            row if row.match is not None else dataclasses.replace(row, what=EVIL[0]) for row in result.critical_path
        ]),
        contention=Table(ContentionRow, [dataclasses.replace(row, name=EVIL[0]) for row in result.contention]),
    )  # fmt: skip


def test_no_name_from_the_ranks_becomes_markup() -> None:
    text = page(evil_meetings())
    assert obeyed(text) == []
    assert escape(printable(EVIL[3])) in text
    for figure in drawn(evil_meetings(), summarize(evil_meetings())):
        assert not re.search(r"<(?!/?b>|br>)", json.dumps(figure.data) + json.dumps(figure.layout)), figure.key


def test_figures_and_tables_of_many_ranks_are_bounded() -> None:
    result = met_result(300, 2, 1)
    phases = [
        PathRow(1, rank, "forward", None, 1000 * rank, 1000 * rank + 999 - rank) for rank in range(300)
    ]  # fmt: skip
    many = dataclasses.replace(
        result, critical_path=Table(PathRow, phases),
        jitter=Table(JitterRow, [JitterRow(rank, "step", 9, MS, MS, rank, None) for rank in range(300)]),
    )  # fmt: skip
    [figure] = [one for one in drawn(many, summarize(many)) if one.key == "path"]
    assert len(figure.layout["yaxis"]["ticktext"]) == 24
    assert "The 24 longest of 300 bars." in figure.caption
    text = page(many)
    assert len(rows_of(text, "What varies from step to step")) == 40
    assert len(rows_of(text, "The same collective on all ranks")) == 1 + 40
    assert len(text) < 6_500_000


def test_waits_known_by_lengths_alone_are_said_to_be() -> None:
    result = met_result(2, 4, 1)
    free = [dataclasses.replace(row, wait_ns=None, transfer_ns=None) for row in result.arrivals]
    blind = dataclasses.replace(result, arrivals=Table(ArrivalRow, free))
    told = "Where clocks cannot be compared, a wait is the time by which an execution exceeds the shortest one."
    assert told in page(blind)
    assert told not in page(result)
