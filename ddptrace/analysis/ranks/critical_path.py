"""What the iterations really waited for, over ranks and steps: from the end of the last step backwards.

rank 0  ├── forward ──┤░░░ waits ░░░░░░░├─ opt ─┤
rank 1  ├──────── backward ────┤░░░░░░░░├─ opt ──┤
path    ├── rank 1, backward ──┼transfer┼ rank 1 ┤     who waits goes back to the last, at its launch
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints, Pieces, pairs
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.crossings import NONE, ComparedRanks, Crossings, begins_of
from ddptrace.analysis.tables.ranks import LOCAL_PHASES, WAIT, PathRow, Trail

TRANSFER: Final = "transfer"
OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class _Piece:
    """Of the path, before phases are told apart: a stretch of one rank's own time, or a transfer. `event`: the first of
    the trail that it holds."""

    trail: int
    event: int
    match: int  # -1: own time
    begin_at_ns: int
    end_at_ns: int


def critical_path(met: ComparedRanks) -> tuple[PathRow, ...]:
    """Pieces that touch, in time order; none where no collective was matched, or where the path may lead through ranks
    that are not here. On a device a rank's own time is that of the phase which launched most of it. A transfer of a
    collective that was not matched has no match."""
    if not met.crossings.needed.any() or met.partial:
        return ()
    pieces = list(_walk([table.trail for table in met.tables], met.crossings))
    rows = [
        row
        for at, table in enumerate(met.tables)
        for row in _rows(table, [piece for piece in pieces if piece.trail == at])
    ]
    rows = [replace(row, match=None) if row.match is not None and row.match >= met.matched else row for row in rows]
    rows.sort(key=attrgetter("begin_at_ns", "end_at_ns"))
    return tuple(_joined(rows))


def _joined(rows: Iterable[PathRow]) -> Iterator[PathRow]:
    """Stretches of the same as one, and none that is empty."""
    last: PathRow | None = None
    for row in rows:
        if row.end_at_ns <= row.begin_at_ns:
            continue
        if last is not None and replace(last, begin_at_ns=row.begin_at_ns, end_at_ns=row.end_at_ns) == row:
            last = replace(last, end_at_ns=row.end_at_ns)
            continue
        if last is not None:
            yield last
        last = row
    if last is not None:
        yield last


def _walk(trails: Sequence[Trail], crossings: Crossings) -> Iterator[_Piece]:
    """Backwards, in pieces that touch. A collective is gone through once, whatever the clocks say."""
    ends = [trail.at_ns[-1] for trail in trails]
    at = int(np.argmax(ends))
    event, cursor, met = len(trails[at].at_ns) - 1, int(ends[at]), set[int]()
    lives = [_Life.of(trail, crossings, crosses) for trail, crosses in zip(trails, crossings.of_events, strict=True)]
    while event > 0:
        match = lives[at].waited_for[event]
        if match == NONE or match in met:
            begin = min(cursor, lives[at].from_ns[event])
            yield _Piece(at, event, NONE, begin, cursor)
            event, cursor = event - 1, begin
            continue
        for one, begin in _transfers(match, crossings):
            yield _Piece(at, event, one, min(cursor, begin), cursor)
            match, cursor = one, min(cursor, begin)
            met.add(one)
        at, event = int(crossings.last_trail[match]), int(crossings.last_event[match])


def _transfers(match: int, crossings: Crossings) -> Iterator[tuple[int, int]]:
    """The collective, and those it queued behind since the last arrival: each with the begin of its transfer."""
    while True:
        yield match, int(crossings.begin_at_ns[match])
        if crossings.begin_at_ns[match] == crossings.arrival_at_ns[match]:
            return
        match = int(crossings.before[match])


@dataclass(frozen=True, slots=True)
class _Life:
    """By event of one trail: the collective whose end it waited for, and where the piece that ends with it begins."""

    waited_for: list[int]
    from_ns: list[int]

    @classmethod
    def of(cls, trail: Trail, crossings: Crossings, crosses: Ints) -> _Life:
        ended = np.append(crossings.end_at_ns, np.iinfo(np.int64).min)[crosses]
        late = (trail.kind == WAIT) & (ended > begins_of(trail))
        return cls(np.where(late, crosses, NONE).tolist(), np.append(trail.at_ns[:1], trail.at_ns[:-1]).tolist())


def _rows(table: RankTables, pieces: Sequence[_Piece]) -> Iterator[PathRow]:
    """Of one rank's pieces, in any order."""
    trail = table.trail
    by_event = trail.on_device or not table.phases
    for piece in pieces:
        span = piece.begin_at_ns, piece.end_at_ns
        step = None if trail.step[piece.event] == NONE else int(trail.step[piece.event])
        if piece.match != NONE:
            yield PathRow(step, trail.rank, TRANSFER, piece.match, *span)
        elif by_event:
            yield PathRow(step, trail.rank, LOCAL_PHASES[int(trail.local_ns[piece.event].argmax())], None, *span)
    if not by_event:
        yield from _by_phase(table, [piece for piece in pieces if piece.match == NONE])


def _by_phase(table: RankTables, pieces: Sequence[_Piece]) -> Iterator[PathRow]:
    """Cut where the rank's phases change; between its steps nothing is known."""
    phases = Pieces.numbered(pairs((row.begin_at_ns, row.end_at_ns) for row in table.phases))
    spans = pairs((piece.begin_at_ns, piece.end_at_ns) for piece in pieces)
    _, begins, ends = phases.split(spans[:, 0], spans[:, 1])
    for label, *span in zip(phases.at(begins).tolist(), begins.tolist(), ends.tolist(), strict=True):
        row = table.phases[label] if label >= 0 else None
        step, what = (None, OTHER) if row is None else (row.step, row.phase)
        yield PathRow(step, table.trail.rank, what, None, *span)
