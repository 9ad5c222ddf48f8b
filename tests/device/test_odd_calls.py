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

RANKS, STEPS = 2, 5


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
    assert Counter(row.op for row in calls) == dict.fromkeys(("send", "recv", "all_reduce"), RANKS * STEPS * 2)
    assert None not in {row.evidence for row in calls}
    reduced = {row.evidence for row in calls if row.op == "all_reduce"}
    assert reduced == {Evidence.EVENT, Evidence.DEVICE}


def test_each_kernel_is_of_the_calls_that_its_batch_started(result: Result) -> None:
    assert not {one.code for one in result.findings} & {"exec-unclaimed", "exec-unmatched", "collectives-missing"}
