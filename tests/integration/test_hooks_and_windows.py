"""The program's own communication hook and its own profiler."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.load.run import read_run
from tests.launch import torchrun
from tests.programs.hooked import HOST_S

STEPS = 8


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Result:
    path = tmp_path_factory.mktemp("hooked") / "run"
    torchrun("hooked.py", path)
    return ddptrace.analyze(path)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    torchrun("hooked.py", folder / "run", "--own-profiler", folder / "theirs")
    return folder


def test_the_hooks_own_time_is_told_apart_from_the_collective_it_issues(hooked: Result) -> None:
    calls = {(row.rank, row.seq): row for row in hooked.collectives if row.part == 0}
    comm_ns: Counter[tuple[int, int]] = Counter()
    for part in hooked.collectives:  # one that ends late is divided where the step ends
        comm_ns[part.rank, part.seq] += part.comm_ns or 0
    assert {(row.rank, row.step) for row in hooked.buckets} == {
        (rank, step) for rank in (0, 1) for step in range(STEPS)
    }
    for row in hooked.buckets:
        (seq,) = row.seqs
        call = calls[row.rank, seq]
        assert row.hook == "slow_to_send"
        assert row.hook_ns is not None
        assert row.hook_ns >= HOST_S * 1e9
        assert call.op == "all_reduce"
        assert row.launch_at_ns == call.launch_at_ns
        assert row.nbytes == call.nbytes
        assert row.comm_ns == comm_ns[row.rank, seq]
        assert row.ready_at_ns is not None
        assert row.launch_at_ns - row.ready_at_ns >= HOST_S * 1e9, "the hook's work precedes the launch"
        assert row.parameters


def test_the_programs_own_profiler_gives_the_windows_and_keeps_its_files(own: Path) -> None:
    run = read_run(own / "run")
    assert [len(rank.windows) for rank in run.ranks] == [2, 2]
    assert len(list((own / "theirs").glob("*.json"))) == 4, "the program's own files are where it wanted them"
    result = ddptrace.analyze(own / "run")
    for rank in (0, 1):
        assert [row.step for row in result.steps if row.rank == rank and row.profiled] == [2, 3, 6, 7]
    profiled = {(row.rank, row.step) for row in result.steps if row.profiled}
    assert {row.evidence for row in result.buckets if (row.rank, row.step) in profiled} == {"backend"}


def test_compute_of_a_profiled_step_is_the_union_that_a_plain_program_reads_off_the_file(own: Path) -> None:
    result = ddptrace.analyze(own / "run")
    for rank in (0, 1):
        with gzip.open(own / "run" / f"rank-{rank:05d}" / "kineto-user-0.json.gz") as file:
            events = json.load(file)
        spans = operator_spans(events, pid=result.ranks[rank].pid)
        for step in (row for row in result.steps if row.rank == rank and row.step in (2, 3)):
            begin, end = (result.zero_unix_ns + at for at in (step.begin_at_ns, step.end_at_ns))
            witness = sum(max(0, min(e, end) - max(b, begin)) for b, e in spans)
            assert witness > 1e6
            assert step.compute_ns == pytest.approx(witness, rel=0.02)


def operator_spans(file: dict[str, Any], pid: int) -> list[tuple[float, float]]:
    """Union of all `aten::` operators of the main thread, in Unix ns: loops and sorted lists, nothing of ddptrace's."""
    base = file["baseTimeNanoseconds"]
    spans = sorted(
        (base + event["ts"] * 1000, base + (event["ts"] + event["dur"]) * 1000)
        for event in file["traceEvents"]
        if event.get("cat") == "cpu_op" and event["name"].startswith("aten::") and event["tid"] == pid
    )
    merged: list[tuple[float, float]] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


@pytest.mark.parametrize("started", ["before the trace", "inside a window"])
def test_a_profiler_of_the_programs_and_a_window_of_ours_do_not_meet(started: str, tmp_path: Path) -> None:
    model = nn.Linear(64, 64)
    theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=4)

    def train(steps: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()

    if started == "before the trace":
        with theirs, ddptrace.trace(tmp_path / "run", profile=schedule):
            train(8)
    else:
        with ddptrace.trace(tmp_path / "run", profile=schedule):
            train(4)
            with theirs:
                train(2)
            train(4)
    assert any("mm" in event.name for event in theirs.events()), "the program has its profile"
    result = ddptrace.analyze(tmp_path / "run")
    assert len(result.steps) in (8, 10)
    assert "profiler-gave-way" in {finding.code for finding in result.findings}


@pytest.mark.parametrize("begun", ["made", "started", "stopped"])
def test_a_profiler_from_before_the_trace_gives_the_window_that_lies_in_the_trace(begun: str, tmp_path: Path) -> None:
    """torch.profiler.profile binds its own methods when it is made."""
    model = nn.Linear(8, 8)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    if begun != "made":
        profiler.start()
    if begun == "stopped":
        profiler.stop()
    with ddptrace.trace(tmp_path / "run"):
        if begun == "made":
            profiler.start()
        model(torch.randn(2, 8)).sum().backward()
        if begun != "stopped":
            profiler.stop()
        profiler.export_chrome_trace(str(tmp_path / "theirs.json"))
    assert (tmp_path / "theirs.json").exists()
    [rank] = read_run(tmp_path / "run").ranks
    kept = list((tmp_path / "run" / "rank-00000").glob("kineto*"))
    if begun == "stopped":
        assert (list(rank.windows), kept) == ([], [])
        return
    [window] = rank.windows
    assert [file.name for file in kept] == [window.file]
    forward, backward = rank.phases
    second_ns = 10**9
    assert forward.begin_at_ns - 10 * second_ns < window.begin_at_ns < forward.begin_at_ns
    assert backward.end_at_ns < window.end_at_ns < backward.end_at_ns + 10 * second_ns
