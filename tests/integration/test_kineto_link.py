"""A real window joined to its records, against the shapes in the file: a witness that the join does not use."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.records.calls import known_over_by
from ddptrace.load.run import read_run
from ddptrace.load.tables import Call, RankRun
from ddptrace.load.windows.join import join_window
from ddptrace.schema import RANGE_PREFIX, Evidence
from tests.launch import torchrun

GLOO = "gloo:"


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("linked") / "run"
    torchrun("linked.py", path)
    return path


@cache
def window_file(run: Path, rank: int) -> Path:
    (window,) = read_run(run).ranks[rank].windows
    return run / f"rank-{rank:05d}" / window.file


def raw_events(run: Path, rank: int) -> list[dict[str, Any]]:
    content = json.loads(gzip.decompress(window_file(run, rank).read_bytes()), parse_float=Decimal)
    base = content["baseTimeNanoseconds"]
    events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    for event in events:
        event["unix_ns"] = base + int(event["ts"] * 1000)
    return events


def in_window(run: Path, rank: int) -> tuple[RankRun, list[Call]]:
    """The calls whose range by id is in the file."""
    prefixed = [event["name"] for event in raw_events(run, rank) if event["name"].startswith(RANGE_PREFIX)]
    ids = {int(name.removeprefix(RANGE_PREFIX)) for name in prefixed}
    one = read_run(run).ranks[rank]
    return one, [call for call in one.calls if call.seq in ids]


def numels(dims: Any) -> list[int]:
    """Elements of each tensor in Kineto's nested "Input Dims"."""
    if any(isinstance(item, list) for item in dims):
        return [numel for item in dims for numel in numels(item)]
    product = 1
    for size in dims:
        product *= size
    return [product]


@pytest.mark.parametrize("rank", [0, 1])
def test_every_call_in_the_window_has_a_range_of_its_own_and_every_range_a_call(linked: Path, rank: int) -> None:
    one, calls = in_window(linked, rank)
    ranges = [event for event in raw_events(linked, rank) if event["name"].startswith(GLOO)]
    linked_calls = [call for call in one.calls if call.exec is not None]
    assert [call.seq for call in linked_calls] == [call.seq for call in calls]
    assert all(call.exec is not None and call.exec.evidence is Evidence.BACKEND for call in calls)
    assert len({(call.exec.lane, call.exec.begin_at_ns) for call in calls if call.exec}) == len(ranges) == len(calls)
    assert not [finding for finding in read_run(linked).findings if finding.code.startswith("exec-")]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_range_of_a_call_moved_as_many_elements_as_the_call(linked: Path, rank: int) -> None:
    run = read_run(linked)
    _, calls = in_window(linked, rank)
    witness = {event["unix_ns"]: event for event in raw_events(linked, rank) if event["name"].startswith(GLOO)}
    shift = _shift_ns(linked, rank, run.zero_unix_ns)
    sizes: Counter[int] = Counter()
    for call in calls:
        assert call.exec is not None
        event = witness[call.exec.begin_at_ns + shift]
        assert event["name"] == call.exec.name
        assert sum(numels(event["args"]["Input Dims"])) in {call.nbytes_in // 4, call.nbytes_out // 4}, call
        sizes[call.nbytes_in + call.nbytes_out] += 1
    assert sum(1 for count in sizes.values() if count == 1) > 70, "sizes no longer tell the calls apart"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_call_runs_after_its_launch_and_is_over_when_the_host_goes_on(linked: Path, rank: int) -> None:
    _, calls = in_window(linked, rank)
    for call in calls:
        assert call.exec is not None
        assert call.launch_at_ns <= call.exec.begin_at_ns < call.exec.end_at_ns
        assert all(call.exec.end_at_ns <= end for _, end in call.waits)


@pytest.mark.parametrize("rank", [0, 1])
def test_where_stamps_are_lost_fewer_calls_are_linked_but_none_otherwise(linked: Path, rank: int) -> None:
    one, calls = in_window(linked, rank)
    events, shift = read_kineto(window_file(linked, rank)), _shift_ns(linked, rank, read_run(linked).zero_unix_ns)
    stamped = [dataclasses.replace(call, done_at_ns=None if call.seq % 3 else call.done_at_ns) for call in one.calls]
    threads = {call.seq: _thread(call) for call in calls}
    joined = join_window(
        events, unix_to_at=lambda at: at - shift, calls=stamped, done_threads=threads,
        over_by=known_over_by(one.calls, one.phases), training_threads=frozenset(), where="",
    )  # fmt: skip
    truth = {call.seq: call.exec.begin_at_ns for call in calls if call.exec is not None}
    assert {seq: found.begin_at_ns for seq, found in joined.execs.items()}.items() <= truth.items()
    assert len(calls) // 3 < len(joined.execs)


def _thread(call: Call) -> int:
    """The system's id of the thread that a call's exec names: "thread 123 (pt_gloo_runloop)"."""
    return int(call.exec.lane.split()[1]) if call.exec is not None else 0


def _shift_ns(run: Path, rank: int, zero_unix_ns: int) -> int:
    """What turns the run's time into the file's: the one offset at which every exec begins where an event does."""
    _, calls = in_window(run, rank)
    begins = sorted(event["unix_ns"] for event in raw_events(run, rank) if event["name"].startswith(GLOO))
    found = sorted(call.exec.begin_at_ns for call in calls if call.exec is not None)
    (shift,) = {int(unix - at) for unix, at in zip(begins, found, strict=True)}
    assert abs(shift - zero_unix_ns) < 1_000_000_000
    return shift
