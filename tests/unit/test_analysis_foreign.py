"""Ranks that somebody else's profiler files were turned into: buckets by order, and sentences that fit them."""

from __future__ import annotations

from typing import Any

from analysis_records import (
    Piece,
    call,
    comm_piece,
    gpu_call,
    gpu_window,
    mark,
    rank,
    reducer,
    run,
    step,
)

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.findings import Finding
from ddptrace.load.tables import Group, RankRun
from ddptrace.schema import Phase, StepEnd

MS = 1_000_000


def bucket_call(seq: int, launch: int, nbytes: int, **fields: Any) -> Any:
    """A gradient all-reduce of DDP as a profiler shows it."""
    known = {"is_native": True, "reducer": 0, "nbytes_in": nbytes, "nbytes_out": nbytes}
    return gpu_call(seq, launch, (launch + 1, launch + 5), **(known | fields))


def trained(*sizes: tuple[int, ...], **fields: Any) -> RankRun:
    """One step with one backward for each tuple of all-reduces."""
    calls, phases, marks, seq = [], [], [], 0
    for k, those in enumerate(sizes):
        marks.append(step(k, 100 * k, 100 * k + 100, StepEnd.SAID))
        phases.append(mark(Phase.BACKWARD, 100 * k + 10, 100 * k + 90, k))
        for nth, nbytes in enumerate(those):
            seq += 1
            calls.append(bucket_call(seq, 100 * k + 20 + 5 * nth, nbytes))
    known: dict[str, Any] = {
        "steps": marks, "phases": phases, "calls": calls, "reducers": [reducer([], number=0)], "recorded": False,
    }  # fmt: skip
    return rank(0, **(known | fields))


def analyzed(*ranks: RankRun, world_size: int | None = None) -> Result:
    return analyze_run(run(*ranks, world_size=world_size))


def found(result: Result) -> dict[str, Finding]:
    return {finding.code: finding for finding in result.findings}


def test_all_reduces_of_a_backward_are_its_buckets_in_launch_order_and_other_sizes_another_layout() -> None:
    result = analyzed(trained((10, 400), (300, 110), (300, 110)))
    assert [(b.step, b.layout, b.index, b.nbytes) for b in result.buckets] == [
        (0, 0, 0, 10), (0, 0, 1, 400), (1, 1, 0, 300), (1, 1, 1, 110), (2, 1, 0, 300), (2, 1, 1, 110),
    ]  # fmt: skip
    assert {(b.identity, b.parameters, b.backward, b.ready_at_ns) for b in result.buckets} == {("order", (), 0, None)}
    assert [row.bucket for row in result.collectives] == [(0, b.layout, b.index) for b in result.buckets]
    finding = found(result)["buckets-by-order"]
    assert (finding.severity, finding.where) == ("info", "rank 0")
    assert "changed once" in finding.message
    assert "bucket-layout-unknown" not in found(result)


def test_what_else_ddp_sends_and_what_python_sends_are_no_buckets() -> None:
    calls = [
        bucket_call(1, 15, 4, op="broadcast"), bucket_call(2, 20, 8), gpu_call(3, 30, (31, 33)),
        bucket_call(4, 95, 8), bucket_call(5, 40, 16, reducer=None),
    ]  # fmt: skip
    result = analyzed(trained((), calls=calls))
    assert [b.seqs for b in result.buckets] == [(2,)]


def test_a_recorded_reducer_without_layouts_gets_no_buckets_by_order() -> None:
    result = analyzed(trained((10, 400), recorded=True))
    assert not result.buckets
    assert "bucket-layout-unknown" in found(result)


def test_buckets_of_a_foreign_gloo_run_are_exposed_and_charged_like_any() -> None:
    ran = [call(1, 20, ran=(21, 40), nbytes_in=8, is_native=True, reducer=0)]
    result = analyzed(trained((), calls=ran))
    assert [(b.comm_ns, b.evidence, b.identity) for b in result.buckets] == [(19, "backend", "order")]


def test_advice_for_somebody_elses_files_is_about_recording_them() -> None:
    unknown = rank(calls=[call(1, 0)], recorded=False)
    codes = found(analyzed(unknown, rank(1, recorded=False, calls=[call(1, 0)])))
    assert "prof.step()" in codes["no-steps"].message
    assert "ProfilerActivity" in codes["unknown-exec"].message
    by_backward = found(analyzed(rank(steps=[step(0, 0, 10, StepEnd.BACKWARD)], recorded=False)))
    assert "prof.step()" in by_backward["steps-by-backward"].message
    assert "ProfilerActivity.CUDA" in by_backward["no-communication"].message
    coarse = found(analyzed(rank(steps=[step(0, 0, 10)], calls=[call(1, 0)], recorded=False)))["coarse-compute"]
    assert "ProfilerActivity" in coarse.message
    for finding in (*codes.values(), *by_backward.values(), coarse):
        assert "t.step()" not in finding.message
        assert "profile=" not in finding.message


def test_one_file_of_a_run_of_unknown_size_is_not_called_a_run_of_one_rank() -> None:
    assert "add the files of the other ranks" in found(analyzed(trained((8,))))["single-rank"].message
    assert "Only one rank took part" in found(analyzed(trained((8,)), world_size=1))["single-rank"].message
    assert "single-rank" not in found(analyzed(trained((8,)), world_size=8))


def test_work_without_a_launch_is_counted_with_both_overlaps() -> None:
    work = gpu_window(0, 100, Piece(0, 20), Piece(40, 50, (30, 31)), comm_piece(10, 50, (5, 6)))
    finding = found(analyzed(rank(windows=[work], recorded=False)))["without-launch"]
    assert (finding.severity, finding.where) == ("info", "rank 0")
    assert "1 of 3 device events (33 %)" in finding.message
    assert "With them 50 % of the communication is hidden, without them 25 %" in finding.message
    complete = gpu_window(0, 100, Piece(40, 50, (30, 31)))
    assert "without-launch" not in found(analyzed(rank(windows=[complete], recorded=False)))


def test_launch_bound_steps_are_counted_with_the_time_lost_and_what_to_do() -> None:
    """The first step, which the start of the profiler holds up, does not count."""
    starved = [Piece(20 * MS, 40 * MS, (19 * MS, 20 * MS)), Piece(100 * MS, 110 * MS, (99 * MS, 100 * MS))]
    busy = [Piece(at * MS, (at + 10) * MS, ((at - 3) * MS, (at - 2) * MS)) for at in (110, 120, 130, 140)]
    steps = [step(0, 0, 10 * MS), step(1, 10 * MS, 105 * MS)]
    steps += [step(number, (85 + 10 * number) * MS, (95 + 10 * number) * MS) for number in (2, 3, 4, 5)]
    pieces = [Piece(1 * MS, 10 * MS, (0, 1 * MS)), *starved, *busy]
    one = rank(3, steps=steps, recorded=False, windows=[gpu_window(0, 200 * MS, *pieces)])
    finding = found(analyzed(one))["launch-bound"]
    assert (finding.severity, finding.where) == ("warning", "rank 3")
    assert finding.message.startswith("In 1 of 5 steps on rank 3")
    assert "70 %" in finding.message  # 10 before the first, 60 between, of 100
    assert "70.0 ms a step" in finding.message
    assert "gaps of at least 60.0 ms: look for what holds it there" in finding.message


def test_a_group_without_known_ranks_does_no_harm() -> None:
    result = analyzed(trained((8, 8), groups=[Group("0", (), "nccl", None)]))
    assert {row.group_size for row in result.collectives} == {None}
