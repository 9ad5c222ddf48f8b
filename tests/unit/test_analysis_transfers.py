"""Latency and bandwidth are read from how long messages of each size take, where these tell them, and else not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from ddptrace.analysis.collectives.transfers import Transfers, transfers
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.analysis.tables.table import Table
from ddptrace.schema import Evidence
from tests.made import make_result
from tests.unit.made_meetings import met_result


def moved(times: Mapping[int, Sequence[int]], evidence: Evidence = Evidence.BACKEND) -> Result:
    """A run of 4 ranks whose all-reduces take so many ns by their bytes."""
    result = met_result(4, 2, 1)
    match, call = result.matches[0], next(row for row in result.collectives if row.exec_start_at_ns is not None)
    rows = [(nbytes, ns) for nbytes, all_ns in times.items() for ns in all_ns]
    matches = [
        replace(match, match=at, op="all_reduce", nbytes=nbytes, transfer_ns=ns) for at, (nbytes, ns) in enumerate(rows)
    ]
    calls = [replace(call, match=at, evidence=evidence) for at in range(len(rows))]
    return replace(result, matches=Table(MatchRow, matches), collectives=Table(CollectiveRow, calls))


def only(result: Result) -> Transfers:
    [one] = transfers(result)
    return one


def test_latency_and_bandwidth_are_those_that_made_the_times() -> None:
    # GIVEN 50 us and 2 GB/s: half a ns a byte
    times = {nbytes: [50_000 + nbytes // 2] * 5 for nbytes in (1_000, 100_000, 1_000_000, 10_000_000)}
    one = only(moved(times))
    assert one.line is not None
    assert one.line.start_ns == pytest.approx(50_000, rel=1e-6)
    assert one.line.bytes_per_s == pytest.approx(2e9, rel=1e-6)
    assert one.line.start_is_seen and one.line.rate_is_seen
    # AND on the bus of 4 ranks an all-reduce moves 2 x 3 / 4 of its bytes
    assert one.bus_bytes_per_s == pytest.approx(3e9, rel=1e-6)
    assert [(size.nbytes, size.count) for size in one.sizes] == [(nbytes, 5) for nbytes in times]


def test_one_slow_message_does_not_move_the_line() -> None:
    times = {nbytes: [50_000 + nbytes // 2] * 9 + [10**9] for nbytes in (1_000, 100_000, 10_000_000)}
    line = only(moved(times)).line
    assert line is not None and line.start_ns == pytest.approx(50_000, rel=1e-6)


@pytest.mark.parametrize(
    "times",
    [
        {1_000: [50_000], 10_000_000: [5_050_000]},
        {1_000_000: [550_000], 2_000_000: [1_050_000], 15_000_000: [7_550_000]},
        {1_000: [900_000], 100_000: [50_000], 10_000_000: [9_000_000], 20_000_000: [900_000]},
    ],
    ids=["two sizes", "sizes close together", "no line fits"],
)
def test_no_line_is_put_through_what_allows_none(times: Mapping[int, Sequence[int]]) -> None:
    one = only(moved(times))
    assert one.line is None and one.bus_bytes_per_s is None
    assert len(one.sizes) == len(times)


def test_a_bandwidth_that_bytes_do_not_show_is_not_told() -> None:
    one = only(moved({192: [8_000], 1_536: [7_000], 13_568: [7_000], 24_576: [10_000]}))
    assert one.line is not None and one.line.start_is_seen and not one.line.rate_is_seen
    assert one.bus_bytes_per_s is None


def test_begins_that_were_inferred_give_points_and_no_line() -> None:
    times = {nbytes: [50_000 + nbytes // 2] for nbytes in (1_000, 100_000, 10_000_000)}
    one = only(moved(times, Evidence.CALLBACK))
    assert not one.measured and one.line is None and len(one.sizes) == 3


def test_of_ranks_that_were_not_matched_whole_executions_are_told_and_no_line() -> None:
    one = only(make_result(2, 4, 3))
    assert one.alone and one.line is None
    assert [size.count for size in one.sizes] == [2 * 4 * 3]


def test_a_run_that_sent_nothing_has_none() -> None:
    assert transfers(replace(make_result(), collectives=Table(CollectiveRow))) == []
