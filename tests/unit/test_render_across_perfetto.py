"""The merged trace in the real Perfetto: hosts, arrows between ranks, waits inside executions, the critical path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.render.trace.chrome import write_trace
from tests.perfetto import ask, check
from tests.unit.made_meetings import TRANSFER_NS, met_result, played_result, with_clocks
from tests.unit.made_training import MS, Plan, only
from tests.unit.test_render_chrome import written

pytestmark = pytest.mark.long

ARROWS = """
    select extract_arg(b.arg_set_id, 'args.match') as met, from_rank.pid - 1, to_rank.pid - 1,
           a.ts + a.dur, b.ts, a.category, b.name
    from flow join slice a on slice_out = a.id join slice b on slice_in = b.id
    join thread_track at on a.track_id = at.id join thread af using (utid) join process from_rank using (upid)
    join thread_track bt on b.track_id = bt.id join thread bf on bt.utid = bf.utid
    join process to_rank on bf.upid = to_rank.upid
    where a.category = 'arrival' order by met, 3
"""
OTHER_ARROWS = """
    select a.category, count(*) from flow join slice a on slice_out = a.id where a.category != 'arrival' group by 1
"""
WAITS = """
    select process.pid - 1 as rank, child.name, child.ts, child.dur, outer_slice.category
    from slice child join slice outer_slice on child.parent_id = outer_slice.id
    join thread_track on child.track_id = thread_track.id join thread using (utid) join process using (upid)
    where child.category = 'peer.wait' order by 3, 1
"""
ENDS_LATE = """
    select count(*) from slice child join slice on child.parent_id = slice.id
    where child.ts + child.dur > slice.ts + slice.dur
"""
PATH = "select name, ts, dur, depth from slice where category = 'path' order by ts"


def asked(result: Result, folder: Path, **queries: str) -> dict[str, list[list[Any]]]:
    return ask(write_trace(result, folder / "trace.json.gz"), **queries)


def expected_arrows(result: Result) -> list[list[Any]]:
    """From the last arrival of each match to all of its other ranks, where they have waited for it."""
    return [
        [match.match, match.last_rank, rank, match.last_arrival_at_ns, match.last_arrival_at_ns, "arrival", "transfer"]
        for match in result.matches
        for rank in match.ranks
        if rank != match.last_rank
    ]


def test_eight_ranks_on_two_hosts_have_an_arrow_from_each_last_arrival_to_all_others(tmp_path: Path) -> None:
    # GIVEN 8 ranks, 5 steps and 3 buckets
    result = met_result(8, 5, 3)
    trace = write_trace(result, tmp_path / "trace.json.gz")
    answers = ask(trace, arrows=ARROWS, others=OTHER_ARROWS, late=ENDS_LATE)
    # THEN 15 x 7 arrows go from the last rank's slice, which ends with its arrival, to where the transfer begins
    assert answers["arrows"] == expected_arrows(result)
    assert len(answers["arrows"]) == 15 * 7
    # AND those of launches are still there
    assert answers["others"] == [["bucket.queue", len(result.buckets)]]
    assert answers["late"] == [[0]]
    # AND the project's own check takes it
    assert "import errors: []" in check(trace, slices=8 * 15 * 3, flows=15 * 7 + 8 * 15)


def test_a_wait_is_seen_inside_the_execution_that_waited(tmp_path: Path) -> None:
    result = met_result(4, 3, 2)
    answers = asked(result, tmp_path, waits=WAITS)
    last = {match.match: match.last_rank for match in result.matches}
    expected = [
        [row.rank, f"waits for rank {last[row.match]}", row.arrival_at_ns, row.wait_ns, "bucket.exec"]
        for row in result.arrivals
        if row.wait_ns
    ]
    assert answers["waits"] == sorted(expected, key=lambda row: (row[2], row[0]))


def test_ranks_of_one_host_stand_together_below_the_critical_path(tmp_path: Path) -> None:
    result = met_result(4, 2, 1)
    answers = asked(result, tmp_path, processes="select pid, name from process where pid > 0 order by pid")
    names = ["node0 · rank 0", "node1 · rank 1", "node0 · rank 2", "node1 · rank 3", "critical path"]
    assert answers["processes"] == [[pid, name] for pid, name in enumerate(names, start=1)]
    _, events = written(result, tmp_path)
    order = {event["args"]["sort_index"]: event["pid"] for event in events if event["name"] == "process_sort_index"}
    assert [names[order[place] - 1] for place in sorted(order)] == [
        "critical path", "node0 · rank 0", "node0 · rank 2", "node1 · rank 1", "node1 · rank 3",
    ]  # fmt: skip


def test_the_path_touches_and_is_as_long_as_the_run(tmp_path: Path) -> None:
    result = met_result(2, 4, 2)
    path = asked(result, tmp_path, path=PATH)["path"]
    rows = result.critical_path
    assert [row[1:] for row in path] == [[row.begin_at_ns, row.end_at_ns - row.begin_at_ns, 0] for row in rows]
    assert sum(row[2] for row in path) == rows[-1].end_at_ns - rows[0].begin_at_ns
    assert {row[0] for row in path} == {
        *(f"rank 0 · {phase}" for phase in ("data", "forward", "backward", "optimizer", "other")),
        "transfer · bucket 0 · 4.20 MB",
    }


def test_what_analysis_finds_of_eight_ranks_is_drawn_arrow_by_arrow(tmp_path: Path) -> None:
    # GIVEN 8 ranks that meet twice in each of 6 steps, rank 5 always 8 ms late
    result = played_result(Plan(8, 6, late=only(5, "forward", 8 * MS)), [f"node{rank // 4}" for rank in range(8)])
    answers = asked(result, tmp_path, arrows=ARROWS, late=ENDS_LATE, path=PATH, waits=WAITS)
    assert len(answers["arrows"]) == 6 * 2 * 7
    assert {row[1] for row in answers["arrows"]} == {5}
    assert answers["late"] == [[0]]
    # AND in each of the 12 the 7 others wait for 8 ms, less in the second of a step: for that they queue
    assert {row[1] for row in answers["waits"]} == {"waits for rank 5"}
    assert sum(row[3] == 8 * MS for row in answers["waits"]) >= 6 * 7
    assert sum(row[2] for row in answers["path"]) == max(row.end_at_ns for row in result.steps)


def test_no_arrow_goes_back_in_time_where_a_peer_was_over_before_the_last_one_came(tmp_path: Path) -> None:
    result = met_result(3, 1, 1)
    last = result.matches[0].last_rank
    early, other = (rank for rank in range(3) if rank != last)
    arrivals = [
        replace(row, wait_ns=(row.wait_ns or 0) + TRANSFER_NS, transfer_ns=0) if row.rank == early else row
        for row in result.arrivals
    ]
    odd = replace(result, arrivals=type(result.arrivals)(type(arrivals[0]), arrivals))
    answers = asked(odd, tmp_path, arrows=ARROWS, waits=WAITS)
    assert [row[1:3] for row in answers["arrows"]] == [[last, other]]
    assert [row[3] for row in answers["waits"] if row[0] == early] == [arrivals[early].wait_ns]


def test_without_a_clock_in_common_waits_are_drawn_by_lengths_and_no_arrow_is(tmp_path: Path) -> None:
    result = met_result(2, 2, 1)
    matches = [replace(row, last_rank=None, last_arrival_at_ns=None, blame_ns=None) for row in result.matches]
    arrivals = [replace(row, waited_ns=None, wait_ns=None, transfer_ns=None) for row in result.arrivals]
    blind = replace(
        result, matches=type(result.matches)(MatchRow, matches),
        arrivals=type(result.arrivals)(type(arrivals[0]), arrivals),
    )  # fmt: skip
    answers = asked(blind, tmp_path, arrows=ARROWS, waits=WAITS)
    assert answers["arrows"] == []
    assert {row[1] for row in answers["waits"]} == {"waits for peers"}
    assert sorted(row[3] for row in answers["waits"]) == sorted(row.free_wait_ns for row in arrivals)


@pytest.mark.parametrize("align", [True, False])
def test_the_traces_of_eight_gpus_are_taken_with_an_arrow_for_each_wait(
    shared_traces: Path, tmp_path: Path, align: bool
) -> None:
    result = ddptrace.analyze(shared_traces / "dlrm-8ranks", align=align)
    answers = asked(result, tmp_path, arrows=ARROWS, late=ENDS_LATE)
    assert len(result.matches) == 8
    assert answers["late"] == [[0]]
    met = [match for match in result.matches if match.last_rank is not None]
    assert len(answers["arrows"]) == sum(len(match.ranks) - 1 for match in met)
    assert all(row[4] >= row[3] for row in answers["arrows"])


def test_the_clocks_and_how_sure_they_are_stand_in_the_head(tmp_path: Path) -> None:
    head, _ = written(met_result(2, 2, 1), tmp_path)
    assert "clocks" not in head["otherData"]
    head, _ = written(with_clocks(met_result(2, 2, 1)), tmp_path)
    [clock] = head["otherData"]["clocks"]
    assert (clock["rank"], clock["offset_ns"], clock["uncertainty_ns"]) == (1, 50 * MS, 200_000)
