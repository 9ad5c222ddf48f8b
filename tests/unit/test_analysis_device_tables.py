"""Streams, launches and scopes of a profiled device."""

from __future__ import annotations

from typing import Any

from analysis_records import Piece, comm_piece, gpu_window, rank, run, step
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.device.rows import LAUNCH_BOUND_RATIO
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.device import LaunchRow, ScopeRow, StreamRow
from ddptrace.load.tables import Work


def analyzed(*windows: Any, steps: tuple[tuple[int, int], ...] = ((10, 20), (20, 40))) -> Result:
    return analyze_run(run(rank(steps=[step(k, *edges) for k, edges in enumerate(steps)], windows=windows)))


def test_a_stream_is_told_whole_and_clipped_to_the_steps() -> None:
    result = analyzed(gpu_window(
        0, 100, Piece(2, 6, (1, 2)), Piece(12, 30, (11, 12)), Piece(25, 50, (21, 22)), comm_piece(28, 34, (13, 14)),
        Piece(52, 55, (30, 31), Work.MEMORY),
    ))  # fmt: skip
    assert [(row.begin_at_ns, row.window_ns) for row in result.steps] == [(10, 28), (20, 21)]  # from 6 to 34 to 55
    assert list(result.streams) == [
        StreamRow(0, None, "0:7", 4, 4 + 38 + 3, 42, 0, 3),
        StreamRow(0, None, "0:20", 1, 6, 0, 6, 0),
        StreamRow(0, 0, "0:7", 2, 22, 22, 0, 0),
        StreamRow(0, 0, "0:20", 1, 6, 0, 6, 0),
        StreamRow(0, 1, "0:7", 2, 19, 16, 0, 3),
    ]


def test_a_stream_in_two_windows_is_one_stream() -> None:
    first = gpu_window(0, 30, Piece(12, 20, (11, 12), stream="0:9"), Piece(13, 21, (12, 13)))
    second = gpu_window(100, 130, Piece(112, 115, (111, 112)), file="b")
    result = analyzed(first, second, steps=((10, 20), (110, 120)))
    whole = [(row.stream, row.events, row.busy_ns) for row in result.streams if row.step is None]
    assert whole == [("0:9", 1, 8), ("0:7", 2, 11)]


def test_an_event_of_no_length_is_an_event_where_it_begins() -> None:
    result = analyzed(gpu_window(0, 100, Piece(12, 30, (11, 12)), Piece(30, 30, (12, 13)), Piece(31, 40, (21, 22))))
    assert [(row.step, row.events) for row in result.streams] == [(None, 3), (0, 1), (1, 2)]


def test_launches_are_counted_for_the_step_that_made_them_with_their_delays() -> None:
    work = [Piece(20 + k, 21 + k, (10 + k, 11 + k)) for k in range(9)]  # each starts 10 after its launch
    late = Piece(60, 70, (35, 36))  # its stream has nothing left at 35
    row, following = analyzed(gpu_window(0, 100, *work, late)).launches
    assert row == LaunchRow(0, 0, 9, 0, 10, 10, 10, 19, 10, 1, False)
    assert (following.step, following.launched, following.late, following.delay_max_ns) == (1, 1, 1, 25)


def test_delays_are_those_of_real_launches() -> None:
    begins = [11, 13, 16, 20, 25, 31, 38, 46, 55, 65, 76]
    row, *_ = analyzed(gpu_window(0, 100, *(Piece(at, at + 1, (10, 11)) for at in begins))).launches
    assert (row.launched, row.delay_p50_ns, row.delay_p90_ns, row.delay_max_ns) == (11, 21, 55, 66)


def test_the_device_waits_for_the_host_only_while_nothing_is_queued() -> None:
    queued = Piece(80, 90, (15, 16))  # from 16 on there is always something
    work = Piece(10, 20, (9, 10)), Piece(32, 40, (24, 26)), Piece(60, 70, (41, 42)), queued
    (row,) = analyzed(gpu_window(0, 100, *work), steps=((8, 50),)).launches
    assert (row.window_ns, row.idle_ns) == (82, 82 - 38)
    assert row.host_idle_ns == 2  # from 8 to 10


def test_a_step_is_launch_bound_when_the_host_keeps_the_device_waiting_for_long() -> None:
    def bound(gap: int) -> bool:
        first, second = Piece(10, 20, (10, 10)), Piece(21 + gap, 110, (19 + gap, 20 + gap))
        (row,) = analyzed(gpu_window(0, 200, first, second), steps=((10, 200),)).launches
        assert row.host_idle_ns == gap
        return row.launch_bound

    assert LAUNCH_BOUND_RATIO == 0.1
    assert not bound(10)
    assert bound(11)


def test_the_first_work_of_a_stream_is_not_late_and_streams_are_judged_apart() -> None:
    (row,) = analyzed(gpu_window(
        0, 100, Piece(12, 14, (11, 12)), Piece(30, 32, (16, 17), stream="0:8"), Piece(33, 34, (20, 21), stream="0:8"),
        Piece(40, 41, (25, 26), stream="0:7"),
    ), steps=((10, 50),)).launches  # fmt: skip
    assert (row.launched, row.late) == (4, 1)


def test_a_step_that_launched_nothing_says_so() -> None:
    row = analyzed(gpu_window(0, 100, Piece(12, 14, (11, 12)))).launches[1]
    assert row == LaunchRow(0, 1, 0, 0, None, None, None, 0, 0, 0, False)


def test_device_time_is_told_by_module_annotation_and_operator_most_first() -> None:
    big = {"module": "Linear_0", "operator": "aten::linear"}
    result = analyzed(
        gpu_window(
            0, 40, Piece(12, 13, (11, 12), module="Norm_0", annotation="forward"), Piece(14, 34, (12, 13), **big)
        ),
        gpu_window(50, 90, Piece(60, 65, (58, 59), Work.COMM, **big), Piece(66, 68, (59, 60), Work.MEMORY, **big),
                   Piece(70, 80)),
    )  # fmt: skip
    assert list(result.scopes) == [
        ScopeRow(0, "module", "Linear_0", 3, 20, 5, 2),
        ScopeRow(0, "module", "Norm_0", 1, 1, 0, 0),
        ScopeRow(0, "annotation", "forward", 1, 1, 0, 0),
        ScopeRow(0, "operator", "aten::linear", 3, 20, 5, 2),
    ]


def test_without_a_device_these_tables_are_empty() -> None:
    result = analyze_run(run(rank(steps=[step(0, 0, 10)])))
    assert not result.streams
    assert not result.launches
    assert not result.scopes


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    begin = draw(st.integers(5, 50))
    launch = draw(st.none() | st.integers(0, begin).map(lambda at: (at, at + 2)))
    where = draw(st.sampled_from(Work)), draw(st.sampled_from(["0:7", "0:20", "1:7"]))
    return Piece(begin, begin + draw(st.integers(0, 9)), launch, *where)


def was_late(piece: Piece, work: list[Piece]) -> bool:
    """Something ran on its stream before, and all that did was over."""
    in_order = sorted((p for p in work if p.stream == piece.stream), key=lambda p: p.begin)
    before = in_order[: next(k for k, p in enumerate(in_order) if p is piece)]
    return bool(before) and piece.launch is not None and max(p.end for p in before) <= piece.launch[0]


@settings(max_examples=300)
@given(st.lists(pieces(), min_size=1, max_size=10), st.integers(6, 30))
def test_launches_and_streams_agree_with_an_answer_instant_by_instant(work: list[Piece], edge: int) -> None:
    result = analyzed(gpu_window(0, 100, *work), steps=((5, edge), (edge, 60)))
    busy = {t for p in work for t in range(p.begin, p.end)}
    queued = {t for p in work if p.launch for t in range(p.launch[1], p.begin)}
    ends = [5]
    for row, host in zip(result.launches, ((5, edge), (edge, 60)), strict=False):
        own = [p for p in work if p.launch and host[0] <= p.launch[0] < host[1]]
        assert row.launched == len(own)
        assert row.late == sum(was_late(p, work) for p in own)
        delays = sorted(p.begin - p.launch[0] for p in own if p.launch)
        assert row.delay_max_ns == (delays[-1] if delays else None)
        assert row.delay_p50_ns == (delays[(len(delays) - 1) // 2] if delays else None)
        ends.append(max([ends[-1], *(p.end for p in own)]))
        if row.step == 1:
            inside = set(range(ends[-1] - row.window_ns, ends[-1]))
            assert row.idle_ns == len(inside - busy)
            assert row.host_idle_ns == len(inside - busy - queued)
            for stream in ("0:7", "0:20", "1:7"):
                mine = {t for p in work if p.stream == stream for t in range(p.begin, p.end)}
                found = [s.busy_ns for s in result.streams if (s.step, s.stream) == (1, stream)]
                assert sum(found) == len(inside & mine)
    for stream_row in result.streams:
        if stream_row.step is None:
            mine = {t for p in work if p.stream == stream_row.stream for t in range(p.begin, p.end)}
            assert stream_row.busy_ns == len(mine)
            assert stream_row.events == sum(p.stream == stream_row.stream for p in work)
