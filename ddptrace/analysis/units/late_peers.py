"""What of each dimension's exposed time is waiting for ranks that come late, and what is transfer.

exposed, charged to it   ├─────────────────────┤
rank 0   gather      [===┼══════════════┼======]
rank 1   launch                         ▲        the last one has come
                         ├─ peer_wait ──┼ transfer ┤
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ddptrace.analysis.collectives.execution import paying_from
from ddptrace.analysis.intervals import Ints, Measure
from ddptrace.analysis.pipeline.turns import Blocked
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.run_view import RunView
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.pipeline import MessageRow
from ddptrace.analysis.tables.ranks import ArrivalRow
from ddptrace.analysis.tables.units import DimensionRow
from ddptrace.analysis.units.places import PP
from ddptrace.ops import family_of

Place = tuple[int | None, str, str]
"""Step, dimension and mesh."""
NEVER: Final = -1
"""Nothing tells when the last rank came."""


@dataclass(slots=True)
class _Parts:
    wait_ns: int = 0
    unmatched_ns: int = 0


def split_dimensions(run: RunView) -> Iterator[DimensionRow]:
    """Yield the dimensions of all ranks, each with the parts of its exposed time."""
    arrivals = _by_rank(run.arrivals)
    messages = _by_rank(run.pipelines.messages)
    bubbles: defaultdict[tuple[int, int | None], int] = defaultdict(int)
    for row in run.pipelines.bubbles:
        bubbles[row.rank, row.step] += row.bubble_ns
    for rank in run.ranks:
        number = rank.facts.rank
        parts = _parts(rank, arrivals.get(number, ()), messages.get(number, ()))
        for one in rank.rows["dimensions"]:
            bubble = bubbles[number, one.step] if one.dimension == PP else 0
            yield _split(one, parts.get((one.step, one.dimension, one.mesh), _Parts()), bubble)


def _by_rank(rows: Iterable[ArrivalRow] | Iterable[MessageRow]) -> Mapping[int, list[Any]]:
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.rank].append(row)
    return found


def _split(row: DimensionRow, parts: _Parts, bubble_ns: int) -> DimensionRow:
    if row.exposed_charged_ns is None:
        return row
    return replace(
        row,
        bubble_ns=min(bubble_ns, parts.wait_ns),
        peer_wait_ns=parts.wait_ns - min(bubble_ns, parts.wait_ns),
        transfer_ns=row.exposed_charged_ns - parts.wait_ns - parts.unmatched_ns,
        unmatched_ns=parts.unmatched_ns,
    )


def _parts(
    rank: RankTables, arrivals: Sequence[ArrivalRow], messages: Sequence[MessageRow]
) -> Mapping[Place, _Parts]:
    rows = [row for row in rank.collectives if row.exposed_charged_ns]
    begins, ends = (np.array([getattr(row, name) or 0 for row in rows], np.int64) for name in EXECUTION)
    paying = np.minimum(np.maximum(begins, _paying(rank.collectives, rows)), ends)
    came = _last_come(rows, arrivals)
    cut = np.minimum(np.maximum(paying, came), ends)
    waits = cut - paying - Measure(rank.activity.compute).within(paying, cut)
    blocked = Blocked.of(messages).peer.within(paying, ends)
    met = {row.seq for row in messages if row.other_seq is not None}
    places = _places(rank)
    found: defaultdict[Place, _Parts] = defaultdict(_Parts)
    columns = zip(rows, came.tolist(), waits.tolist(), blocked.tolist(), strict=True)
    for row, last, wait, peer in columns:
        charged, one = row.exposed_charged_ns or 0, found[row.step, *places[row.seq]]
        if row.seq in met:
            one.wait_ns += min(peer, charged)
        elif last == NEVER:
            one.unmatched_ns += charged
        else:
            one.wait_ns += min(wait, charged)
    return found


EXECUTION: Final = ("exec_start_at_ns", "exec_end_at_ns")


def _paying(every: Sequence[CollectiveRow], rows: Sequence[CollectiveRow]) -> Ints:
    """Return from when on each of the rows' collectives pays for what is exposed, as charges count it."""
    spans: dict[int, tuple[int, int]] = {}
    for row in every:
        if row.exec_start_at_ns is not None and row.exec_end_at_ns is not None:
            begin, _ = spans.get(row.seq, (row.exec_start_at_ns, 0))
            spans[row.seq] = begin, row.exec_end_at_ns
    begins, ends = (np.array([span[side] for span in spans.values()], np.int64) for side in (0, 1))
    paying = dict(zip(spans, paying_from(begins, ends, np.array(list(spans), np.int64)).tolist(), strict=True))
    return np.array([paying[row.seq] for row in rows], np.int64)


def _last_come(rows: Sequence[CollectiveRow], arrivals: Sequence[ArrivalRow]) -> Ints:
    """Return when the last rank came to the collective of each row: by arrivals on one clock, else by the shortest
    execution over the ranks; `NEVER` where neither tells."""
    told = {row.seq: row for row in arrivals}
    firsts = {row.seq: row.exec_start_at_ns for row in reversed(rows) if row.part == 0}
    return np.array([_came(row, told.get(row.seq), firsts.get(row.seq)) for row in rows], np.int64)


def _came(row: CollectiveRow, arrival: ArrivalRow | None, begin_at_ns: int | None) -> int:
    if arrival is None or not family_of(row.op).ends_together:
        return NEVER
    if arrival.waited_ns is not None:
        return arrival.arrival_at_ns + arrival.waited_ns
    if arrival.free_wait_ns is not None and begin_at_ns is not None:
        return begin_at_ns + arrival.free_wait_ns
    return NEVER


def _places(rank: RankTables) -> Mapping[int, tuple[str, str]]:
    """By seq of a communication."""
    return {seq: (row.dimension, row.mesh) for row in rank.rows["units"] for seq in (row.seqs or (row.seq,))}
