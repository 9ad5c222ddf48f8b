"""Ranks that compute unequally and buffers that cost: planted in real trainings, and found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.load.run import read_run

pytestmark = pytest.mark.alone

CROWDED_RATIO = 0.25
Trained = Callable[[str], Result]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, record: Callable[..., Path]) -> Trained:
    def analyzed(cause: str) -> Result:
        run = record(tmp_path_factory.mktemp("uneven") / cause, "uneven.py", cause)
        marks = [mark for rank in read_run(run).ranks for mark in rank.load.marks]
        whole_ns = sum(mark.end_at_ns - mark.begin_at_ns for mark in marks)
        if sum(mark.queued_ns for mark in marks) > CROWDED_RATIO * whole_ns:
            pytest.skip("others use this machine's processors, which makes ranks unequal")
        return ddptrace.analyze(run)

    return analyzed


def told(result: Result) -> dict[str, str]:
    """Where the finding is, by code."""
    return {finding.code: finding.where for finding in result.findings}


def test_the_rank_that_computes_three_times_as_long_is_named(trained: Trained) -> None:
    result = trained("compute")
    assert told(result)["uneven-compute"] == "rank 1"


def test_buffers_that_hold_up_each_forward_are_told(trained: Trained) -> None:
    result = trained("buffers")
    assert told(result)["buffer-broadcasts"] == "run"
    assert "uneven-compute" not in told(result)


def test_of_equal_ranks_without_buffers_neither_is_said(trained: Trained) -> None:
    assert not told(trained("nothing")).keys() & {"uneven-compute", "buffer-broadcasts"}
