"""How far the ranks' clocks lie apart, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddptrace.analysis.clocks.bounds import meetings_of, messages_of, sightings_of
from ddptrace.analysis.clocks.groups import clocks_of
from ddptrace.analysis.clocks.links import links_of
from ddptrace.analysis.clocks.pieces import Piece, pieces_of
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.ranks import ClockRow, MatchRow

Told = dict[int, tuple[ClockRow, ...]]
"""By clock, what is known of it, as of the reference rank."""


def clock_rows(tables: Sequence[RankTables], matches: Sequence[MatchRow], *, align: bool) -> tuple[ClockRow, ...]:
    """By rank, then time; none where one rank is all there is. Without `align` none is shifted: a row says what was not
    taken off. Ranks of one clock have the same rows, but for what the wall clock was set by between their starts."""
    if len(tables) < 2:
        return ()
    seen = sightings_of(tables, matches)
    clocks = clocks_of(tables, seen)
    same = _row(tables, "same clock", uncertainty_ns=0)
    told: Told = {0: (same,)}
    if clocks.count > 1:
        met = meetings_of(seen.earlier(clocks.stepped_ns), clocks.number)
        sent = messages_of(tables, clocks.number, clocks.stepped_ns)
        told |= dict.fromkeys(range(1, clocks.count), (_row(tables, "clock pairs"),))
        told |= {link.clock: (_row(tables, "not fitted"),) for link in links_of(met, sent, clocks.count)}
        fitted = pieces_of(met, sent, clocks.count)
        told |= {clock: tuple(_fitted(same.rank, piece) for piece in pieces) for clock, pieces in fitted.items()}
    numbers = zip(tables, clocks.number.tolist(), clocks.stepped_ns.tolist(), clocks.disproved, strict=True)
    return tuple(
        _own(row, table.row.rank, stepped_ns, disproved=disproved, align=align)
        for table, number, stepped_ns, disproved in numbers
        for row in told[number]
    )


def _row(tables: Sequence[RankTables], why: str, uncertainty_ns: int | None = None) -> ClockRow:
    """As the clock tells, over all the time that any rank shows."""
    instants = list(_instants(tables)) or [0]
    begin, end = min(instants), max(instants)
    reference = tables[0].row.rank
    return ClockRow(reference, reference, begin, end, 0, 0.0, uncertainty_ns, uncertainty_ns, 0, shifted=False, why=why)


def _instants(tables: Sequence[RankTables]) -> Iterator[int]:
    """First and last ones."""
    for table in tables:
        yield from (at for step in (*table.steps[:1], *table.steps[-1:]) for at in (step.begin_at_ns, step.end_at_ns))
        yield from (row.launch_at_ns for row in (*table.collectives[:1], *table.collectives[-1:]))


def _fitted(reference: int, piece: Piece) -> ClockRow:
    return ClockRow(
        reference, reference, round(piece.begin), round(piece.end), round(piece.offset), piece.drift,
        round(piece.uncertainty), round(piece.uncertainty_end), piece.proofs, shifted=True, why="fitted",
    )  # fmt: skip


def _own(row: ClockRow, rank: int, stepped_ns: int, *, disproved: bool, align: bool) -> ClockRow:
    moves = row.shifted or stepped_ns != 0
    why = "as recorded" if moves and not align else "disagrees" if disproved and row.shifted else row.why
    return replace(row, rank=rank, offset_ns=row.offset_ns + stepped_ns, shifted=moves and align, why=why)
