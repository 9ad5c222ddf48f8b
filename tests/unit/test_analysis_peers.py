"""How much of the communication was waiting for ranks that came late."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ddptrace
from ddptrace.analysis.findings.ranks import peer_findings
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.table import Table
from ddptrace.schema import Evidence


def codes(result: Result) -> list[str]:
    return [finding.code for finding in peer_findings(result)]


def test_waiting_is_told_where_executions_were_measured_and_not_where_begins_were_inferred(shared_traces: Path) -> None:
    result = ddptrace.analyze(shared_traces / "dlrm-8ranks", jobs=1)
    assert codes(result) == ["waiting-for-ranks"]
    inferred = [dataclasses.replace(row, evidence=Evidence.CALLBACK) for row in result.collectives]
    assert codes(dataclasses.replace(result, collectives=Table(CollectiveRow, inferred))) == []
