"""The longest idle gaps in the trace for Perfetto: what held the host, and the launching threads' ranges near them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from foreign_files import ENGINE, MAIN, STREAM, Event, event, kernel, launch, load, op

import ddptrace
from ddptrace.analysis.analyze import analyze_rank
from ddptrace.analysis.clocks.aligned import aligned_tables
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.device import LongGaps
from ddptrace.analysis.tables.ranks import ClockRow
from ddptrace.load.windows.idle import MOST_RANGES
from ddptrace.render.device.device_tracks import gap_tracks, inside
from ddptrace.render.trace.chrome import write_trace
from ddptrace.render.trace.slices import Slice
from tests.perfetto import ask

GAPS = """
    select s.dur as gap, c.name as cause, c.dur as held from slice s join slice c on c.parent_id = s.id
    where s.category = 'idle.gap' order by s.dur desc, c.dur desc limit 1
"""
COUNTS = "select category, count(*) from slice where category like 'idle.%' or category like 'host.%' group by 1"
ENDS_LATE = """
    select count(*) from slice child join slice on child.parent_id = slice.id
    where child.ts + child.dur > slice.ts + slice.dur
"""
AROUND = """
    select count(distinct gap.id) from slice gap join slice host
    on host.ts < gap.ts + gap.dur and gap.ts < host.ts + host.dur
    where gap.category = 'idle.gap' and host.category like 'host.%'
"""
LONGEST = {
    "dlrm-blocked-copies": (64.652, "work was queued: cudaDeviceSynchronize"),
    "no-steps-sglang": (463.295, "work was queued: hipMemcpyWithStream"),
    "hipfree-resnet18": (68.204, "allocation: hipFree"),
}
"""By set, the longest gap in ms and what held the host in it, as the files show."""


def tables(folder: Path, *events: Event) -> RankTables:
    return analyze_rank(load(folder, *events).run)


def gaps_of(folder: Path, *events: Event) -> LongGaps:
    (window,) = tables(folder, *events).activity.idle
    return window


@pytest.mark.long
@pytest.mark.parametrize("folder", LONGEST)
def test_perfetto_explains_the_longest_gap(folder: str, shared_traces: Path, tmp_path: Path) -> None:
    # GIVEN the trace that is made of a real one
    result = ddptrace.analyze(shared_traces / "judged" / folder, jobs=1)
    trace = write_trace(result, tmp_path / "trace.json.gz")
    # WHEN Perfetto is asked
    answers = ask(trace, gaps=GAPS, counts=COUNTS, late=ENDS_LATE, around=AROUND)
    # THEN the longest gap is as long as in the file, and nearly all of it has one cause
    [[gap_ns, cause, held_ns]] = answers["gaps"]
    assert (round(gap_ns / 1e6, 3), cause) == LONGEST[folder] and held_ns > 0.99 * gap_ns
    # AND nearly every gap has a range of the host beside it, all of them nest, and they are bounded
    counts = dict(map(tuple, answers["counts"]))
    assert counts["idle.gap"] == 50
    assert answers["around"][0][0] >= 45
    assert 0 < counts["host.operator"] + counts["host.runtime"] <= MOST_RANGES
    assert answers["late"] == [[0]]


def test_ranges_near_a_gap_are_whole_and_those_far_from_it_are_not_taken(tmp_path: Path) -> None:
    window = gaps_of(
        tmp_path,
        op("aten::far", 0, 300),
        launch(1, 600, 602),
        kernel("a", 1, 605, 1000),
        op("aten::before", 700, 900),
        op("aten::long", 950, 2100),
        event("cuda_runtime", "cudaMemcpyAsync", MAIN, 1200, 1800),
        op("aten::other", 1100, 1200, ENGINE),
        launch(2, 2000, 2010),
        kernel("b", 2, 2010, 90_000),
        op("aten::late", 2300, 2400),
    )
    assert window.around is not None
    names = [window.around.names[name] for name in window.around.name.tolist()]
    # the gap from 1000 to 2010, and 200 µs to either side: the first gap, before any work, has the first launch in it
    assert set(names) == {"aten::far", "cudaLaunchKernel", "aten::before", "aten::long", "cudaMemcpyAsync"}
    assert len(window.around.threads) == 1
    spans = dict(zip(names, zip(window.around.begin_at_ns, window.around.end_at_ns, strict=True), strict=True))
    assert spans["aten::long"] == (950_000, 2_100_000)


def test_a_gap_full_of_small_operators_stays_bounded_and_keeps_the_longest(tmp_path: Path) -> None:
    small = [op("aten::small", at, at + 0.5) for at in range(2000, 2000 + MOST_RANGES + 500)]
    end = 3000 + MOST_RANGES + 500
    work = launch(1, 0, 2), kernel("a", 1, 5, 1000), launch(2, end, end + 1), kernel("b", 2, end + 1, end + 9)
    window = gaps_of(tmp_path, *work, op("aten::long", 1500, end - 1), *small)
    assert window.around is not None
    assert len(window.around.name) == MOST_RANGES
    assert "aten::long" in window.around.names
    assert len(window.gap) < 500  # of the pieces, those that can be seen


def test_the_gaps_are_drawn_with_what_held_the_host_inside(tmp_path: Path) -> None:
    window = gaps_of(
        tmp_path,
        launch(1, 0, 2),
        kernel("a", 1, 2, 10),
        event("cuda_runtime", "hipFree", MAIN, 10, 90),
        launch(2, 90, 100),
        kernel("b", 2, 100, 200),
    )
    gaps, thread = gap_tracks([window])
    assert gaps.name == "idle gaps" and thread.name.startswith("around gaps: ")
    (held,) = [one for one in gaps.slices if one.name == "allocation: hipFree"]
    assert (held.begin_at_ns, held.end_at_ns) == (10_000, 90_000)
    (outer,) = [one for one in gaps.slices if one.category == "idle.gap" and one.begin_at_ns == 10_000]
    assert outer.end_at_ns == 100_000
    assert {one.category for one in thread.slices} == {"host.runtime"}


def test_a_range_that_outlives_the_one_around_it_ends_with_it() -> None:
    found = inside([Slice("outer", "", 0, 100), Slice("inner", "", 50, 120), Slice("next", "", 100, 130)])
    assert [one[2:4] for one in found] == [(0, 100), (50, 100), (100, 130)]
    assert all(one.begin_at_ns <= two.begin_at_ns for one, two in pairwise(found))


def test_a_file_whose_device_was_never_idle_has_no_such_rows(tmp_path: Path) -> None:
    window = gaps_of(tmp_path, event("kernel", "a", STREAM, 0, 100, pid=0))
    assert not list(gap_tracks([window]))
    assert window.around is not None and not len(window.around.name) and window.gaps.dtype == np.int64


def test_gaps_move_with_the_rank_when_clocks_are_aligned(tmp_path: Path) -> None:
    ahead = 5_000
    one = tables(tmp_path, launch(1, 0, 2), kernel("a", 1, 2, 10), launch(2, 90, 100), kernel("b", 2, 100, 200))
    clock = ClockRow(one.row.rank, 0, 0, 10**9, ahead, 0.0, 0, 0, 2, shifted=True, why="fitted")
    [moved] = aligned_tables([one], [clock])
    (before,), (after,) = one.activity.idle, moved.activity.idle
    assert before.around is not None and after.around is not None
    for old, new in (
        (before.gaps, after.gaps),
        (before.begin_at_ns, after.begin_at_ns),
        (before.around.end_at_ns, after.around.end_at_ns),
    ):
        assert len(old) and (old - new == ahead).all()
