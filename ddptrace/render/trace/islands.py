"""Stretches of time that ranks share. Traces from elsewhere can lie years apart, and are then no one picture."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.device import Activity
from ddptrace.analysis.tables.steps import PhaseRow, StepRow
from ddptrace.render.ranks.trace import begin_of
from ddptrace.render.trace.tracks import RankRows, waits
from ddptrace.units import long_time


@dataclass(frozen=True, slots=True)
class Island:
    """Ranks whose records hang together in time, and where they begin and end."""

    ranks: tuple[int, ...]
    begin_at_ns: int
    end_at_ns: int


def islands(ranks: Sequence[RankRows]) -> list[Island]:
    """In time order; a rank of which no instant is known is on none."""
    spans = sorted((min(instants), max(instants), rows.rank) for rows in ranks if (instants := list(seen(rows))))
    found: list[Island] = []
    for begin, end, rank in spans:
        if found and begin <= found[-1].end_at_ns:
            last = found.pop()
            found.append(Island((*last.ranks, rank), last.begin_at_ns, max(last.end_at_ns, end)))
        else:
            found.append(Island((rank,), begin, end))
    return found


def apart_words(found: Sequence[Island]) -> str:
    """A sentence where not all ranks share a stretch of time, else nothing."""
    if len(found) < 2:
        return ""
    return (
        f"The ranks lie in {len(found)} stretches of time that do not overlap, over"
        f" {long_time(found[-1].end_at_ns - found[0].begin_at_ns)}: each stretch is drawn from its own begin, and"
        " instants of one say nothing of another."
    )


def seen(rows: RankRows) -> Iterator[int]:
    """Instants that are drawn, the first and the last among them."""
    buckets = ((row.launch_at_ns, row.first_ready_at_ns, row.ready_at_ns, *run(row)) for row in rows.buckets)
    collectives = ((row.launch_at_ns, *run(row)) for row in rows.collectives)
    yield from (at for at in itertools.chain(*buckets, *collectives) if at is not None)
    stretches: list[StepRow | PhaseRow] = [*rows.steps, *rows.phases]
    yield from (at for row in stretches for at in (row.begin_at_ns, row.end_at_ns))
    yield from (begin for _, begin, _ in waits(rows))
    yield from map(begin_of, rows.last)
    calls = ((rpc.launch_at_ns, rpc.issued_at_ns, rpc.done_at_ns) for _, rpc in rows.rpcs)
    runs = ((rpc.run_start_at_ns, rpc.run_end_at_ns) for _, rpc in rows.runs)
    yield from (at for at in itertools.chain(*calls, *runs) if at is not None)
    if rows.activity is not None:
        yield from of_activity(rows.activity)


def run(row: BucketRow | CollectiveRow) -> tuple[int | None, int | None, int | None]:
    return row.exec_start_at_ns, row.exec_end_at_ns, row.done_at_ns


def of_activity(activity: Activity) -> Iterator[int]:
    """The ends of each list of intervals, which are in order of their begins."""
    yield from (at for _, _, *span, _ in activity.backend for at in span)
    columns = [activity.compute[:1, 0], activity.compute[-1:, 1]]
    for work in activity.device:
        columns += [work.begin_at_ns[:1], work.end_at_ns.max(keepdims=True)]
        columns.append(np.sort(work.launch_begin_at_ns[work.launched])[:1])
    for window in activity.idle:
        columns += [window.gaps[:1, 0], window.gaps[-1:, 1]]
        if window.around is not None and len(window.around.begin_at_ns):
            columns += [window.around.begin_at_ns[:1], window.around.end_at_ns.max(keepdims=True)]
    yield from np.concatenate(columns).tolist()
