"""The real Perfetto takes every kernel of traces that others recorded, and SQL finds them as the files have them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from made_device import make_device_result, moved

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.load.tables import Work
from ddptrace.render.trace.chrome import write_trace
from tests.perfetto import ask

pytestmark = pytest.mark.long

COUNTS = "select category, count(*), sum(dur) from slice where category like 'device.%' group by 1"
TRACKS = """
    select process.pid - 1 as rank, thread.name as track, count(*)
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
    where category like 'device.%' group by 1, 2
"""
ARROWS = """
    select a.category as launch, b.category as work, count(*), min(b.ts - a.ts) >= 0
    from flow join slice a on slice_out = a.id join slice b on slice_in = b.id where a.category = 'launch' group by 1, 2
"""
ENDS_LATE = """
    select count(*) from slice child join slice on child.parent_id = slice.id
    where child.ts + child.dur > slice.ts + slice.dur
"""
KINDS = {Work.COMPUTE: "device.compute", Work.COMM: "device.comm", Work.MEMORY: "device.memory"}


def drawn(result: Result) -> list[list[object]]:
    """What COUNTS must give."""
    pieces: Counter[str] = Counter()
    lengths: Counter[str] = Counter()
    for work in (work for activity in result.activity for work in activity.device):
        for kind, name in KINDS.items():
            mine = work.kind == kind
            pieces[name] += int(mine.sum())
            lengths[name] += int((work.end_at_ns - work.begin_at_ns)[mine].sum())
    return [[name, pieces[name], lengths[name]] for name in sorted(pieces) if pieces[name]]


def by_stream(result: Result) -> Counter[tuple[int, str]]:
    return Counter(
        (activity.rank, f"stream {work.streams[stream]}")
        for activity in result.activity
        for work in activity.device
        for stream in work.stream.tolist()
    )


@pytest.mark.parametrize("folder", ["ddp-a100", "dlrm-8ranks", "old-format", "sampled-2of128", "odd"])
def test_every_kernel_of_a_real_trace_is_found_by_sql(folder: str, shared_traces: Path, tmp_path: Path) -> None:
    # GIVEN traces of one folder
    result = ddptrace.analyze(shared_traces / folder)
    trace = write_trace(result, tmp_path / "trace.json.gz")
    # WHEN Perfetto is asked
    answers = ask(trace, counts=COUNTS, tracks=TRACKS, arrows=ARROWS, late=ENDS_LATE)
    # THEN it has each piece of work, as long as it was
    assert answers["counts"] == drawn(result)
    assert answers["late"] == [[0]]
    # AND on the stream of its rank, or on a second lane of it
    found: Counter[tuple[int, str]] = Counter()
    for rank, track, count in answers["tracks"]:
        found[rank, track.split(" · ")[0]] += count
    assert found == by_stream(result)
    # AND an arrow from each launch of communication that the files hold
    launched = sum(
        len(set(work.launch_begin_at_ns[work.launched & (work.kind == Work.COMM)].tolist()))
        for activity in result.activity
        for work in activity.device
    )
    assert answers["arrows"] == ([["launch", "device.comm", launched, 1]] if launched else [])


def test_ranks_that_lie_years_apart_are_taken_whole(tmp_path: Path) -> None:
    result = moved(make_device_result(2), 1, 40 * 365 * 86_400 * 10**9)
    answers = ask(
        write_trace(result, tmp_path / "trace.json.gz"), counts=COUNTS, last="select max(ts + dur) from slice"
    )
    assert answers["counts"] == drawn(result)
    assert answers["last"][0][0] < 10**10
