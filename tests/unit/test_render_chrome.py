"""The trace for Perfetto is valid whatever was measured, and says what the tables say to the nanosecond."""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.device import Activity
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.render.trace.chrome import write_trace
from tests.made import ZERO_UNIX_NS, empty_result, make_result

Event = dict[str, Any]
INSTANTS = ("first_ready_at_ns", "ready_at_ns", "exec_start_at_ns", "exec_end_at_ns", "done_at_ns", "wait_ns")


def written(result: Result, folder: Path) -> tuple[dict[str, Any], list[Event]]:
    """The trace's head, and its events with `ts` and `dur` in exact nanoseconds."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = gzip.decompress(write_trace(result, folder / "trace.json.gz").read_bytes()).decode()
    trace = json.loads(text, parse_float=Decimal, parse_constant=refuse)
    events = trace.pop("traceEvents")
    for event in events:
        for key in ("ts", "dur"):
            if key in event:
                exact = Decimal(event[key]) * 1000
                assert exact == int(exact)
                event[key] = int(exact)
    return trace, events


def check_valid(events: list[Event]) -> None:
    """What Perfetto asks of a trace, checked by the definition."""
    tracks: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        assert event["ph"] in "XMCsf"
        assert event.get("ts", 0) >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(event)
    for slices in tracks.values():
        open_ends: list[int] = []
        for event in sorted(slices, key=lambda event: event["ts"]):
            while open_ends and open_ends[-1] <= event["ts"]:
                open_ends.pop()
            assert not open_ends or event["ts"] + event["dur"] <= open_ends[-1], event
            open_ends.append(event["ts"] + event["dur"])
    check_flows(events, tracks)
    names = [event for event in events if event["name"] == "process_name"]
    assert len({event["pid"] for event in names}) == len(names)


def check_flows(events: list[Event], tracks: dict[tuple[int, int], list[Event]]) -> None:
    """Every arrow has two ends, each at the begin of a slice of its track."""
    ends = [event for event in events if event["ph"] in "sf"]
    begins = {place: {event["ts"] for event in slices} for place, slices in tracks.items()}
    assert all(event["ts"] in begins[event["pid"], event["tid"]] for event in ends)
    assert Counter(event["id"] for event in ends if event["ph"] == "s") == Counter(
        event["id"] for event in ends if event["ph"] == "f"
    )
    assert all(n == 2 for n in Counter(event["id"] for event in ends).values())


def disordered(result: Result, rng: random.Random) -> Result:
    """The same rows with instants moved, swapped, negative or not measured."""

    def moved(row: Any) -> Any:
        changes = {name: rng.choice([None, rng.randrange(-(10**8), 10**9)]) for name in INSTANTS if hasattr(row, name)}
        return dataclasses.replace(row, launch_at_ns=rng.randrange(-(10**8), 10**9), **changes)

    backend = tuple(("lane", "op", rng.randrange(-(10**8), 10**8), rng.randrange(10**8), k) for k in range(9))
    activity = Activity(0, np.array([[-5, 3], [10, 20]], np.int64), backend)
    return dataclasses.replace(
        result,
        buckets=Table(BucketRow, [moved(row) for row in result.buckets]),
        collectives=Table(CollectiveRow, [moved(row) for row in result.collectives]),
        activity=(activity,),
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(0, 4), st.integers(1, 6), st.integers(0, 10**6))
def test_slices_nest_or_are_apart_whatever_was_measured(
    tmp_path_factory: pytest.TempPathFactory, ranks: int, steps: int, buckets: int, seed: int
) -> None:
    result = disordered(make_result(ranks, steps, buckets, seed), random.Random(seed))
    _, events = written(result, tmp_path_factory.mktemp("trace"))
    check_valid(events)
    seen = Counter(event["cat"] for event in events if event["ph"] == "X")
    known = [row for row in result.buckets if row.exec_start_at_ns is not None]
    assert seen["step"] == len(result.steps)
    assert seen["phase"] == len(result.phases)
    assert seen["bucket"] == len(result.buckets)
    assert seen["bucket.exec"] == seen["bucket.queue"] == len(known)
    assert seen["collective"] == sum(row.bucket is None for row in result.collectives)
    assert seen["backend"] == 9


def test_every_nanosecond_of_a_bucket_is_kept(tmp_path: Path) -> None:
    result = make_result(2, 3, 4)
    _, events = written(result, tmp_path)
    drawn = [
        (event["pid"] - 1, event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "bucket.exec" and event["ph"] == "X"
    ]
    assert sorted(drawn) == sorted((row.rank, row.exec_start_at_ns, row.exec_end_at_ns) for row in result.buckets)


def test_compute_is_drawn_interval_by_interval(tmp_path: Path) -> None:
    result = make_result(1, 2, 3)
    _, events = written(result, tmp_path)
    drawn = [[event["ts"], event["ts"] + event["dur"]] for event in events if event.get("cat") == "compute"]
    assert drawn == result.activity[0].compute.tolist()


def test_what_was_before_the_zero_shifts_the_whole_trace(tmp_path: Path) -> None:
    result = make_result(1, 2, 3)
    early = dataclasses.replace(result.steps[0], begin_at_ns=-1234)
    result = dataclasses.replace(result, steps=Table(StepRow, [early, *result.steps[1:]]))
    head, events = written(result, tmp_path)
    assert head["otherData"]["trace_zero_unix_ns"] == str(ZERO_UNIX_NS - 1234)
    first = {category: next(e["ts"] for e in events if e.get("cat") == category) for category in ("step", "compute")}
    assert first == {"step": 0, "compute": result.activity[0].compute[0, 0] + 1234}


def test_what_was_not_measured_is_left_out_of_the_arguments(tmp_path: Path) -> None:
    _, events = written(make_result(1, 1, 2), tmp_path)
    [loss] = [event for event in events if event.get("cat") == "collective"]
    assert "comm_ns" not in loss["args"]
    assert loss["args"]["drawn_from"] == "launch"


def test_names_are_written_as_they_are(tmp_path: Path) -> None:
    name = 'a"b\\c\n<é\u2028 💥 \x01\udc80'
    result = make_result(1, 1, 1)
    result = dataclasses.replace(
        result, buckets=Table(BucketRow, [dataclasses.replace(row, parameters=(name,)) for row in result.buckets])
    )
    _, events = written(result, tmp_path)
    assert {event["args"]["parameters"] for event in events if event.get("cat") == "bucket.exec"} == {name}


def test_bytes_in_flight_rise_at_launch_and_end_at_nothing(tmp_path: Path) -> None:
    result = make_result(1, 1, 3)
    _, events = written(result, tmp_path)
    samples = {event["ts"]: event["args"]["bytes"] for event in events if event["name"] == "in flight"}
    first = result.buckets[0]
    assert samples[first.launch_at_ns] == first.nbytes
    assert samples[max(samples)] == 0
    assert all(value >= 0 for value in samples.values())


def test_the_running_overlap_ends_at_the_overlap_of_its_step(tmp_path: Path) -> None:
    result = make_result(1, 3, 4)
    _, events = written(result, tmp_path)
    samples = [(event["ts"], float(event["args"]["ratio"])) for event in events if event["name"] == "overlap"]
    for step in result.steps:
        last = [ratio for ts, ratio in samples if step.begin_at_ns <= ts < step.end_at_ns][-1]
        assert last == pytest.approx(step.overlap_ratio)


def test_an_empty_run_has_a_trace(tmp_path: Path) -> None:
    _, events = written(empty_result(), tmp_path)
    assert [event["ph"] for event in events] == ["M", "M"]


def test_a_trace_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    # GIVEN a trace, and a result that cannot be drawn
    path = write_trace(make_result(1, 1, 1), tmp_path / "trace.json.gz")
    before = path.read_bytes()
    broken = dataclasses.replace(make_result(1, 1, 1), zero_unix_ns="not a number")  # type: ignore[arg-type]
    # WHEN it is written over
    with pytest.raises(TypeError):
        write_trace(broken, path)
    # THEN the first is still there, and nothing else
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
