"""Every kernel, copy and fill is in the trace, on its stream, to the nanosecond, with its launch where it was seen."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_device import KERNELS, device_work, make_device_result, moved

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.device import Activity
from ddptrace.load.tables import DeviceWork, Work
from ddptrace.render.device import device_tracks
from ddptrace.render.device.device_tracks import ARROWS_MAX
from ddptrace.render.trace.slices import apart
from ddptrace.render.trace.tracks import by_rank, islands
from tests.made import empty_result, make_result
from tests.unit.test_render_chrome import Event, check_valid, written

CATEGORIES = {Work.COMPUTE: "device.compute", Work.COMM: "device.comm", Work.MEMORY: "device.memory"}


def one_device(*works: DeviceWork) -> Result:
    """A run in which nothing was seen but these windows of rank 0's device."""
    return dataclasses.replace(empty_result(), activity=(Activity(0, np.empty((0, 2), np.int64), (), works),))


def slices(events: list[Event], *categories: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["cat"] in categories]


def track_names(events: list[Event]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def random_work(rng: random.Random, count: int) -> DeviceWork:
    """Pieces that overlap on their streams, have no length, or were launched after they began."""

    def piece() -> tuple[Work, str, int, int, int | None]:
        begin = rng.randrange(-500, 2000)
        launch = rng.choice([None, begin - rng.randrange(100), begin + 5])
        return rng.choice(list(Work)), rng.choice(["0:7", "0:20", "1:7"]), begin, begin + rng.randrange(60), launch

    return device_work([piece() for _ in range(count)])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 80), st.integers(0, 10**6))
def test_every_piece_of_work_is_drawn_and_none_overlaps_another(
    tmp_path_factory: pytest.TempPathFactory, count: int, seed: int
) -> None:
    work = random_work(random.Random(seed), count)
    head, events = written(one_device(work), tmp_path_factory.mktemp("trace"))
    check_valid(events)
    zero, names = head["otherData"]["trace_zero_ns"], track_names(events)
    drawn = Counter(
        (event["cat"], names[event["tid"]].split(" ")[1], event["ts"] + zero, event["dur"])
        for event in slices(events, *CATEGORIES.values())
    )
    columns = (work.kind, work.stream, work.begin_at_ns, work.end_at_ns)
    pieces = zip(*(column.tolist() for column in columns), strict=True)
    assert drawn == Counter((CATEGORIES[Work(k)], work.streams[s], b, e - b) for k, s, b, e in pieces)


def test_a_stream_of_both_windows_is_one_track_and_streams_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    first = device_work([(Work.COMM, "0:20", 0, 5, None), (Work.COMPUTE, "0:7", 0, 5, None)])
    second = device_work([(Work.COMPUTE, "0:7", 50, 60, None), (Work.MEMORY, "0:7", 60, 61, None)])
    _, events = written(one_device(first, second), tmp_path)
    assert list(track_names(events).values()) == ["stream 0:7", "stream 0:20"]
    assert [event["ts"] for event in slices(events, "device.compute", "device.memory")] == [0, 50, 60]


def test_work_that_overlaps_by_a_nanosecond_gets_a_lane_of_its_own(tmp_path: Path) -> None:
    pieces = [(Work.COMPUTE, "0:7", 0, 101, None), (Work.COMPUTE, "0:7", 100, 200, None)]
    pieces.append((Work.COMPUTE, "0:7", 200, 300, None))
    _, events = written(one_device(device_work(pieces)), tmp_path)
    assert list(track_names(events).values()) == ["stream 0:7", "stream 0:7 · 2"]


def test_a_slice_has_the_kernels_short_name_and_says_the_whole_and_what_launched_it(tmp_path: Path) -> None:
    names = (*KERNELS, 'Linear_0 "x"', "## forward ##", "aten::linear")
    seen, unseen = (Work.COMPUTE, "0:7", 100, 200, 40), (Work.COMPUTE, "0:7", 300, 310, None)
    _, events = written(one_device(device_work([seen, unseen], names)), tmp_path)
    whole = {"kernel": KERNELS[0], "module": names[3], "annotation": names[4], "operator": names[5]}
    launched, queued_before = slices(events, "device.compute")
    assert launched["name"] == "vectorized_elementwise_kernel<CUDAFunctor_add>"
    assert launched["args"] == whole | {"launch_delay_ns": 60}
    assert queued_before["args"] == whole


def test_an_arrow_goes_from_each_launch_of_communication_to_the_first_work_that_it_launched(tmp_path: Path) -> None:
    graph = [(Work.COMM, stream, begin, begin + 10, 20) for stream, begin in (("0:20", 90), ("0:21", 50))]
    alone = [(Work.COMM, "0:20", 200, 210, 120), (Work.COMM, "0:20", 220, 230, None), (Work.COMPUTE, "0:7", 9, 10, 1)]
    _, events = written(one_device(device_work([*graph, *alone])), tmp_path)
    launches = slices(events, "launch")
    assert [(event["ts"], event["dur"]) for event in launches] == [(20, 10), (120, 10)]
    starts, ends = ([event["ts"] for event in events if event["ph"] == phase] for phase in "sf")
    assert (starts, sorted(ends)) == ([20, 120], [50, 200])
    check_valid(events)


def test_no_arrow_goes_back_in_time(tmp_path: Path) -> None:
    work = device_work([(Work.COMM, "0:20", 90, 100, 95)])
    _, events = written(one_device(work), tmp_path)
    assert len(slices(events, "launch")) == 1
    assert [event["args"]["launch_delay_ns"] for event in slices(events, "device.comm")] == [-5]
    assert not [event for event in events if event["ph"] in "sf"]


def test_the_number_of_arrows_is_bounded_and_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ARROWS_MAX >= 1000
    monkeypatch.setattr(device_tracks, "ARROWS_MAX", 3)
    work = device_work([(Work.COMM, "0:20", 100 * k + 50, 100 * k + 60, 100 * k) for k in range(5)])
    _, events = written(one_device(work), tmp_path)
    assert len(slices(events, "launch")) == len(slices(events, "device.comm")) == 5
    assert sum(event["ph"] == "s" for event in events) == sum(event["ph"] == "f" for event in events) == 3


def test_communication_on_a_stream_is_not_drawn_a_second_time_as_the_backends(tmp_path: Path) -> None:
    work = device_work([(Work.COMM, "0:20", 0, 5, None)])
    backend = (("0:20", "ncclKernel", 0, 5, 1), ("gloo worker 1", "gloo:all_reduce", 0, 5, 2))
    activity = (Activity(0, np.empty((0, 2), np.int64), backend, (work,)),)
    _, events = written(dataclasses.replace(empty_result(), activity=activity), tmp_path)
    assert list(track_names(events).values()) == ["backend: gloo worker 1", "stream 0:20"]


def test_no_two_ranks_share_a_tracks_number(tmp_path: Path) -> None:
    """A hundred lanes on each of sixteen streams."""
    pieces = [(Work.COMPUTE, f"0:{stream}", k, 1000, None) for stream in range(16) for k in range(100)]
    activity = tuple(dataclasses.replace(one_device(device_work(pieces)).activity[0], rank=rank) for rank in range(2))
    _, events = written(dataclasses.replace(empty_result(), activity=activity), tmp_path)
    tids = [{event["tid"] for event in slices(events, "device.compute") if event["pid"] == pid} for pid in (1, 2)]
    assert [len(one) for one in tids] == [1600, 1600]
    assert not tids[0] & tids[1]


def test_ranks_that_lie_years_apart_are_drawn_each_from_its_own_begin(tmp_path: Path) -> None:
    # GIVEN three ranks, of which one was recorded three years later
    result = moved(make_device_result(3), 2, 3 * 365 * 86_400 * 10**9)
    head, events = written(result, tmp_path)
    # THEN nothing is drawn later than the longest rank lasts
    last = max(row.end_at_ns for row in result.steps if row.rank == 0)
    assert max(event["ts"] for event in events if event["ph"] == "X") < 2 * last
    # AND the trace says which instant each rank's zero is
    zeros = head["otherData"]["trace_zero_ns_by_rank"]
    assert zeros["0"] == zeros["1"] < zeros["2"]
    first = min(event["ts"] for event in slices(events, *CATEGORIES.values()) if event["pid"] == 3)
    assert first + zeros["2"] == result.activity[2].device[0].begin_at_ns.min()


def test_ranks_whose_windows_overlap_keep_one_zero(tmp_path: Path) -> None:
    result = moved(make_result(3), 2, 50_000_000)
    head, _ = written(result, tmp_path)
    assert "trace_zero_ns_by_rank" not in head["otherData"]
    assert [island.ranks for island in islands(by_rank(result))] == [(0, 1, 2)]


def test_a_rank_inside_the_time_of_another_does_not_end_what_they_share(tmp_path: Path) -> None:
    spans = {0: (0, 1000), 1: (10, 20), 2: (500, 600), 3: (2000, 2001)}
    works = {rank: device_work([(Work.COMPUTE, "0:7", *span, None)]) for rank, span in spans.items()}
    activity = tuple(Activity(rank, np.empty((0, 2), np.int64), (), (work,)) for rank, work in works.items())
    found = islands(by_rank(dataclasses.replace(empty_result(), activity=activity)))
    assert [(island.ranks, island.begin_at_ns, island.end_at_ns) for island in found] == [
        ((0, 1, 2), 0, 1000), ((3,), 2000, 2001),
    ]  # fmt: skip


def test_a_host_that_nobody_named_is_not_printed(tmp_path: Path) -> None:
    _, events = written(make_device_result(1), tmp_path)
    [name] = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert name == "rank 0"


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=30))
def test_lanes_of_many_spans_hold_each_once_and_are_apart(spans: list[tuple[int, int]]) -> None:
    array = np.array([(begin, begin + length) for begin, length in spans], np.int64).reshape(-1, 2)
    lanes = apart(array)
    assert sorted(itertools.chain.from_iterable(lane.tolist() for lane in lanes)) == list(range(len(spans)))
    for lane in lanes:
        assert (array[lane][1:, 0] >= array[lane][:-1, 1]).all()


def test_the_device_part_of_a_whole_result_is_valid(tmp_path: Path) -> None:
    result = make_device_result(2, 3)
    _, events = written(result, tmp_path)
    check_valid(events)
    drawn: Counter[Any] = Counter(event["cat"] for event in events if event["ph"] == "X")
    assert [drawn[CATEGORIES[kind]] for kind in Work] == [2 * 3 * 3, 2 * 3, 2 * 3]
