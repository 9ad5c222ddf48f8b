"""Steps of a rank whose device was profiled: which stretch of device time is whose, and what it was spent on."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from analysis_records import (
    Piece,
    call,
    comm_piece,
    ddp_call,
    gpu_call,
    gpu_window,
    layout,
    mark,
    rank,
    ready,
    reducer,
    run,
    step,
    window,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.load.tables import RankRun, Work
from ddptrace.schema import Phase

LAST = 60


def analyzed(*windows: Any, steps: tuple[tuple[int, int], ...], **fields: Any) -> Result:
    marks = [step(k, *edges) for k, edges in enumerate(steps)]
    return analyze_run(run(rank(steps=marks, windows=windows, **fields)))


def rows(*pieces: Piece, steps: tuple[tuple[int, int], ...], **fields: Any) -> list[StepRow]:
    """Of a run with one window around all of its steps."""
    return list(analyzed(gpu_window(0, 1000, *pieces), steps=steps, **fields).steps)


def test_a_step_lasts_on_the_device_until_its_last_work_ends_wherever_the_host_is_then() -> None:
    first, second = rows(
        Piece(5, 8, (1, 2)), Piece(12, 30, (11, 12)), Piece(30, 47, (18, 19)), Piece(50, 70, (25, 26)),
        steps=((10, 20), (20, 40)),
    )  # fmt: skip
    assert (first.wall_ns, second.wall_ns) == (10, 20)
    assert (first.window_ns, first.compute_ns, first.idle_ns) == (47 - 8, 35, 4)
    assert (second.window_ns, second.compute_ns, second.idle_ns) == (70 - 47, 20, 3)


def test_before_the_first_step_comes_what_was_queued_before_the_profiler_looked() -> None:
    (queued,) = rows(Piece(5, 18), Piece(19, 30, (11, 12)), steps=((10, 20),))
    assert (queued.window_ns, queued.compute_ns) == (12, 11)
    (alone,) = rows(Piece(19, 30, (11, 12)), steps=((10, 20),))
    assert (alone.window_ns, alone.compute_ns) == (20, 11)


def test_work_without_a_launch_after_the_steps_own_does_not_move_its_begin() -> None:
    (row,) = rows(Piece(12, 14, (11, 12)), Piece(15, 30), Piece(31, 40, (13, 14)), steps=((10, 20),))
    assert (row.window_ns, row.compute_ns) == (30, 2 + 15 + 9)


def test_a_step_that_launched_nothing_has_an_empty_window_and_the_next_one_all_of_the_time() -> None:
    first, second, third = rows(
        Piece(11, 15, (11, 12)), Piece(41, 50, (40, 41)), steps=((10, 20), (20, 30), (30, 45))
    )  # fmt: skip
    assert (first.window_ns, second.window_ns, third.window_ns) == (5, 0, 35)
    assert (second.compute_ns, second.idle_ns, second.overlap_ratio) == (0, 0, None)


def test_work_that_ends_before_that_of_an_earlier_step_gives_its_step_no_negative_time() -> None:
    first, second, third = rows(
        Piece(12, 40, (11, 12)), Piece(25, 30, (21, 22), stream="0:8"), Piece(40, 45, (31, 32)),
        steps=((10, 20), (20, 30), (30, 40)),
    )  # fmt: skip
    assert [(row.window_ns, row.compute_ns) for row in (first, second, third)] == [(30, 28), (0, 0), (5, 5)]


def test_steps_outside_the_window_keep_their_wall_time_but_for_what_the_device_still_owes() -> None:
    phases = [mark(Phase.FORWARD, 0, 10), mark(Phase.FORWARD, 10, 15), mark(Phase.FORWARD, 20, 30)]
    result = analyzed(gpu_window(10, 20, Piece(12, 23, (11, 12))), steps=((0, 10), (10, 20), (20, 30)), phases=phases)
    before, inside, after = result.steps
    assert [row.profiled for row in result.steps] == [False, True, False]
    assert (before.window_ns, before.compute_ns) == (10, None)  # the host's forward only launches
    assert (inside.window_ns, inside.compute_ns, inside.idle_ns) == (13, 11, 2)
    assert (after.wall_ns, after.window_ns, after.compute_ns) == (10, 7, None)


def test_each_window_begins_anew_where_steps_between_two_were_not_recorded() -> None:
    result = analyzed(
        gpu_window(0, 30, Piece(5, 12, (1, 2))), gpu_window(500, 540, Piece(515, 530, (511, 512)), file="b"),
        steps=((0, 10), (510, 520)),
    )  # fmt: skip
    assert [row.window_ns for row in result.steps] == [12, 20]


def test_where_no_launch_is_in_the_file_the_host_tells_the_windows() -> None:
    first, second = rows(Piece(3, 7), Piece(12, 18), steps=((0, 10), (10, 20)))
    assert [(row.window_ns, row.compute_ns) for row in (first, second)] == [(10, 4), (10, 6)]


def test_a_collective_belongs_to_the_step_in_whose_device_time_it_ran() -> None:
    result = analyzed(
        gpu_window(0, 100, Piece(12, 30, (11, 12)), comm_piece(25, 40, (14, 15)), Piece(45, 60, (31, 32))),
        steps=((10, 20), (20, 50)),
        calls=[gpu_call(1, 14, (25, 40))],
    )
    (row,) = result.collectives
    assert (row.step, row.hidden_ns, row.exposed_ns, row.exposed_charged_ns, row.queue_ns) == (0, 5, 10, 10, 11)
    assert [s.exposed_comm_ns for s in result.steps] == [10, 0]


def test_what_lies_outside_every_steps_window_is_told_in_nanoseconds() -> None:
    result = analyzed(gpu_window(0, 100, Piece(1, 4, (0, 1)), Piece(12, 30, (11, 12)), Piece(70, 77, (60, 61))),
                      steps=((10, 20),))  # fmt: skip
    (finding,) = [one for one in result.findings if one.code == "outside-window"]
    assert finding.where == "rank 0"
    assert finding.message.startswith("10 ns of device work")
    little = analyzed(gpu_window(0, 30_000, Piece(1, 2, (0, 1)), Piece(12, 20_000, (11, 12))), steps=((10, 20_001),))
    assert not [one for one in little.findings if one.code == "outside-window"]  # under a thousandth of all work
    inside = analyzed(gpu_window(0, 100, Piece(12, 30, (11, 12))), steps=((10, 20),))
    assert not [one for one in inside.findings if one.code == "outside-window"]


def test_ranks_that_record_no_collective_are_said_to_train_alone() -> None:
    both = [rank(k, steps=[step(0, 10, 20)], windows=(gpu_window(0, 100, Piece(12, 30, (11, 12))),)) for k in (0, 1)]
    (finding,) = [one for one in analyze_run(run(*both, world_size=2)).findings if one.code == "no-communication"]
    assert finding.severity == "warning"
    assert "each seems to train alone" in finding.message and "DistributedDataParallel" in finding.message


def test_the_devices_work_counts_wherever_it_was_seen_also_before_and_behind_the_window() -> None:
    work = Piece(2, 6), Piece(12, 23, (11, 12)), Piece(26, 30), comm_piece(28, 34)
    result = analyzed(gpu_window(10, 20, *work), steps=((10, 20),), calls=[gpu_call(1, 28, (28, 34))])
    assert result.activity[0].compute.tolist() == [[2, 6], [12, 23], [26, 30]]
    assert (result.collectives[0].step, result.collectives[0].hidden_ns) == (None, 2)


def test_ddps_wait_for_buckets_on_a_device_is_a_streams_and_not_the_hosts() -> None:
    fields: dict[str, Any] = {
        "phases": [mark(Phase.BACKWARD, 10, 40, 0)], "ready": [ready(0, (0, 20))],
        "reducers": [reducer([2], layout(0, 0, (0,)))],
    }  # fmt: skip
    on_device = gpu_call(1, 20, (22, 60), nbytes_in=8, is_native=True, reducer=1)
    result = analyzed(gpu_window(0, 100, Piece(12, 30, (11, 12))), steps=((0, 50),), calls=[on_device], **fields)
    assert (result.steps[0].wait_ns, result.collectives[0].wait_ns, result.buckets[0].wait_ns) == (None, None, None)
    on_host = analyzed(steps=((0, 50),), calls=[ddp_call(1, 20, 8, ran=(22, 60))], **fields)
    assert on_host.steps[0].wait_ns == 20


def test_a_synchronous_call_on_a_device_blocks_the_host_only_as_far_as_that_was_seen() -> None:
    seen = gpu_call(1, 20, (22, 60), is_sync=True, waits=((21, 27),))
    unseen = gpu_call(2, 30, (60, 70), is_sync=True)
    result = analyzed(gpu_window(0, 100, Piece(12, 50, (11, 12))), steps=((0, 50),), calls=[seen, unseen])
    assert [row.wait_ns for row in result.collectives if row.part == 0] == [6, None]
    assert result.steps[0].wait_ns == 6


span = st.tuples(st.integers(0, LAST - 10), st.integers(0, 10)).map(lambda s: (s[0], s[0] + s[1]))


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    begin, end = draw(span)
    launch = draw(st.none() | st.integers(0, begin).map(lambda at: (at, at + 1)))
    return Piece(begin, end, launch, draw(st.sampled_from(Work)), draw(st.sampled_from(["0:7", "0:20"])))


@st.composite
def ranks(draw: st.DrawFn) -> RankRun:
    """Contiguous steps, of which a profiler window holds some, and communication that overlaps anything."""
    edges = sorted(draw(st.lists(st.integers(0, LAST), min_size=2, max_size=6, unique=True)))
    begin, end = draw(st.sampled_from(edges)), draw(st.sampled_from([*edges, LAST + 20]))
    work = draw(st.lists(pieces(), min_size=1, max_size=8))
    comm = [piece for piece in work if piece.kind == Work.COMM]
    calls = [gpu_call(seq, piece.begin, (piece.begin, piece.end)) for seq, piece in enumerate(comm, 1)]
    phases = [mark(draw(st.sampled_from(Phase)), *draw(span)) for _ in range(draw(st.integers(0, 3)))]
    return rank(
        steps=[step(k, *edge) for k, edge in enumerate(itertools.pairwise(edges))],
        windows=[
            gpu_window(begin, max(begin, end), *work),
            *draw(st.just([]) | st.just([window(LAST + 30, LAST + 40)])),
        ],
        calls=calls,
        phases=phases,
    )


def expected_windows(one: RankRun, profiled: list[bool]) -> list[tuple[int, int]]:
    """The definition, step by step."""
    device = one.windows[0].device
    assert device is not None
    columns = (device.begin_at_ns, device.end_at_ns, device.launched, device.launch_begin_at_ns)
    work = list(zip(*(column.tolist() for column in columns), strict=True))
    windows: list[tuple[int, int]] = []
    reach, chained = -1, False
    for mark_, inside in zip(one.steps, profiled, strict=True):
        host = mark_.begin_at_ns, mark_.end_at_ns
        if not inside or not device.launched.any():
            begin, end = max(host[0], reach), max(host[1], reach)
        else:
            own = [(b, e) for b, e, launched, at in work if launched and host[0] <= at < host[1]]
            first = min((b for b, _ in own), default=host[0])
            early = [e for b, e, launched, at in work if (at < host[0] if launched else b < first)]
            begin = reach if chained else max(reach, max(early, default=host[0]))
            end = max([begin, *(e for _, e in own)])
        chained, reach = inside, end
        windows.append((begin, end))
    return windows


@settings(max_examples=400)
@given(ranks())
def test_every_instant_of_every_window_has_one_use_and_the_parts_add_up(one: RankRun) -> None:
    result = analyze_run(run(one))
    device = one.windows[0].device
    assert device is not None
    compute = {t for b, e in result.activity[0].compute.tolist() for t in range(b, e)}
    comm = {t for c in one.calls if c.exec for t in range(c.exec.begin_at_ns, c.exec.end_at_ns)}
    memory = {t for b, e in one.windows[0].memory.tolist() for t in range(b, e)}
    windows = expected_windows(one, [row.profiled for row in result.steps])
    for row, (begin, end) in zip(result.steps, windows, strict=True):
        inside = set(range(begin, end))
        copied = memory - compute - comm
        assert row.window_ns == len(inside)
        if not row.profiled:
            parts = (row.compute_ns, row.comm_ns, row.hidden_ns, row.exposed_comm_ns, row.exposed_memory_ns)
            assert {*parts, row.idle_ns, row.overlap_ratio, row.evidence} == {None}
            continue
        assert row.compute_ns == len(inside & compute)
        assert row.comm_ns == len(inside & comm)
        assert row.hidden_ns == len(inside & comm & compute)
        assert row.exposed_comm_ns == len(inside & comm - compute)
        assert row.exposed_memory_ns == len(inside & copied)
        assert row.idle_ns == len(inside - compute - comm - copied)
        assert inside & compute == {
            t for b, e in one.windows[0].compute.tolist() for t in range(b, e) if begin <= t < end
        }


@settings(max_examples=400)
@given(ranks())
def test_charges_add_up_to_the_exposed_time_of_device_windows_too(one: RankRun) -> None:
    result = analyze_run(run(one))
    charged: dict[int | None, int] = defaultdict(int)
    for row in result.collectives:
        assert row.hidden_ns is not None
        assert row.exposed_ns is not None
        assert row.hidden_ns + row.exposed_ns == row.comm_ns
        charged[row.step] += row.exposed_charged_ns or 0
    for step_row in result.steps:
        assert not step_row.is_seen or charged[step_row.step] == step_row.exposed_comm_ns
    ran = sum(c.exec.end_at_ns - c.exec.begin_at_ns for c in one.calls if c.exec)
    assert sum(row.comm_ns or 0 for row in result.collectives) == ran


def test_an_unprofiled_call_beside_a_device_window_stays_unknown() -> None:
    result = analyzed(gpu_window(0, 100, Piece(12, 30, (11, 12))), steps=((0, 50),), calls=[call(1, 13)])
    assert (result.collectives[0].comm_ns, result.collectives[0].step) == (None, 0)
