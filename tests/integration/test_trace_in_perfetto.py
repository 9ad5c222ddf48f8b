"""The real Perfetto takes the whole trace, and SQL finds in it what the tables say."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.render.trace.chrome import write_trace
from tests.conftest import Record
from tests.made import make_result
from tests.perfetto import ask, check
from tests.unit.test_render_chrome import disordered

BUCKETS = """
    select extract_arg(arg_set_id, 'args.rank'), extract_arg(arg_set_id, 'args.step'),
           extract_arg(arg_set_id, 'args.reducer'), extract_arg(arg_set_id, 'args.layout'),
           extract_arg(arg_set_id, 'args.index'), ts, ts + dur
    from slice where category = 'bucket.exec' order by 1, 6, 5
"""
EXACT = (
    "select count(*) from slice where category = 'bucket' and ts != extract_arg(arg_set_id, 'args.first_ready_at_ns')"
)
FLOWS = """
    select a.category as launch, b.category as communication
    from flow join slice a on slice_out = a.id join slice b on slice_in = b.id
"""
ENDS_LATE = """
    select count(*) from slice child join slice on child.parent_id = slice.id
    where child.ts + child.dur > slice.ts + slice.dur
"""
NAMES = """
    select process.pid as pid, process.name as process_name, thread.name as track
    from thread join process using (upid) where thread.name is not null order by tid
"""


def drawn(result: Result) -> list[list[int | None]]:
    """The rows that the query BUCKETS must give."""
    known = [row for row in result.buckets if row.exec_start_at_ns is not None]
    rows = [
        [row.rank, row.step, row.reducer, row.layout, row.index, row.exec_start_at_ns, row.exec_end_at_ns]
        for row in known
    ]
    return sorted(rows, key=lambda row: (row[0], row[5], row[4]))


def test_every_bucket_of_every_rank_and_step_is_found_by_sql(tmp_path: Path) -> None:
    # GIVEN a run of three ranks, five steps and six buckets
    result = make_result(3, 5, 6)
    trace = write_trace(result, tmp_path / "trace.json.gz")
    # WHEN Perfetto is asked
    answers = ask(trace, buckets=BUCKETS, inexact=EXACT, flows=FLOWS, late=ENDS_LATE, names=NAMES)
    # THEN it has each bucket, where it ran, to the nanosecond
    assert answers["buckets"] == drawn(result)
    assert answers["inexact"] == answers["late"] == [[0]]
    # AND an arrow from each launch to its communication
    assert answers["flows"] == [["bucket.queue", "bucket.exec"]] * len(result.buckets)
    # AND a process for each rank, its tracks in their order
    assert {pid: name for pid, name, _ in answers["names"]} == {k + 1: f"node0 · rank {k}" for k in range(3)}
    assert [track for pid, _, track in answers["names"] if pid == 1][:4] == ["steps", "phases", "host waits", "compute"]


def test_perfetto_reads_a_number_of_many_digits_as_it_is(tmp_path: Path) -> None:
    ratio = 0.00011544099870101665
    result = make_result(1, 1, 1)
    steps = [replace(row, overlap_ratio=ratio) for row in result.steps]
    trace = write_trace(replace(result, steps=Table(StepRow, steps)), tmp_path / "trace.json.gz")
    answers = ask(
        trace, ratios="select extract_arg(arg_set_id, 'args.overlap_ratio') from slice where category = 'step'"
    )
    assert answers["ratios"] == [[pytest.approx(ratio, rel=1e-9)]]


def test_the_projects_own_check_accepts_the_trace(tmp_path: Path) -> None:
    result = make_result(2, 4, 5)
    trace = write_trace(result, tmp_path / "trace.json.gz")
    assert "import errors: []" in check(trace, slices=len(result.buckets) * 2, flows=len(result.buckets))


@pytest.mark.parametrize("seed", range(3))
def test_perfetto_drops_nothing_of_a_run_whose_clocks_are_wrong(tmp_path: Path, seed: int) -> None:
    result = disordered(make_result(2, 4, 5, seed), random.Random(seed))
    trace = write_trace(result, tmp_path / "trace.json.gz")
    answers = ask(trace, counts="select category, count(*) from slice group by 1", flows=FLOWS)
    counts = dict(answers["counts"])
    known = sum(row.exec_start_at_ns is not None for row in result.buckets)
    assert counts["bucket"] == len(result.buckets)
    assert counts["bucket.exec"] == counts["bucket.queue"] == len(answers["flows"]) == known
    assert counts["collective"] == sum(row.bucket is None for row in result.collectives)


def test_a_real_run_is_accepted(record: Record, tmp_path: Path) -> None:
    result = ddptrace.analyze(record(tmp_path / "run", "ddp.py", "--profile"))
    trace = write_trace(result, tmp_path / "trace.json.gz")
    answers = ask(trace, buckets=BUCKETS, flows=FLOWS, steps="select count(*) from slice where category = 'step'")
    zero = min(0, *(row.begin_at_ns for row in result.steps))
    assert answers["steps"] == [[len(result.steps)]]
    launches = [flow for flow in answers["flows"] if flow[0] == "bucket.queue"]
    assert len(launches) == len(drawn(result)) > 0
    # AND one from the last arrival at each collective to the other rank, where that has waited for it
    last = {match.match: match.last_rank for match in result.matches}
    waiting = [row for row in result.arrivals if last[row.match] not in (None, row.rank) and row.transfer_ns]
    met = [flow for flow in answers["flows"] if flow[0] == "arrival"]
    assert met == [["arrival", "peer.transfer"]] * len(waiting)
    assert len(waiting) == len([match for match in result.matches if match.last_rank is not None]) > 0
    assert len(answers["flows"]) == len(launches) + len(met)
    if zero == 0:
        assert answers["buckets"] == drawn(result)


def test_a_child_that_outlives_its_parent_by_a_nanosecond_would_be_seen(tmp_path: Path) -> None:
    """The test of the tests."""
    trace = tmp_path / "trace.json"
    times = (("0.000", "1.000"), ("0.500", "0.501"))
    events = [f'{{"ph":"X","pid":1,"tid":1,"ts":{ts},"dur":{dur},"name":"x"}}' for ts, dur in times]
    trace.write_text(f'{{"traceEvents":[{",".join(events)}]}}')
    with pytest.raises(AssertionError):
        ask(trace, n="select count(*) from slice")
