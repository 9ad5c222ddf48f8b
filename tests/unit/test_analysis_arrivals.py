"""Who arrived when at a collective, who waited for whom, and what the transfer took: by hand-made ranks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis_records import call, gpu_call, rank

from ddptrace.analysis.analyze import analyze_rank
from ddptrace.analysis.matching.matches import match_ranks
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.arrivals import arrivals_of
from ddptrace.analysis.tables.ranks import ArrivalRow, ClockRow, MatchRow
from ddptrace.load.foreign.rank import load_traces
from ddptrace.load.sources import find_traces
from ddptrace.load.tables import Call, Group

Found = tuple[tuple[MatchRow, ...], tuple[ArrivalRow, ...]]


def member(number: int, calls: Sequence[Call], ranks: int) -> RankTables:
    groups = [Group("0", tuple(range(ranks)), "gloo", 1)]
    return analyze_rank(rank(number, calls=calls, groups=groups))


def met(*calls: Sequence[Call], clocks: Sequence[ClockRow] = (), hosts: str = "", group: int | None = None) -> Found:
    """Ranks 0, 1, ... that made these calls; `hosts`: a letter for each one's clock."""
    tables = [member(number, own, group or len(calls)) for number, own in enumerate(calls)]
    tables = [replace(table, clock=hosts[k] if hosts else "a") for k, table in enumerate(tables)]
    return together(tables, clocks)


def together(tables: Sequence[RankTables], clocks: Sequence[ClockRow] = ()) -> Found:
    matching = match_ranks([(table.facts, table.collectives, table.steps) for table in tables])
    return arrivals_of(tables, matching.rows, clocks)


def ran(begin: int, end: int, seq: int = 1, **fields: Any) -> Call:
    """Launched 50 before it ran."""
    sizes = {"nbytes_in": 1000, "nbytes_out": 0, "ordinal": seq - 1} | fields
    return gpu_call(seq, begin - 50, (begin, end), **sizes)


def stamped(launch: int, done: int, seq: int = 1) -> Call:
    """Only its launch and its end are known."""
    return call(seq, launch, done_at_ns=done, ordinal=seq - 1)


def clock(number: int, offset: int, uncertainty: tuple[int, int] | None, *, shifted: bool = True) -> ClockRow:
    """Of instants 0 to 1000."""
    begin, end = uncertainty or (None, None)
    return ClockRow(number, 0, 0, 1000, offset, 0.0, begin, end, 9, shifted, "fitted" if uncertainty else "clock pairs")


def lengths(rows: Sequence[ArrivalRow]) -> list[tuple[int | None, ...]]:
    return [(row.waited_ns, row.wait_ns, row.transfer_ns, row.free_wait_ns, row.free_transfer_ns) for row in rows]


def test_each_rank_waits_until_the_last_one_has_arrived_and_the_rest_is_the_transfer() -> None:
    (match,), rows = met([ran(100, 500)], [ran(400, 510)], [ran(250, 505)])
    assert lengths(rows) == [(300, 300, 100, 290, 110), (0, 0, 110, 0, 110), (150, 150, 105, 145, 110)]
    assert [(row.match, row.rank, row.seq, row.arrived_by) for row in rows] == [(0, k, 1, "exec") for k in range(3)]
    assert [row.arrival_at_ns for row in rows] == [100, 400, 250]
    assert (match.last_rank, match.last_arrival_at_ns, match.skew_ns, match.blame_ns) == (1, 400, 300, 150)
    assert (match.transfer_ns, match.aligned_transfer_ns, match.agrees, match.uncertainty_ns) == (110, 105, True, 0)


def test_the_bandwidth_of_the_transfer_leaves_the_waiting_out() -> None:
    (match,), _ = met([ran(100, 500)], [ran(400, 510)], [ran(250, 505)])
    assert match.busbw_bytes_per_s == 1000 * (2 * 2 / 3) * 1e9 / 105


def test_a_rank_that_is_not_here_may_have_come_last() -> None:
    (match,), rows = met([ran(100, 500)], [ran(400, 510)], group=3)
    assert match.busbw_bytes_per_s is None
    assert (match.last_rank, match.skew_ns, match.aligned_transfer_ns) == (None, None, None)
    assert lengths(rows) == [(None,) * 5] * 2
    assert [row.arrival_at_ns for row in rows] == [100, 400]


def test_of_an_execution_whose_begin_nobody_saw_the_launch_is_the_arrival() -> None:
    (match,), rows = met([stamped(100, 500)], [stamped(400, 510)])
    assert [(row.arrival_at_ns, row.arrived_by) for row in rows] == [(100, "launch"), (400, "launch")]
    assert lengths(rows) == [(300, 300, 100, 290, 110), (0, 0, 110, 0, 110)]
    assert match.last_rank == 1


def test_launches_are_not_compared_with_begins_of_executions() -> None:
    seen = call(1, 100, ran=(420, 500), ordinal=0)  # queued for long: it did not arrive last
    (match,), rows = met([seen], [stamped(400, 510)])
    assert [(row.arrival_at_ns, row.arrived_by) for row in rows] == [(100, "launch"), (400, "launch")]
    assert match.last_rank == 1
    assert rows[0].wait_ns == 0


def test_when_a_device_arrived_is_not_told_by_launches() -> None:
    (match,), rows = met([ran(420, 500, nbytes_in=8)], [stamped(400, 510)])
    assert match.last_rank is None
    assert lengths(rows) == [(None, None, None, 0, 80), (None, None, None, 30, 80)]


def test_a_bucket_in_the_queue_waits_for_the_wire_and_not_for_a_peer() -> None:
    mine = [stamped(100, 500, 1), stamped(120, 600, 2)]
    theirs = [stamped(400, 500, 1), stamped(420, 600, 2)]
    (first, second), rows = met(mine, theirs)
    assert [row.wait_ns for row in rows] == [300, 0, 0, 0]
    assert [row.transfer_ns for row in rows] == [100] * 4
    assert (first.blame_ns, second.blame_ns) == (300, 300)


def test_nobody_waits_in_an_operation_with_a_root() -> None:
    (match,), rows = met([ran(100, 500, op="broadcast")], [ran(400, 510, op="broadcast")])
    assert lengths(rows) == [(300, None, None, None, None), (0, None, None, None, None)]
    assert (match.last_rank, match.skew_ns, match.blame_ns, match.aligned_transfer_ns) == (None,) * 4
    assert match.agrees is None


def test_of_two_that_came_last_together_the_lower_rank_is_named_and_neither_is_blamed() -> None:
    (match,), _ = met([ran(100, 500)], [ran(400, 510)], [ran(400, 505)])
    assert (match.last_rank, match.blame_ns) == (1, 0)


def test_ranks_whose_clocks_nothing_ties_are_judged_by_their_lengths_alone() -> None:
    (match,), rows = met([ran(100, 500)], [ran(400, 510)], hosts="ab")
    assert lengths(rows) == [(None, None, None, 290, 110), (None, None, None, 0, 110)]
    assert (match.last_rank, match.uncertainty_ns, match.agrees, match.aligned_transfer_ns) == (None,) * 4
    assert match.busbw_bytes_per_s == 1000 * 1e9 / 110
    (tied,), rows = met([ran(100, 500)], [ran(400, 510)], hosts="ab", clocks=[clock(0, 0, (0, 0)), clock(1, 0, None)])
    assert tied.last_rank is None and rows[0].wait_ns is None


def test_arrivals_are_as_uncertain_as_both_clocks_together() -> None:
    same, near, far = clock(0, 0, (0, 0)), clock(1, 70, (10, 30)), clock(2, 90, (40, 40))
    times = [ran(100, 500)], [ran(400, 510)], [ran(500, 600)]
    (match,), _ = met(*times, hosts="abc", clocks=[same, near, far])
    assert match.uncertainty_ns == 20 + 40  # at 500, where the last arrived, half way of 10 to 30
    (match,), _ = met(*times[:2], hosts="ab", clocks=[same, near], group=2)
    assert match.uncertainty_ns == 18


def test_two_ranks_of_one_strange_clock_are_sure_of_each_other() -> None:
    clocks = [clock(0, 0, (0, 0)), clock(1, 70, (50, 50)), clock(2, 75, (50, 50))]  # set by 5 before rank 2 started
    three = [ran(100, 500)], [ran(400, 510)], [ran(450, 505)]
    (match,), _ = met(*three, hosts="abb", clocks=clocks)
    assert match.uncertainty_ns == 50
    unproved = [clocks[0], clock(1, 70, None), clock(2, 70, None)]
    only = [replace(table, clock="b") for table in (member(1, three[1], 2), member(2, three[2], 2))]
    (match,), _ = together(only, unproved)
    assert (match.uncertainty_ns, match.last_rank) == (0, 2)


def test_a_clock_that_was_left_as_it_is_is_uncertain_by_all_that_it_is_off() -> None:
    clocks = [clock(0, 0, (0, 0)), clock(1, -3000, (10, 10), shifted=False)]
    (match,), _ = met([ran(100, 500)], [ran(400, 510)], hosts="ab", clocks=clocks)
    assert match.uncertainty_ns == 3010


def test_a_transfer_within_the_uncertainty_has_no_bandwidth() -> None:
    def speed(uncertainty: int) -> float | None:
        clocks = [clock(0, 0, (0, 0)), clock(1, 0, (uncertainty, uncertainty))]
        (match,), _ = met([ran(100, 500)], [ran(400, 510)], hosts="ab", clocks=clocks)
        return match.busbw_bytes_per_s

    assert speed(52) == 1000 * 1e9 / 105  # of 100 and 110
    assert speed(53) is None


def test_both_estimates_agree_within_a_tenth_or_what_the_clocks_leave_open() -> None:
    def agrees(last_end: int, uncertainty: int = 0) -> bool | None:
        clocks = [clock(0, 0, (0, 0)), clock(1, 0, (uncertainty, uncertainty))]
        (match,), _ = met([ran(390, 490)], [ran(400, last_end)], hosts="ab", clocks=clocks)
        return match.agrees

    assert agrees(510)
    assert not agrees(511)
    assert agrees(511, 6)


def test_matches_are_in_order_of_their_first_start_on_the_time_that_holds() -> None:
    tables = [member(0, [ran(100, 500), ran(900, 950, 2)], 2), member(1, [ran(400, 510), ran(910, 950, 2)], 2)]
    matching = match_ranks([(table.facts, table.collectives, table.steps) for table in tables])
    late = replace(matching.rows[1], match=0), replace(matching.rows[0], match=1)
    rows, arrivals = arrivals_of(tables, late, ())
    assert [(row.match, row.first_start_at_ns, row.seqs) for row in rows] == [(0, 100, (1, 1)), (1, 900, (2, 2))]
    assert [(row.match, row.rank, row.seq) for row in arrivals] == [(0, 0, 1), (0, 1, 1), (1, 0, 2), (1, 1, 2)]


def test_instants_of_a_match_are_those_of_the_tables_as_they_are_now() -> None:
    tables = [member(0, [ran(100, 500)], 2), member(1, [ran(400, 510)], 2)]
    matching = match_ranks([(table.facts, table.collectives, table.steps) for table in tables])
    names = ("launch_at_ns", "exec_start_at_ns", "exec_end_at_ns")
    moved = [replace(row, **{name: getattr(row, name) - 350 for name in names}) for row in tables[1].collectives]
    late = replace(tables[1], rows={**tables[1].rows, "collectives": tuple(moved)})
    (match,), rows = arrivals_of([tables[0], late], matching.rows, ())
    assert (match.first_start_at_ns, match.last_start_at_ns) == (50, 100)
    assert (match.first_end_at_ns, match.last_end_at_ns) == (160, 500)
    assert (match.last_rank, match.transfer_ns) == (0, 110)
    assert [row.wait_ns for row in rows] == [0, 50]


def test_eight_real_ranks_wait_as_their_files_say(shared_traces: Path) -> None:
    files = find_traces([shared_traces / "dlrm-8ranks"])
    loaded = [load_traces(file, zero_unix_ns=files.first_unix_ns, cache=None, rules=()) for file in files.files]
    matches, rows = together([analyze_rank(one.run) for one in loaded])
    spans = {}
    for file in files.files:
        with gzip.open(file.paths[0]) as opened:
            events = json.load(opened)["traceEvents"]
        nccl = [event for event in events if event.get("cat") == "kernel" and event["name"].startswith("nccl")]
        spans[file.rank] = sorted((event["ts"] * 1000, event["dur"] * 1000) for event in nccl)
    assert (len(spans), {len(own) for own in spans.values()}, len(matches), len(rows)) == (8, {8}, 8, 64)
    for row in rows:
        last = max(own[row.match][0] for own in spans.values())
        shortest = min(own[row.match][1] for own in spans.values())
        begin, length = spans[row.rank][row.match]
        wait = min(max(last - begin, 0), length)
        assert lengths([row]) == [(last - begin, wait, length - wait, length - shortest, shortest)]
    assert [row.agrees for row in matches] == [True] * 8
    assert max(row.skew_ns or 0 for row in matches) == 7_624_000  # the index of the traces says 7.6 ms
