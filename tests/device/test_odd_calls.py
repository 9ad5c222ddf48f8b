"""Odd uses of a process group train as without a trace, and it is known when each call ran."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.findings import SURFACE_FAILED
from ddptrace.schema import Evidence
from tests.device.conftest import RunProgram
from tests.device.truth import told_by

RANKS, STEPS, PROFILED = 2, 5, 2
PER_STEP = {"send": 2, "recv": 2, "all_reduce": 3}
ON_DEVICE = (Evidence.EVENT, Evidence.DEVICE)


@pytest.fixture(scope="module")
def out(on_device: RunProgram, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd-calls")
    on_device("odd_calls.py", folder / "run", folder, ranks=RANKS)
    return folder


@pytest.fixture(scope="module")
def result(out: Path) -> Result:
    return ddptrace.analyze(out / "run", align=False)


def test_a_trace_neither_raises_nor_changes_a_number(out: Path, result: Result) -> None:
    for rank in range(RANKS):
        told = told_by(out, rank)
        assert told["traced"] == told["untraced"]
    assert SURFACE_FAILED not in {one.code for one in result.findings}


def test_it_is_known_when_each_call_ran(result: Result) -> None:
    calls = [row for row in result.collectives if row.op in ("send", "recv", "all_reduce")]
    assert Counter(row.op for row in calls) == {op: RANKS * STEPS * each for op, each in PER_STEP.items()}
    assert None not in {row.evidence for row in calls}
    reduced = Counter(row.evidence for row in calls if row.op == "all_reduce" and row.evidence in ON_DEVICE)
    assert reduced == {Evidence.EVENT: RANKS * (STEPS - PROFILED) * 2, Evidence.DEVICE: RANKS * PROFILED * 2}


def test_each_kernel_and_range_is_of_the_calls_that_started_it(result: Result) -> None:
    assert not {one.code for one in result.findings} & {"exec-unclaimed", "exec-unmatched", "collectives-missing"}
