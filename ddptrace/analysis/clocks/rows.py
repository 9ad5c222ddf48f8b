"""How far the ranks' clocks lie apart, and how sure that is: lines as far as they hold, and how far from them a clock
can be at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ddptrace.analysis.clocks.bounds import (
    Floats,
    Messages,
    SharedCollectives,
    messages_of,
    shared_collectives_of,
    sightings_of,
)
from ddptrace.analysis.clocks.fit import MEETINGS_MIN, Link, likeliest, links_of, proofs
from ddptrace.analysis.clocks.groups import clocks_of
from ddptrace.analysis.clocks.lines import STEEPEST, Lines, band, corners
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.ranks import ClockRow, MatchRow

RowsByClock = dict[int, tuple[ClockRow, ...]]
"""By clock, what is known of it, as of the reference rank."""


def clock_rows(tables: Sequence[RankTables], matches: Sequence[MatchRow], *, align: bool) -> tuple[ClockRow, ...]:
    """By rank, then time; none where one rank is all there is. Without `align` none is shifted: a row says what was not
    taken off. Ranks of one clock have the same rows, but for what the wall clock was set by between their starts."""
    if len(tables) < 2:
        return ()
    seen = sightings_of(tables, matches)
    clocks = clocks_of(tables, seen)
    same = _clock_row(tables, "same clock", uncertainty_ns=0)
    told: RowsByClock = {0: (same,)}
    if clocks.count > 1:
        met = shared_collectives_of(seen.earlier(clocks.stepped_ns), clocks.number)
        sent = messages_of(tables, clocks.number, clocks.stepped_ns)
        told |= dict.fromkeys(range(1, clocks.count), (_clock_row(tables, "clock pairs"),))
        told |= {link.clock: (_clock_row(tables, "not fitted"),) for link in links_of(met, sent, clocks.count)}
        fitted = pieces_of(met, sent, clocks.count)
        told |= {clock: tuple(_fitted(same.rank, piece) for piece in pieces) for clock, pieces in fitted.items()}
    numbers = zip(tables, clocks.number.tolist(), clocks.stepped_ns.tolist(), clocks.disproved, strict=True)
    return tuple(
        _own(row, table.row.rank, stepped_ns, disproved=disproved, align=align)
        for table, number, stepped_ns, disproved in numbers
        for row in told[number]
    )


def _clock_row(tables: Sequence[RankTables], why: str, uncertainty_ns: int | None = None) -> ClockRow:
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
        reference,
        reference,
        round(piece.begin),
        round(piece.end),
        round(piece.offset),
        piece.drift,
        round(piece.uncertainty),
        round(piece.uncertainty_end),
        piece.proofs,
        shifted=True,
        why="fitted",
    )


def _own(row: ClockRow, rank: int, stepped_ns: int, *, disproved: bool, align: bool) -> ClockRow:
    moves = row.shifted or stepped_ns != 0
    why = "as recorded" if moves and not align else "disagrees" if disproved and row.shifted else row.why
    return replace(row, rank=rank, offset_ns=row.offset_ns + stepped_ns, shifted=moves and align, why=why)


# Lines as far as they hold --------------------------------------------------------------------------------------------


HALF_MIN: Final = 40
"""Proofs that half a stretch has to hold, to be fitted on its own."""
MOST_HALVINGS: Final = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """From `begin` to `end` of the reference's time a clock reads t + offset + drift x (t - begin)."""

    begin: float
    end: float
    offset: float
    drift: float
    uncertainty: float  # at begin
    uncertainty_end: float
    proofs: int

    def at(self, instant: float) -> float:
        """The uncertainty then."""
        share = (instant - self.begin) / max(self.end - self.begin, 1.0)
        within = min(max(share, 0.0), 1.0)
        return self.uncertainty + within * (self.uncertainty_end - self.uncertainty)


Pieces = dict[int, tuple[Piece, ...]]
"""By clock, in time order; of clocks that were fitted, the reference left out."""


def pieces_of(met: SharedCollectives, sent: Messages, clocks: int, halvings: int = 0) -> Pieces:
    """A clock that no line fits over all the time is fitted in halves, and these again. One of which a part is left
    that none fits is not fitted at all: then something else is wrong than its pace."""
    links = links_of(met, sent, clocks)
    if not links:
        return {}
    lines = likeliest(met, sent, links)
    found = _proved(met, sent, lines, links)
    bent = [link for link in links if link.clock not in found and link.parent in {0, *found}]
    if not bent or halvings == MOST_HALVINGS:
        return found
    halves = [pieces_of(*half, clocks, halvings + 1) for half in _halves(met, sent, lines, bent)]
    for clock in {link.clock for link in links} - set(found):
        if halves and all(clock in half for half in halves):
            found |= _joined_halves(clock, *(half[clock] for half in halves))
    return found


def _proved(met: SharedCollectives, sent: Messages, lines: Lines, links: list[Link]) -> Pieces:
    """Each clock against the reference itself where the two have met, else against the one it was reached from."""
    met, sent = lines.off_meetings(met), lines.off_messages(sent)
    found: Pieces = {}
    for link in links:
        direct = Link(link.clock, 0, link.met)
        above, below = proofs(met, sent, direct, lines.zero)
        if min(len(above), len(below)) < MEETINGS_MIN:
            above, below = proofs(met, sent, link, lines.zero)
            direct = link
        parents = found.get(direct.parent, ())
        if direct.parent and not parents:
            continue
        piece = _piece(above, below, lines, direct)
        if piece is not None:
            found[link.clock] = (_beside(piece, parents),)
    return found


def _piece(above: Floats, below: Floats, lines: Lines, link: Link) -> Piece | None:
    """The likeliest line, moved into what is proved where it is not in it."""
    clock, most = link.clock, STEEPEST if link.parent == 0 else 2 * STEEPEST
    slower, faster = ((1 + drift) / (1 + lines.drift[clock]) - 1 for drift in (-most, most))
    fits = corners(above, below, (slower, faster))
    if not len(fits):
        return None
    span = np.array([below[:, 0].min(), above[:, 0].max()])
    low, high = band(fits, span)
    line = np.clip(0.0, low, high)
    beyond = np.maximum(high - line, line - low)
    drift = (line[1] - line[0]) / max(span[1] - span[0], 1.0)
    rest = Lines.same(lines.zero, len(lines.offset))
    rest.offset[clock], rest.drift[clock] = line[0] - drift * span[0], drift
    both = lines.then(rest)
    offset = both.offset[clock] + both.drift[clock] * span[0]
    begin, end = (float(lines.zero + at) for at in span)
    return Piece(begin, end, float(offset), float(both.drift[clock]), float(beyond[0]), float(beyond[1]), len(above))


def _beside(piece: Piece, parents: tuple[Piece, ...]) -> Piece:
    """What the clock it is measured by may be off comes on top."""
    more = [max((one.at(at) for one in parents), default=0.0) for at in (piece.begin, piece.end)]
    begin, end = piece.uncertainty + more[0], piece.uncertainty_end + more[1]
    return replace(piece, uncertainty=begin, uncertainty_end=end)


def _halves(
    met: SharedCollectives, sent: Messages, lines: Lines, bent: list[Link]
) -> list[tuple[SharedCollectives, Messages]]:
    """Before and after the middle of the proofs of those that do not fit; nothing where that leaves too few."""
    at, ways = np.nanmean(lines.off(met.end), axis=1), lines.off_messages(sent).end
    clocks = [link.clock for link in bent]
    theirs = at[met.present[:, clocks].any(axis=1)]
    middle = float(np.median(np.append(theirs, ways[np.isin(sent.sender, clocks) | np.isin(sent.receiver, clocks)])))
    halves = []
    for early in (True, False):
        rows, which = (at < middle) == early, (ways < middle) == early
        half = met.chosen(rows), sent.chosen(which)
        if int(rows.sum()) + int(which.sum()) < HALF_MIN:
            return []
        halves.append(half)
    return halves


def _joined_halves(clock: int, early: tuple[Piece, ...], late: tuple[Piece, ...]) -> Pieces:
    """The first ones hold until the others do. A clock bends but does not jump: if so, nothing."""
    last, first = early[-1], late[0]
    middle = (last.end + first.begin) / 2
    until = last.offset + last.drift * (middle - last.begin)
    since = first.offset + first.drift * (middle - first.begin)
    if abs(since - until) > last.uncertainty_end + first.uncertainty:
        return {}
    return {clock: (*early[:-1], replace(last, end=middle), replace(first, begin=middle, offset=since), *late[1:])}
