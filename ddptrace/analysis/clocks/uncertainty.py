"""How far instants of different ranks may be off against each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.ranks import ClockRow

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
            found[which == position] = _of_piece(piece, at[which == position])
        return found


def _of_piece(piece: ClockRow, at: Ints) -> Ints:
    """What is not taken off an instant counts too: a rank that was left on its own clock is off by all of it."""
    if piece.uncertainty_ns is None or piece.uncertainty_end_ns is None:
        return np.full(len(at), UNKNOWN, np.int64)
    ends = (piece.begin_at_ns, max(piece.end_at_ns, piece.begin_at_ns + 1))
    stated = np.interp(at, ends, (piece.uncertainty_ns, piece.uncertainty_end_ns))
    left = 0.0 if piece.shifted else np.abs(piece.offset_ns + piece.drift_ratio * (at - piece.begin_at_ns))
    return np.asarray(np.rint(stated + left), np.int64)
