"""How much of the communication was waiting for ranks that came late."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ddptrace
from ddptrace.analysis.findings.ranks import peer_findings
from ddptrace.analysis.ranks.digest import match_digests, matched_time, told_wait_ratio
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.table import Table
from ddptrace.render.ranks.pages import across_lines
from ddptrace.schema import Evidence


def codes(result: Result) -> list[str]:
    return [finding.code for finding in peer_findings(result)]


def test_waiting_is_told_where_executions_were_measured_and_not_where_begins_were_inferred(shared_traces: Path) -> None:
    result = ddptrace.analyze(shared_traces / "dlrm-8ranks", jobs=1)
    assert codes(result) == ["waiting-for-ranks"]
    inferred = [dataclasses.replace(row, evidence=Evidence.CALLBACK) for row in result.collectives]
    assert codes(dataclasses.replace(result, collectives=Table(CollectiveRow, inferred))) == []


def test_the_share_of_waiting_is_one_figure_of_the_typical_steps(shared_traces: Path) -> None:
    result = ddptrace.analyze(shared_traces / "judged" / "8ranks-zero-h100", jobs=1)
    steps = {row.step for row in measured_steps(result.steps)[0]}
    time, found = matched_time(result), match_digests(result)
    assert time is not None and time.typical
    assert len(steps) == 2 < len({row.step for row in result.steps})
    assert (time.steps, time.collectives) == (found.steps, found.count) == (2, 28)
    assert told_wait_ratio(result, found) == time.waiting_ratio
    assert any("73 %" in line for line in across_lines(result))
    assert 0.72 < time.waiting_ratio < 0.73
    assert [
        ("73 %" in one.message, "28 collectives of 2 typical steps" in one.message) for one in peer_findings(result)
    ] == [(True, True)]
