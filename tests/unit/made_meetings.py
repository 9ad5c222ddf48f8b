"""Hand-made results whose ranks met, on two hosts: matches, arrivals, a path and clocks, for what is drawn and said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ddptrace.analysis.analyze import RunHead, analyze_rank, combine
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.device import RankRow
from ddptrace.analysis.tables.ranks import ArrivalRow, ClockRow, MatchRow, PathRow, SuspectRow
from ddptrace.analysis.tables.steps import ContentionRow, JitterRow
from ddptrace.analysis.tables.table import Table
from tests.made import MS, make_result
from tests.unit.made_training import Plan, Player

TRANSFER_NS = 2 * MS
"""Of every collective of `met_result`: it ends on all ranks so long after the last one began."""

FREE_TRANSFER_NS = TRANSFER_NS - 10
"""What is told of it without clocks, so that both estimates can be told apart."""


def played_result(plan: Plan, hosts: Sequence[str]) -> Result:
    """What analysis makes of a plan, its ranks on these hosts and one clock."""
    runs = [replace(run, host=host, clock="one") for run, host in zip(Player(plan).runs(), hosts, strict=True)]
    head = RunHead("1.0", "5f1e" * 8, 0, plan.ranks, ())
    return combine(head, [analyze_rank(run) for run in runs])


def met_result(ranks: int = 4, steps: int = 6, buckets: int = 3) -> Result:
    """Ranks 0, 2, ... are on node0, the others on node1. Each bucket is one match; its executions end together."""
    result = make_result(ranks, steps, buckets)
    calls: defaultdict[int, list[CollectiveRow]] = defaultdict(list)
    for row in result.collectives:
        if row.exec_start_at_ns is not None:
            calls[row.seq].append(row)
    ends = {seq: max(row.exec_start_at_ns or 0 for row in rows) + TRANSFER_NS for seq, rows in calls.items()}
    matches = [match_of(number, calls[seq], ends[seq]) for number, seq in enumerate(sorted(calls))]
    return replace(
        result,
        ranks=Table(RankRow, [replace(row, host=f"node{row.rank % 2}") for row in result.ranks]),
        collectives=Table(CollectiveRow, [
            row if row.exec_start_at_ns is None else replace(row, exec_end_at_ns=ends[row.seq])
            for row in result.collectives
        ]),
        buckets=Table(BucketRow, [replace(row, exec_end_at_ns=ends[row.seqs[0]]) for row in result.buckets]),
        matches=Table(MatchRow, matches),
        arrivals=Table(ArrivalRow, [
            arrival_of(match, row) for match, seq in zip(matches, sorted(calls), strict=True) for row in calls[seq]
        ]),
        critical_path=Table(PathRow, path_of(result, matches)),
    )  # fmt: skip


def match_of(number: int, rows: Sequence[CollectiveRow], end: int) -> MatchRow:
    """As `MatchRow` and the words wait, transfer, skew and blame are defined."""
    starts = sorted((row.exec_start_at_ns or 0, row.rank) for row in rows)
    first = rows[0]
    return MatchRow(
        number, first.group, first.ordinal, first.op, first.nbytes, tuple(row.rank for row in rows),
        tuple(row.seq for row in rows), starts[0][0], starts[-1][0], end, end, FREE_TRANSFER_NS,
        starts[-1][1], starts[-1][0], starts[-1][0] - starts[0][0], starts[-1][0] - starts[-2][0], TRANSFER_NS,
        2e9, True, 0, first.bucket, first.step,
    )  # fmt: skip


def arrival_of(match: MatchRow, row: CollectiveRow) -> ArrivalRow:
    start = row.exec_start_at_ns or 0
    waited = (match.last_arrival_at_ns or 0) - start
    return ArrivalRow(
        match.match, row.rank, row.seq, row.step, start, "exec", waited, waited, TRANSFER_NS,
        waited + TRANSFER_NS - FREE_TRANSFER_NS, FREE_TRANSFER_NS,
    )  # fmt: skip


def path_of(result: Result, matches: Sequence[MatchRow]) -> list[PathRow]:
    """Through the phases of rank 0, and the second half of each backward is a transfer of the step's first bucket."""
    rows = []
    for phase in (row for row in result.phases if row.rank == 0):
        middle = (phase.begin_at_ns + phase.end_at_ns) // 2 if phase.phase == "backward" else phase.end_at_ns
        rows.append(PathRow(phase.step, 0, phase.phase, None, phase.begin_at_ns, middle))
        if middle < phase.end_at_ns:
            number = next(row.match for row in matches if row.step == phase.step)
            rows.append(PathRow(phase.step, 0, "transfer", number, middle, phase.end_at_ns))
    return rows


def with_clocks(result: Result, *, why: str = "fitted", offset_ns: int = 50 * MS) -> Result:
    """The ranks of node1 have another clock, and how far it lies apart is known to 200 us."""
    end = max(row.end_at_ns for row in result.steps)
    sure = None if why in ("clock pairs", "not fitted") else 200_000
    rows = [
        ClockRow(row.rank, 0, 0, end, 0, 0.0, 0, 0, 0, shifted=False, why="same clock")
        if row.host == "node0"
        else ClockRow(row.rank, 0, 0, end, offset_ns, 1e-4, sure, sure, 18, shifted=why == "fitted", why=why)
        for row in result.ranks
    ]  # fmt: skip
    return replace(result, clocks=Table(ClockRow, rows))


def with_all(result: Result) -> Result:
    """With a rank that is named, and what is said of contention and jitter."""
    evidence = "its own time there is 3.1 ms of a step longer than the others'"
    parts = ("data", "forward", "backward", "optimizer", "other", "waiting")
    jitter = [
        JitterRow(row.rank, part, 20, 30 * MS, 35 * MS, MS, None if part == "step" else share)
        for row in result.ranks
        for part, share in zip((*parts, "step"), (0.5, 0.2, 0.2, 0.1, 0.1, -0.1, None), strict=True)
    ]
    return replace(
        with_clocks(result),
        suspects=Table(SuspectRow, [
            SuspectRow(1, "node1", "backward", "garbage collection", 3 * MS, 0.1, 2 * MS, 4 * MS, True, 40, evidence)
        ]),
        contention=Table(ContentionRow, [
            ContentionRow(row.rank, "aten::mm", 9, 6, 100_000, 150_000, 300_000) for row in result.ranks
        ]),
        jitter=Table(JitterRow, jitter),
    )  # fmt: skip
