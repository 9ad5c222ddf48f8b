"""What is said of ranks that compute longer than others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptrace.analysis.findings.ranks import uneven_findings
from ddptrace.analysis.ranks.blame import Blame
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from tests.made import make_result


def computing(*times_ns: int) -> Result:
    """Ranks 0, 1, ... that compute so long in each step."""
    result = make_result(len(times_ns), 4, 3)
    return replace(result, steps=Table(StepRow, [replace(row, compute_ns=times_ns[row.rank]) for row in result.steps]))


@pytest.mark.parametrize("times_ns", [(0, 200_000_000), (0, 10_000_000, 200_000_000, 200_000_000)])
def test_a_rank_that_computes_nothing_is_no_divisor(times_ns: tuple[int, ...]) -> None:
    result = computing(*times_ns)
    (finding,) = uneven_findings(result, summarize(result), Blame())
    assert finding.code == "uneven-compute"
    assert "as long as the shortest" not in finding.message


def test_ranks_that_compute_are_told_with_their_ratio() -> None:
    result = computing(50_000_000, 200_000_000)
    (finding,) = uneven_findings(result, summarize(result), Blame())
    assert "4.00 times as long." in finding.message
