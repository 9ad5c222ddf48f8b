"""Brings ranks whose clocks lie apart on the reference rank's time, and tells how far their instants may still be off.

The name of a field tells whether it is an instant (`is_instant`).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.rpc.rows import RankCalls
from ddptrace.analysis.tables.declare import is_instant
from ddptrace.analysis.tables.device import Activity, LongGaps
from ddptrace.analysis.tables.ranks import ClockRow
from ddptrace.load.tables import DeviceWork, HostLoad

Row = TypeVar("Row")


def aligned_tables(tables: Iterable[RankTables], clocks: Sequence[ClockRow]) -> list[RankTables]:
    """The tables, with all instants of ranks that are to be shifted moved; lengths stay as their own clock has them."""
    pieces: dict[int, list[ClockRow]] = defaultdict(list)
    for row in clocks:
        if row.shifted:
            pieces[row.rank].append(row)
    return [_moved(table, Clock.of(found)) if (found := pieces.get(table.row.rank)) else table for table in tables]


@dataclass(frozen=True, slots=True)
class Clock:
    """One rank's clock, in pieces of shape (n,). `begins`: in the reference's time; the first one holds before too."""

    begins: Ints
    offsets: Ints
    drifts: NDArray[np.float64]

    @classmethod
    def of(cls, pieces: Sequence[ClockRow]) -> Clock:
        """In time order."""
        begins, offsets = ([getattr(clock, name) for clock in pieces] for name in ("begin_at_ns", "offset_ns"))
        return cls(np.array(begins), np.array(offsets), np.array([clock.drift_ratio for clock in pieces]))

    def in_reference_time(self, instants: Ints) -> Ints:
        """Of any shape. What comes later on the clock never comes earlier there: where one piece passes into the next
        with a jump, an instant stays between both pieces' ends."""
        piece = np.maximum(np.searchsorted(self.begins + self.offsets, instants, side="right") - 1, 0)
        drift = self.drifts[piece]
        since = instants - self.offsets[piece] - self.begins[piece]
        found = self.begins[piece] + since - np.rint(since * (drift / (1 + drift))).astype(np.int64)
        ends = np.append(self.begins[1:], np.iinfo(np.int64).max)
        return np.asarray(np.minimum(found, ends[piece]))


def _moved(table: RankTables, clock: Clock) -> RankTables:
    return replace(
        table,
        rows={name: _rows(rows, clock) for name, rows in table.rows.items()},
        activity=_activity(table.activity, clock),
        rpc=_calls(table.rpc, clock),
        load=_load(table.load, clock),
        trail=_columns(table.trail, clock),
    )


def _rows(rows: Sequence[Row], clock: Clock) -> tuple[Row, ...]:
    """Of one type each; in the same order."""
    if not rows:
        return ()
    kind: Any = type(rows[0])
    names, instants = _fields(kind)
    if not instants:
        return tuple(rows)
    columns = [[getattr(row, name) for row in rows] for name in names]
    for at in instants:
        columns[at] = _column(columns[at], clock)
    return tuple(kind(*values) for values in zip(*columns, strict=True))


def _column(values: list[int | None], clock: Clock) -> list[int | None]:
    known = np.array([value is not None for value in values])
    at = np.array([value or 0 for value in values], np.int64)
    moved: list[int | None] = clock.in_reference_time(at).tolist()
    return [value if is_known else None for value, is_known in zip(moved, known.tolist(), strict=True)]


@cache
def _fields(kind: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names of all fields, and the positions of those that are instants."""
    names = tuple(field.name for field in dataclasses.fields(kind))
    return names, tuple(at for at, name in enumerate(names) if is_instant(name))


def _columns(value: Row, clock: Clock) -> Row:
    """A dataclass whose fields are columns."""
    kind: Any = type(value)
    names, instants = _fields(kind)
    moved = {names[at]: clock.in_reference_time(getattr(value, names[at])) for at in instants}
    return replace(value, **moved)  # type: ignore[type-var]


def _activity(activity: Activity, clock: Clock) -> Activity:
    spans = clock.in_reference_time(np.array([span[2:4] for span in activity.backend], np.int64).reshape(-1, 2))
    backend = tuple(
        (lane, name, begin, end, seq)
        for (lane, name, *_, seq), (begin, end) in zip(activity.backend, spans.tolist(), strict=True)
    )
    compute, device = clock.in_reference_time(activity.compute), tuple(_device(work, clock) for work in activity.device)
    idle = tuple(_gaps(window, clock) for window in activity.idle)
    calls = tuple(_columns(window, clock) for window in activity.host_calls)
    return replace(activity, compute=compute, backend=backend, device=device, idle=idle, host_calls=calls)


def _gaps(window: LongGaps, clock: Clock) -> LongGaps:
    around = None if window.around is None else _columns(window.around, clock)
    return replace(_columns(window, clock), gaps=clock.in_reference_time(window.gaps), around=around)


def _device(work: DeviceWork, clock: Clock) -> DeviceWork:
    """An instant that is not known is 0, and stays so."""
    moved = _columns(work, clock)
    begin, end = (np.where(work.launched, at, 0) for at in (moved.launch_begin_at_ns, moved.launch_end_at_ns))
    return replace(moved, launch_begin_at_ns=begin, launch_end_at_ns=end)


def _calls(calls: RankCalls, clock: Clock) -> RankCalls:
    rpc = calls.rpc
    moved = replace(rpc, calls=_rows(rpc.calls, clock), runs=_rows(rpc.runs, clock), waits=_rows(rpc.waits, clock))
    return replace(calls, rpc=moved)


def _load(load: HostLoad, clock: Clock) -> HostLoad:
    return HostLoad(*(_rows(getattr(load, field.name), clock) for field in dataclasses.fields(load)))


# How far instants of different ranks may be off -----------------------------------------------------------------------


UNKNOWN: Final = -1
Pieces = tuple[ClockRow, ...]


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """By rank: its clock's pieces. Ranks of one clock are right against each other whatever is known of that clock."""

    clocks: dict[int, tuple[str, Pieces]]
    reference: str  # clock of the lowest rank

    @classmethod
    def of(cls, tables: Sequence[RankTables], rows: Sequence[ClockRow]) -> Uncertainty:
        """`tables`: by rank; `rows`: by rank, then time. One for which there is none has the clock that it tells."""
        pieces: dict[int, list[ClockRow]] = defaultdict(list)
        for row in rows:
            left_ns = 0 if row.shifted else row.offset_ns  # what is taken off may differ within a clock: it was set
            pieces[row.rank].append(replace(row, rank=row.reference, offset_ns=left_ns))
        clocks = {table.row.rank: (table.clock, tuple(pieces[table.row.rank])) for table in tables}
        return cls(clocks, tables[0].clock if tables else "")

    def between(self, ranks: Sequence[int], at: Ints) -> Ints:
        """At each instant, of the two of the ranks that are worst: that of both against the reference, added. `UNKNOWN`
        where nothing is known of a clock that the others do not have."""
        clocks = list(dict.fromkeys(self.clocks[rank] for rank in ranks))
        if len(clocks) == 1:
            return np.zeros(len(at), np.int64)
        each = np.stack([self._against_reference(*clock, at) for clock in clocks])
        worst = np.partition(each, -2, axis=0)[-2:].sum(axis=0)
        return np.where((each == UNKNOWN).any(axis=0), UNKNOWN, worst)

    def _against_reference(self, clock: str, pieces: Pieces, at: Ints) -> Ints:
        if not pieces:
            return np.full(len(at), 0 if clock == self.reference else UNKNOWN, np.int64)
        begins = np.array([piece.begin_at_ns for piece in pieces], np.int64)
        which = np.maximum(np.searchsorted(begins, at, side="right") - 1, 0)
        found = np.empty(len(at), np.int64)
        for position, piece in enumerate(pieces):
            found[which == position] = _uncertainty_of_piece(piece, at[which == position])
        return found


def _uncertainty_of_piece(piece: ClockRow, at: Ints) -> Ints:
    """What is not taken off an instant counts too: a rank that was left on its own clock is off by all of it."""
    if piece.uncertainty_ns is None or piece.uncertainty_end_ns is None:
        return np.full(len(at), UNKNOWN, np.int64)
    ends = (piece.begin_at_ns, max(piece.end_at_ns, piece.begin_at_ns + 1))
    stated = np.interp(at, ends, (piece.uncertainty_ns, piece.uncertainty_end_ns))
    left = 0.0 if piece.shifted else np.abs(piece.offset_ns + piece.drift_ratio * (at - piece.begin_at_ns))
    return np.asarray(np.rint(stated + left), np.int64)
