"""What copies cost: exposed time, bytes, and the host held by copies of memory that is not pinned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from foreign_files import MAIN, Event, event, kernel, launch, op, said, write

import ddptrace
from ddptrace.analysis.device.digest import copies
from ddptrace.analysis.result import Result

PAGEABLE, PINNED = "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"
BACK = "Memcpy DtoH (Device -> Pageable)"


def copied(
    nth: int, name: str, call: tuple[float, float], runs: tuple[float, float], nbytes: int | None = 4096
) -> list[Event]:
    """The host's call, and the copy on a separate stream."""
    told = {} if nbytes is None else {"bytes": nbytes}
    return [
        event("cuda_runtime", "cudaMemcpyAsync", MAIN, *call, correlation=nth),
        event("gpu_memcpy", name, 20, *runs, pid=0, correlation=nth, **told),
    ]


def analyzed(folder: Path, *events: Event | list[Event]) -> Result:
    flat = [one for some in events for one in (some if isinstance(some, list) else [some])]
    return ddptrace.analyze(write(folder / "rank-0.json", flat), jobs=1)


def steps(count: int, inner: Sequence[Event | list[Event]] = ()) -> list[Event | list[Event]]:
    return [*(said(f"ProfilerStep#{nth}", 100 * nth, 100 * nth + 100) for nth in range(count)), *inner]


def codes(result: Result) -> set[str]:
    return {finding.code for finding in result.findings}


def test_exposed_is_what_no_kernel_covers_and_blocked_what_the_host_was_in(tmp_path: Path) -> None:
    result = analyzed(
        tmp_path,
        *steps(1),
        launch(1, 2, 4),
        kernel("gemm", 1, 5, 30),
        op("aten::to", 9, 61),
        copied(2, PAGEABLE, (10, 60), (20, 55)),
        launch(3, 70, 72),
        kernel("gemm", 3, 80, 95),
    )
    [row] = [row for row in result.copies if row.step == 0]
    assert (row.name, row.pageable, row.events, row.nbytes, row.copy_ns) == (PAGEABLE, True, 1, 4096, 35_000)
    assert row.exposed_ns == 25_000  # from 30 to 55
    assert row.blocked_ns == 50_000
    assert row.blocked_idle_ns == 5_000  # from 55 to 60
    assert row.nbytes_per_s == pytest.approx(4096 / 35e-6)
    [whole] = [row for row in result.copies if row.step is None]
    assert (whole.copy_ns, whole.exposed_ns, whole.blocked_ns) == (35_000, 25_000, 50_000)


def test_pinned_memory_holds_nobody_and_bytes_may_be_untold(tmp_path: Path) -> None:
    result = analyzed(
        tmp_path, *steps(1), copied(2, PINNED, (10, 12), (20, 55), None), launch(3, 70, 72), kernel("gemm", 3, 80, 95)
    )
    [row] = [row for row in result.copies if row.step == 0]
    assert (row.pageable, row.blocked_ns, row.blocked_idle_ns) == (False, 0, 0)
    assert row.nbytes is None and row.nbytes_per_s is None and row.exposed_ns == 35_000


def test_a_file_without_copies_has_none(tmp_path: Path) -> None:
    result = analyzed(tmp_path, *steps(1), launch(3, 70, 72), kernel("gemm", 3, 80, 95))
    assert not result.copies and not copies(result)
    assert not codes(result) & {"blocking-copies", "exposed-copies"}


def test_blocked_in_a_read_back_while_the_device_is_idle_is_said_and_not_called_unknown(tmp_path: Path) -> None:
    """The copy is launched and waits, and nothing runs: so the device is idle with work queued."""
    inner: list[Event | list[Event]] = []
    for nth in range(3):
        at = 100 * nth
        inner += [
            launch(4 * nth + 1, at + 2, at + 4),
            kernel("gemm", 4 * nth + 1, at + 5, at + 20),
            op("aten::to", at + 9, at + 81),
            copied(4 * nth + 2, BACK, (at + 10, at + 80), (at + 78, at + 79), 8),
            launch(4 * nth + 3, at + 82, at + 84),
            kernel("gemm", 4 * nth + 3, at + 85, at + 99),
        ]
    result = analyzed(tmp_path, *steps(3, inner))
    [finding] = [finding for finding in result.findings if finding.code == "blocking-copies"]
    assert "70.0 µs" in finding.message and "cudaMemcpyAsync in aten::to" in finding.message
    assert "pinned memory with non_blocking=True" in finding.message
    assert "idle-while-queued" not in codes(result)


def test_pageable_input_is_told_to_be_pinned(tmp_path: Path) -> None:
    inner: list[Event | list[Event]] = []
    for nth in range(3):
        at = 100 * nth
        inner += [
            copied(4 * nth + 2, PAGEABLE, (at + 2, at + 60), (at + 50, at + 59), 8),
            launch(4 * nth + 3, at + 62, at + 64),
            kernel("gemm", 4 * nth + 3, at + 65, at + 99),
        ]
    result = analyzed(tmp_path, *steps(3, inner))
    [finding] = [finding for finding in result.findings if finding.code == "blocking-copies"]
    assert "pin_memory=True" in finding.message and "wait" not in finding.message


def test_a_host_that_reads_back_while_the_device_computes_loses_nothing(tmp_path: Path) -> None:
    inner = [
        launch(1, 2, 4),
        kernel("gemm", 1, 5, 85),
        copied(2, BACK, (10, 90), (85, 89), 8),
        launch(3, 90, 91),
        kernel("gemm", 3, 92, 99),
    ]
    result = analyzed(tmp_path, *steps(1, inner))
    [row] = [row for row in result.copies if row.step == 0]
    assert row.blocked_ns == 80_000 and row.blocked_idle_ns == 1_000
    assert "blocking-copies" not in codes(result)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (PINNED, "separate stream"),
        (PAGEABLE, "pin_memory=True"),
        ("Memcpy DtoD (Device -> Device)", "contiguous"),
    ],
)
def test_copies_that_take_a_part_of_the_step_are_a_finding(tmp_path: Path, name: str, advice: str) -> None:
    inner = [copied(2, name, (10, 12), (13, 40), 54_000_000), launch(3, 14, 15), kernel("gemm", 3, 40, 99)]
    result = analyzed(tmp_path, *steps(1, inner))
    [finding] = [finding for finding in result.findings if finding.code == "exposed-copies"]
    assert advice in finding.message and "27.0 µs" in finding.message and "2.00 TB/s" in finding.message


# Real files -----------------------------------------------------------------------------------------------------------


def test_the_real_run_that_blocks_in_copies_is_told_so_with_its_numbers(shared_traces: Path) -> None:
    result = ddptrace.analyze(shared_traces / "judged" / "dlrm-blocked-copies", jobs=1)
    [finding] = [finding for finding in result.findings if finding.code == "blocking-copies"]
    assert "153 ms of 216 ms a step" in finding.message and "92.7 ms" in finding.message
    assert "(6 copies a step, 1.72 kB)" in finding.message  # the other 9 go to the device and block for little
    assert "idle-while-queued" not in codes(result)
    blocked = {row.step: row.blocked_ns / 1e6 for row in result.copies if row.name == BACK and row.step is not None}
    assert (result.savings[0].cause, result.savings[0].finding) == ("copy", "blocking-copies")
    assert blocked == {step: pytest.approx(150, abs=4) for step in range(550, 555)}


def test_the_rate_of_real_copies_is_that_of_the_file(shared_traces: Path) -> None:
    result = ddptrace.analyze(shared_traces / "judged" / "data-bound-owlv2", jobs=1)
    [row] = [row for row in result.copies if row.step is None and row.name == BACK]
    assert (row.events, row.nbytes, row.copy_ns) == (55, 146_418_600, 12_903_459)
    assert row.nbytes_per_s is not None and math.isclose(row.nbytes_per_s, 146_418_600 / 12_903_459e-9)


@pytest.mark.parametrize("folder", ["dlrm-blocked-copies", "data-bound-owlv2", "8ranks-zero-h100"])
def test_the_copies_of_a_step_account_for_its_exposed_copies(shared_traces: Path, folder: str) -> None:
    """Copies of two names may run at once, so the rows of a step add up to its part of the breakdown at least."""
    result = ddptrace.analyze(shared_traces / "judged" / folder, jobs=1)
    seen = 0
    for step in result.steps:
        rows = [row.exposed_ns for row in result.copies if (row.rank, row.step) == (step.rank, step.step)]
        exposed_ns = step.exposed_memory_ns or 0
        assert max(rows, default=0) <= exposed_ns <= sum(rows)
        seen += exposed_ns
    assert seen
