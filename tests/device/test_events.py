"""Timing of a device by events, without a profiler, held against the ledger of the test device."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.load.run import read_run
from ddptrace.load.tables import RankRun, Run
from ddptrace.schema import DeviceMark, Evidence
from tests.device.conftest import RunProgram
from tests.device.device import HERE
from tests.device.truth import PARTS, WORK, parts, told_by

Json = dict[str, Any]

pytestmark = pytest.mark.skipif(not HERE.has_ledger, reason="events are held against the ledger")

RANKS, STEPS, BUCKETS = 2, 12, 4
MARKS_PER_STEP = 7
CLOCK_PAIR_NS = 10_000  # of the pair that ties the host's clock to Unix time, which the ledger has
OFF_MAX_RATIO = 0.02  # of a step
FIRST_STEADY = 2  # DDP rebuilds its buckets in step 1, and waits on the host for the ranks to agree


@pytest.fixture(scope="module", params=["stock", "own"])
def out(on_device: RunProgram, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """`run/` and what the program told."""
    out = tmp_path_factory.mktemp(f"events-{request.param}")
    on_device("events.py", out / "run", out, request.param, ranks=RANKS)
    return out


@pytest.fixture(scope="module")
def run(out: Path) -> Run:
    return read_run(out / "run")


@pytest.fixture(scope="module")
def result(out: Path) -> Result:
    return ddptrace.analyze(out / "run", align=False)


def rank_of(run: Run, rank: int) -> RankRun:
    return next(one for one in run.ranks if one.rank == rank)


def work_of(out: Path, rank: int) -> list[Json]:
    return [entry for entry in told_by(out, rank)["ledger"] if entry["kind"] in WORK]


def woke_late_ns(ledger: list[Json], begin: int, end: int) -> int:
    """Return how much later than the collectives of a stretch the stream went on that waits for each of them: on a busy
    machine its thread gets no processor at once."""
    streams = {entry["stream"] for entry in ledger}
    kinds = {stream: {entry["kind"] for entry in ledger if entry["stream"] == stream} for stream in streams}
    (waiting,) = [stream for stream, those in kinds.items() if those == {"wait", "event"}]
    waits = [entry for entry in ledger if entry["stream"] == waiting and entry["kind"] == "wait"]
    collectives = [entry for entry in ledger if entry["kind"] == "collective"][-len(waits) :]
    pairs = zip(collectives, waits, strict=True)
    return sum(wait["end_ns"] - one["end_ns"] for one, wait in pairs if begin <= one["begin_ns"] < end)


def gaps_ns(ledger: list[Json], begin: int, end: int) -> int:
    """Return how long the compute stream neither worked nor waited for an event: it had nothing to do, or its thread no
    processor."""
    mine = sorted((one["begin_ns"], one["end_ns"]) for one in ledger if one["stream"] == 0)
    reached, gaps = begin, 0
    for began, ended in mine:
        gaps += max(0, min(began, end) - reached)
        reached = max(reached, ended)
    return gaps + max(0, end - reached)


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_trace_changes_no_loss(out: Path, rank: int) -> None:
    told = told_by(out, rank)
    assert told["losses"] == told["untraced"]


@pytest.mark.parametrize("rank", range(RANKS))
def test_the_host_waits_for_the_device_as_often_as_without_a_trace(out: Path, rank: int) -> None:
    told = told_by(out, rank)
    assert told["waits"] == told["waits_untraced"] > 0


@pytest.mark.parametrize("rank", range(RANKS))
def test_marks_are_where_the_ledger_has_their_events_within_the_stated_error(out: Path, run: Run, rank: int) -> None:
    events = rank_of(run, rank).device_events
    assert events is not None and events.device == "testdev:0"
    assert len(events.mark) == MARKS_PER_STEP * STEPS and DeviceMark.UNTIMED not in events.mark
    of_compute = [entry for entry in told_by(out, rank)["ledger"] if entry["kind"] == "event" and entry["stream"] == 0]
    launched, at = (np.array([entry[key] for entry in of_compute]) for key in ("launched_ns", "begin_ns"))
    last_before = np.searchsorted(launched - run.zero_unix_ns, events.placed_at_ns + CLOCK_PAIR_NS) - 1
    nearest = [
        min(abs(at[near] - run.zero_unix_ns - told) for near in range(max(0, nth - 1), nth + 1))
        for nth, told in zip(last_before, events.at_ns, strict=True)
    ]
    assert max(nearest) <= events.error_ns + CLOCK_PAIR_NS


@pytest.mark.parametrize("rank", range(RANKS))
def test_collectives_end_no_earlier_than_in_the_ledger_and_take_as_long(out: Path, run: Run, rank: int) -> None:
    calls = [call for call in rank_of(run, rank).calls if call.events is not None]
    kernels = [entry for entry in work_of(out, rank) if entry["kind"] == "collective"][-len(calls) :]
    assert len(calls) >= STEPS * BUCKETS - BUCKETS
    late = []
    for call, kernel in zip(calls, kernels, strict=True):
        assert call.events is not None and call.events.duration_ns is not None
        took_ns = kernel["end_ns"] - kernel["begin_ns"]
        half_a_digit_ns = float(np.spacing(np.float32(took_ns / 1e6))) / 2 * 1e6  # of a single-precision number of ms
        assert abs(call.events.duration_ns - took_ns) <= half_a_digit_ns + 1
        late.append(call.events.end_at_ns - (kernel["end_ns"] - run.zero_unix_ns))
        assert late[-1] >= -call.events.error_ns - CLOCK_PAIR_NS
        assert call.events.ready_at_ns <= call.events.end_at_ns
    assert np.median(late) < 2_000_000  # of a thread that wakes up on a busy machine


@pytest.mark.parametrize("rank", range(RANKS))
def test_each_step_has_the_parts_of_the_ledger(out: Path, run: Run, result: Result, rank: int) -> None:
    """Events tell nothing of gaps between the kernels of a phase: they may be off by these as well, and by what the
    device itself was late."""
    rows = [row for row in result.steps if row.rank == rank]
    ledger = told_by(out, rank)["ledger"]
    work = work_of(out, rank)
    over = [
        max(
            one["end_ns"]
            for one in work
            if one["stream"] == 0 and one["launched_ns"] < run.zero_unix_ns + row.end_at_ns
        )
        for row in rows
    ]
    assert len(rows) == STEPS and not any(row.profiled for row in rows)
    for row, (begin, end) in list(zip(rows[1:], pairwise(over), strict=True))[FIRST_STEADY - 1 :]:
        true, least = parts(work, begin, end), OFF_MAX_RATIO * (end - begin)
        most = least + gaps_ns(ledger, begin, end) + woke_late_ns(ledger, begin, end)
        assert row.evidence is Evidence.EVENT
        assert all(abs((getattr(row, part) or 0) - true[part]) <= most for part in PARTS), (row, true)
        assert abs(row.window_ns - (end - begin)) <= least
        assert true["hidden_ns"] and true["exposed_comm_ns"]  # else this compares little


@pytest.mark.parametrize("rank", range(RANKS))
def test_the_parts_of_each_step_and_of_its_buckets_add_up(result: Result, rank: int) -> None:
    steps = [row for row in result.steps if row.rank == rank and row.is_seen]
    assert len(steps) >= STEPS - 1  # the first one has collectives before the device is known
    for step in steps:
        assert step.compute_ns is not None and step.exposed_comm_ns is not None and step.idle_ns is not None
        assert step.compute_ns + step.exposed_comm_ns + step.idle_ns == step.window_ns
    buckets = [row for row in result.buckets if row.rank == rank and (row.step or 0) >= FIRST_STEADY]
    assert len(buckets) == (STEPS - FIRST_STEADY) * BUCKETS
    for bucket in buckets:
        assert bucket.evidence is Evidence.EVENT
        assert bucket.hidden_ns is not None and bucket.exposed_ns is not None
        assert bucket.hidden_ns + bucket.exposed_ns == bucket.comm_ns


@pytest.mark.parametrize("rank", range(RANKS))
def test_each_bucket_is_hidden_as_far_as_kernels_ran_beside_it(out: Path, run: Run, result: Result, rank: int) -> None:
    rows = [row for row in result.buckets if row.rank == rank]
    ledger = told_by(out, rank)["ledger"]
    work = work_of(out, rank)
    kernels = [entry for entry in work if entry["name"].startswith("ncclDevKernel_AllReduce")][-len(rows) :]
    steps = {row.step: row for row in result.steps if row.rank == rank}
    for row, kernel in zip(rows, kernels, strict=True):
        if (row.step or 0) < FIRST_STEADY:
            continue
        true = parts(work, kernel["begin_ns"], kernel["end_ns"])
        assert row.hidden_ns is not None and row.step is not None
        span = kernel["begin_ns"], kernel["end_ns"]
        most = OFF_MAX_RATIO * steps[row.step].window_ns + gaps_ns(ledger, *span) + woke_late_ns(ledger, *span)
        assert abs(row.hidden_ns - true["hidden_ns"]) <= most


def test_nothing_is_said_to_be_unseen(result: Result) -> None:
    codes = {finding.code for finding in result.findings}
    assert not codes & {"device-unseen", "unknown-exec", "device-events-lost", "surface-failed"}


@pytest.mark.parametrize("wrapper", ["stock", "own"])
def test_nothing_waits_for_a_device_that_is_far_behind_or_never_ends(
    on_device: RunProgram, tmp_path: Path, wrapper: str
) -> None:
    """All steps are launched while the first kernel of the compute stream still runs; and a stream of the program never
    ends, which costs no step and leaves a finding."""
    on_device("held_up.py", tmp_path / "run", tmp_path, wrapper, ranks=RANKS)
    result = ddptrace.analyze(tmp_path / "run", align=False)
    for rank in range(RANKS):
        told = told_by(tmp_path, rank)
        assert told["launched_ns"] < told["held_until_ns"] and told["waits"] == []
        assert told["left_ns"] < told["held_until_ns"]  # the trace did not wait for it either
        assert len([row for row in result.steps if row.rank == rank]) == told["steps"]
    assert "device-events-lost" in {finding.code for finding in result.findings}
