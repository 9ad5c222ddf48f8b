"""From the records of a run to its tables."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ddptrace.analysis.breakdown import step_rows
from ddptrace.analysis.buckets import bucket_rows
from ddptrace.analysis.collectives import collective_rows
from ddptrace.analysis.findings import findings
from ddptrace.analysis.phases import phase_rows
from ddptrace.analysis.shares import shares_of
from ddptrace.analysis.tables import (
    Activity,
    BucketRow,
    CollectiveRow,
    PhaseRow,
    RankRow,
    Result,
    StepRow,
    Table,
)
from ddptrace.analysis.view import View, view_of
from ddptrace.load.tables import Finding, Run


@dataclass(frozen=True, slots=True)
class _RankTables:
    steps: list[StepRow]
    phases: list[PhaseRow]
    buckets: list[BucketRow]
    collectives: list[CollectiveRow]


def analyze_run(run: Run) -> Result:
    """Everything that can be said of a run; rows are sorted by rank, then time. A run without steps, without
    communication or with one rank is no error but a finding."""
    views = [view_of(rank) for rank in sorted(run.ranks, key=lambda rank: rank.rank)]
    tables = [_tables(view) for view in views]
    result = Result(
        schema=run.schema, run_id=run.run_id, zero_unix_ns=run.zero_unix_ns, world_size=run.world_size,
        ranks=Table(RankRow, [_rank_row(view) for view in views]),
        steps=Table(StepRow, [row for table in tables for row in table.steps]),
        phases=Table(PhaseRow, [row for table in tables for row in table.phases]),
        buckets=Table(BucketRow, [row for table in tables for row in table.buckets]),
        collectives=Table(CollectiveRow, [row for table in tables for row in table.collectives]),
        findings=Table(Finding), activity=tuple(_activity(view) for view in views),
    )  # fmt: skip
    return dataclasses.replace(result, findings=Table(Finding, findings(run, views, result)))


def _tables(view: View) -> _RankTables:
    shares = shares_of(view.comms, view.windows, view.compute)
    return _RankTables(
        step_rows(view, shares),
        phase_rows(view.rank, view.steps, view.phases),
        bucket_rows(view, shares),
        collective_rows(view, shares),
    )


def _rank_row(view: View) -> RankRow:
    rank = view.rank
    counts = len(rank.steps), len(view.comms), len(rank.windows)
    return RankRow(rank.rank, rank.host, rank.pid, rank.device, rank.clean, rank.dropped, *counts)


def _activity(view: View) -> Activity:
    ranges = [(comm.seq, comm.call.exec) for comm in view.comms if comm.call is not None]
    backend = tuple((e.lane, e.name, e.begin_at_ns, e.end_at_ns, seq) for seq, e in ranges if e is not None)
    return Activity(view.rank.rank, view.compute, backend)
