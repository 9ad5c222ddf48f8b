"""Many ranks in one merged trace: the real Perfetto takes it, and has the arrows that the recorded bytes call for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from benchmarks.ranks_replicate import replicate
from ddptrace.analysis.result import Result
from ddptrace.record import RecordReader
from ddptrace.render.report import write_report
from ddptrace.render.terminal import summary_text
from ddptrace.render.trace.chrome import write_trace
from ddptrace.schema import Kind
from tests.conftest import Record
from tests.perfetto import ask, check

ARROWS = """
    select from_rank.pid - 1, to_rank.pid - 1, a.ts + a.dur, b.ts
    from flow join slice a on slice_out = a.id join slice b on slice_in = b.id
    join thread_track at on a.track_id = at.id join thread af using (utid) join process from_rank using (upid)
    join thread_track bt on b.track_id = bt.id join thread bf on bt.utid = bf.utid
    join process to_rank on bf.upid = to_rank.upid
    where a.category = 'arrival' order by 3, 2
"""
LAUNCHES = "select count(*) from flow join slice a on slice_out = a.id where a.category = 'bucket.queue'"
ENDS_LATE = """
    select count(*) from slice child join slice on child.parent_id = slice.id
    where child.ts + child.dur > slice.ts + slice.dur
"""
PROCESSES = "select pid, name from process where pid > 0 order by pid"


@pytest.fixture(scope="module")
def recorded(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("merged") / "run", "ddp.py")


@pytest.fixture(scope="module")
def eight(recorded: Path) -> Path:
    """The run of two ranks as one of eight."""
    replicate(recorded, recorded.with_name("eight"), 8)
    return recorded.with_name("eight")


def all_reduces(run: Path, rank: int) -> dict[int, int]:
    """By seq, when each was called that told of its completion, in Unix time by the rank's first look at both clocks:
    straight from its records. Of a broadcast nobody but the root is waited for."""
    records = RecordReader(run / f"rank-{rank:05d}").read()
    calls, done, looks = (records.events[records.events["kind"] == kind] for kind in (Kind.CALL, Kind.DONE, Kind.CLOCK))
    tie, over = int(looks["a"][0]) - int(looks["begin"][0]), set(done["a"].tolist())
    ops = {number: text for number, text in records.strings.items() if text.startswith("all_reduce")}
    return {
        int(call["a"]): int(call["begin"]) + tie
        for call in calls
        if int(call["name"]) in ops and int(call["a"]) in over
    }


def test_the_last_of_eight_ranks_has_an_arrow_to_each_of_the_others_in_every_collective(
    eight: Path, tmp_path: Path
) -> None:
    # GIVEN a run of 8 ranks, one bucket in the first of its 6 steps and then three
    called = [all_reduces(eight, rank) for rank in range(8)]
    assert [len(calls) for calls in called] == [1 + 5 * 3] * 8
    result = ddptrace.analyze(eight)
    # AND of each the rank that called last, of equal ones the first: all others wait for it whose execution is seen to
    # take time
    at_once = {(row.rank, row.seq) for row in result.collectives if row.exec_start_at_ns == row.exec_end_at_ns}
    wanted = []
    for seq in called[0]:
        last = max(range(8), key=lambda rank, seq=seq: (called[rank][seq], -rank))  # type: ignore[misc]
        wanted += [[last, rank] for rank in range(8) if rank != last and (rank, seq) not in at_once]
    trace = write_trace(result, tmp_path / "trace.json.gz")
    # WHEN Perfetto is asked
    answers = ask(trace, arrows=ARROWS, launches=LAUNCHES, late=ENDS_LATE, processes=PROCESSES)
    # THEN there is an arrow from that rank to each other one, in each, none back in time
    assert [row[:2] for row in answers["arrows"]] == wanted
    assert all(left <= came for _, _, left, came in answers["arrows"])
    assert len(wanted) > 15 * 7 and len({last for last, _ in wanted}) > 1
    # AND one for each launch of a bucket, no import error, nothing that outlives what it is in
    assert answers["launches"] == [[len(result.buckets)]] == [[8 * (1 + 5 * 3)]]
    assert answers["late"] == [[0]]
    assert [name for _, name in answers["processes"]] == [*(f"node0 · rank {k}" for k in range(8)), "critical path"]
    assert "import errors: []" in check(trace, slices=8 * 16, flows=len(wanted) + 8 * 16)


@pytest.fixture(scope="module")
def dlrm(shared_traces: Path) -> Result:
    return ddptrace.analyze(shared_traces / "dlrm-8ranks")


def kernels(folder: Path) -> dict[int, list[tuple[int, int]]]:
    """Begin and end of each communication kernel, in whole µs, by rank, straight from the files."""
    found = {}
    for file in folder.glob("*.gz"):
        told: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
        spans = [
            (event["ts"], event["ts"] + event["dur"])
            for event in told["traceEvents"]
            if event.get("cat") == "kernel" and event["name"].startswith("nccl")
        ]
        found[told["distributedInfo"]["rank"]] = sorted(spans)
    return found


def test_eight_gpus_have_the_arrows_that_their_files_call_for(
    dlrm: Result, shared_traces: Path, tmp_path: Path
) -> None:
    # GIVEN when each of the 8 x 8 kernels began, as the files have it
    by_rank = kernels(shared_traces / "dlrm-8ranks")
    assert {rank: len(spans) for rank, spans in by_rank.items()} == dict.fromkeys(range(8), 8)
    wanted = []
    for nth in range(8):
        last = max(range(8), key=lambda rank: by_rank[rank][nth][0])
        begin = by_rank[last][nth][0]
        wanted += [[last, rank] for rank in range(8) if rank != last and by_rank[rank][nth][1] > begin]
    # THEN each has an arrow from the last to begin to all that had not ended by then, which are all
    answers = ask(write_trace(dlrm, tmp_path / "trace.json.gz"), arrows=ARROWS, late=ENDS_LATE)
    assert [row[:2] for row in answers["arrows"]] == wanted
    assert len(wanted) == 8 * 7
    assert answers["late"] == [[0]]


def test_it_is_said_that_both_estimates_of_eight_gpus_agree(dlrm: Result, tmp_path: Path) -> None:
    assert (len(dlrm.matches), len(dlrm.arrivals)) == (8, 8 * 8)
    waits = [(row.wait_ns, row.transfer_ns, row.free_wait_ns, row.free_transfer_ns) for row in dlrm.arrivals]
    assert all(None not in row for row in waits)
    assert "both estimates of transfer agree in 8 of 8" in " ".join(summary_text(dlrm).split())
    report = write_report(dlrm, tmp_path / "report.html").read_text("utf-8")
    assert "Both estimates of the transfer agree in 8 of 8 collectives." in report
