"""What the test device does, and what ddptrace makes of its profiler files, held against its ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.schema import Evidence
from tests.device.conftest import RunProgram
from tests.device.launch import PROGRAMS
from tests.device.truth import PARTS, WORK, Json, ns_of, parts, told_by
from tests.launch import ROOT, environment

RANKS = 2
BUCKETS, ACTIVE = 4, 4
LONG_NS = 500_000_000


@pytest.fixture(scope="module")
def alone(on_device: RunProgram, tmp_path_factory: pytest.TempPathFactory) -> Json:
    told = tmp_path_factory.mktemp("alone") / "told.json"
    on_device("alone.py", told, ranks=1)
    found: Json = json.loads(told.read_text())
    return found


@pytest.fixture(scope="module", params=["stock", "own"])
def ddp(on_device: RunProgram, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    out = tmp_path_factory.mktemp(request.param)
    on_device("ddp.py", out, request.param, ranks=RANKS)
    return out


@pytest.fixture(scope="module")
def result(ddp: Path) -> Result:
    return ddptrace.analyze([ddp / f"rank-{rank}.json" for rank in range(RANKS)], align=False)


@pytest.fixture(scope="module", params=["stock", "own"])
def recorded(on_device: RunProgram, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """`run/` and what the program told."""
    out = tmp_path_factory.mktemp(f"recorded-{request.param}")
    on_device("recorded.py", out / "run", out, request.param, ranks=RANKS)
    return out


def test_launches_return_before_the_work_is_done_and_item_after_it(alone: Json) -> None:
    assert alone["until_item_ns"] >= LONG_NS and alone["total"] == 8.0
    spent = next(entry for entry in alone["ledger"] if entry["name"] == "spend_kernel")
    later = [entry for entry in alone["ledger"] if entry["stream"] == spent["stream"] and entry["kind"] == "kernel"]
    launched = [entry["launched_ns"] < spent["end_ns"] <= entry["begin_ns"] for entry in later[1:3]]
    assert launched == [True, True]  # in the queue behind it


def test_events_order_streams_and_tell_the_time_between_them(alone: Json) -> None:
    assert not alone["done_at_once"] and alone["waited"] == [6.0] * 4
    on_side = [entry for entry in alone["ledger"] if entry["stream"] == alone["side"]]
    assert [entry["kind"] for entry in on_side] == ["event", "kernel", "kernel", "event"]
    first, *_, last = on_side
    assert round(alone["elapsed_ms"] * 1e6) == last["begin_ns"] - first["begin_ns"] >= LONG_NS
    (wait,) = [entry for entry in alone["ledger"] if entry["kind"] == "wait"]
    assert wait["end_ns"] >= last["begin_ns"] and wait["stream"] != alone["side"]


def test_a_missed_wait_and_a_failed_kernel_show(alone: Json) -> None:
    assert alone["missed"] == [0.0] * 4
    assert "index out of range" in alone["error"]


def test_what_a_stream_does_never_overlaps(alone: Json) -> None:
    for stream in {entry["stream"] for entry in alone["ledger"]}:
        mine = [entry for entry in alone["ledger"] if entry["stream"] == stream]
        assert all(entry["launched_ns"] <= entry["begin_ns"] <= entry["end_ns"] for entry in mine)
        assert all(one["end_ns"] <= other["begin_ns"] for one, other in pairwise(mine))


def test_ddp_trains_as_on_the_cpu(ddp: Path) -> None:
    for rank in range(RANKS):
        told = told_by(ddp, rank)
        assert told["losses"] == pytest.approx(told["losses_on_cpu"], rel=1e-5)
        assert len(set(told["losses"])) == len(told["losses"])


@pytest.mark.parametrize("rank", range(RANKS))
def test_the_profilers_file_is_the_ledger_to_the_nanosecond(ddp: Path, rank: int) -> None:
    file = json.loads((ddp / f"rank-{rank}.json").read_text())
    zero_ns = file["baseTimeNanoseconds"]
    events = [event for event in file["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy")]
    in_file = {
        (one["args"]["correlation"], one["name"], one["tid"], zero_ns + ns_of(one["ts"]), ns_of(one["dur"]))
        for one in events
    }
    ledger = [entry for entry in told_by(ddp, rank)["ledger"] if entry["kind"] in WORK]
    in_ledger = {
        (one["correlation"], one["name"], one["stream"], one["begin_ns"], one["end_ns"] - one["begin_ns"])
        for one in ledger
    }
    assert in_file == in_ledger and len(events) == len(ledger) > ACTIVE * BUCKETS
    launches = {
        event["args"]["correlation"] for event in file["traceEvents"] if event.get("cat") == "privateuse1_runtime"
    }
    assert {correlation for correlation, *_ in in_file} <= launches


@pytest.mark.parametrize("rank", range(RANKS))
def test_where_each_steps_time_went_is_what_the_ledger_says(ddp: Path, result: Result, rank: int) -> None:
    told = told_by(ddp, rank)
    rows = [row for row in result.steps if row.rank == rank]
    assert len(rows) == ACTIVE
    assert [parts_told(row) for row in rows[1:]] == parts_by_step(told["ledger"], told["ends_ns"])


@pytest.mark.parametrize("rank", range(RANKS))
def test_every_collective_is_joined_to_its_own_kernel(ddp: Path, result: Result, rank: int) -> None:
    kernels = [entry for entry in told_by(ddp, rank)["ledger"] if entry["kind"] == "collective"]
    rows = [row for row in result.collectives if row.rank == rank]
    assert [row.comm_ns for row in rows] == [one["end_ns"] - one["begin_ns"] for one in kernels]
    assert len(kernels) >= ACTIVE * BUCKETS and {row.evidence for row in rows} == {Evidence.DEVICE}


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_file_of_the_profiler_alone_shows_every_bucket(ddp: Path, result: Result, rank: int) -> None:
    """In launch order, each with the times of its kernel, whichever wrapper reduced the gradients."""
    kernels = [entry for entry in told_by(ddp, rank)["ledger"] if entry["kind"] == "collective"]
    rows = [row for row in result.buckets if row.rank == rank]
    assert len(rows) == ACTIVE * BUCKETS
    times = [(row.comm_ns, row.evidence) for row in rows]
    assert times == [(one["end_ns"] - one["begin_ns"], Evidence.DEVICE) for one in kernels[-len(rows) :]]


def test_a_trace_changes_no_loss(recorded: Path) -> None:
    for rank in range(RANKS):
        told = told_by(recorded, rank)
        assert told["losses"] == told["untraced"]


@pytest.mark.parametrize("rank", range(RANKS))
def test_the_windows_of_a_recorded_run_are_the_ledger_too(recorded: Path, rank: int) -> None:
    """Each bucket has the times of its own kernel, and each step the parts that the ledger gives."""
    result = ddptrace.analyze(recorded / "run", align=False)
    steps = [row for row in result.steps if row.rank == rank and row.profiled]
    profiled = {row.step for row in steps}
    ledger = told_by(recorded, rank)["ledger"]
    buckets = [row for row in result.buckets if row.rank == rank]
    kernels = [entry for entry in ledger if entry["name"].startswith("ncclDevKernel_AllReduce")]
    of_buckets = kernels[-len(buckets) :]  # our reducer has one before, with which its ranks agree on the buckets
    joined = [pair for pair in zip(buckets, of_buckets, strict=True) if pair[0].step in profiled]
    assert len(steps) >= 2 and len(joined) == len(steps) * BUCKETS
    zeros_ns = set()
    for row, kernel in joined:
        assert row.evidence is Evidence.DEVICE and row.exec_start_at_ns is not None
        assert row.comm_ns == kernel["end_ns"] - kernel["begin_ns"]
        zeros_ns.add(kernel["begin_ns"] - row.exec_start_at_ns)
    (zero_ns,) = zeros_ns  # all on one clock
    expected = parts_by_step(ledger, [zero_ns + row.end_at_ns for row in steps])
    assert [parts_told(row) for row in steps[1:]] == expected


def parts_told(row: StepRow) -> dict[str, int | None]:
    return {name: getattr(row, name) for name in PARTS}


def parts_by_step(ledger: list[Json], ends_ns: list[int]) -> list[dict[str, int]]:
    """Return the parts of every step but the first. `ends_ns`: when each was over on the host. On the device it is over
    with the last work that the host launched before."""
    work = [entry for entry in ledger if entry["kind"] in WORK]
    over = [max(one["end_ns"] for one in work if one["launched_ns"] < end) for end in ends_ns]
    found = [parts(work, begin, end) for begin, end in pairwise(over)]
    assert all(0 < one["hidden_ns"] < one["comm_ns"] for one in found)  # else this compares little
    return found


def test_a_profiler_of_ddptrace_sees_a_device_that_the_program_registers_later(tmp_path: Path) -> None:
    """As under `ddptrace run`, which makes it before the program imports what registers the device."""
    file = tmp_path / "rank-0.json"
    command = [sys.executable, PROGRAMS / "imported_late.py", file]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert any(event.get("cat") == "kernel" for event in json.loads(file.read_text())["traceEvents"])
