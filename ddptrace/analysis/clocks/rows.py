"""Measures how far the ranks' clocks lie apart and how sure that is, and finds which ranks share a clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ddptrace.analysis.clocks.bounds import (
    Floats,
    Ints,
    Mask,
    Messages,
    SharedCollectives,
    Sightings,
    messages_of,
    shared_collectives_of,
    sightings_of,
)
from ddptrace.analysis.clocks.fit import MEETINGS_MIN, Link, likeliest, links_of, proofs
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
    clocks = _clocks_of(tables, seen)
    same = _clock_row(tables, "same clock", uncertainty_ns=0)
    told: RowsByClock = {0: (same,)}
    if clocks.count > 1:
        met = shared_collectives_of(seen.earlier(clocks.stepped_ns), clocks.number)
        sent = messages_of(tables, clocks.number, clocks.stepped_ns)
        told |= dict.fromkeys(range(1, clocks.count), (_clock_row(tables, "clock pairs"),))
        told |= {link.clock: (_clock_row(tables, "not fitted"),) for link in links_of(met, sent, clocks.count)}
        fitted = _pieces_of(met, sent, clocks.count)
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


def _pieces_of(met: SharedCollectives, sent: Messages, clocks: int, halvings: int = 0) -> Pieces:
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
    halves = [_pieces_of(*half, clocks, halvings + 1) for half in _halves(met, sent, lines, bent)]
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


# Which ranks share a clock --------------------------------------------------------------------------------------------


SAME_TIE_NS: Final = 1_000_000_000
"""Ranks of one machine whose clocks are further from Unix time than this differ: one was told another time."""

STEPPED_NS: Final = 20_000
"""Ranks of one machine that were tied to Unix time further apart than this: the wall clock was set in between."""

BROKEN_NS: Final = 20_000
BROKEN_COUNT: Final = 3
"""One that ends so long before another of the same clock begins, in so many collectives, is of another clock."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """`number`: of each rank's clock, from 0 on in order of their lowest ranks. `stepped_ns`: how much later a rank's
    instants read than those of its clock's first rank, since the wall clock was set in between. `disproved`: of each
    rank, whether its clock is not that of the first rank whose clock it was told to share."""

    number: Ints
    stepped_ns: Ints
    disproved: tuple[bool, ...]

    @property
    def count(self) -> int:
        return int(self.number.max(initial=-1)) + 1


def _clocks_of(tables: Sequence[RankTables], seen: Sightings) -> Clocks:
    """Positions, not ranks, are what is counted here."""
    told = _told(tables)
    strangers = _strangers(seen, told, _stepped_ns(tables, told))
    labels = [(one, at if at in strangers else -1) for at, one in enumerate(told.tolist())]
    order = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    number = np.array([order[label] for label in labels], np.int64)
    firsts: dict[str, int] = {}
    pairs = zip(tables, number.tolist(), strict=True)
    disproved = tuple(own != firsts.setdefault(table.clock, own) for table, own in pairs)
    return Clocks(number, _stepped_ns(tables, number), disproved)


def _told(tables: Sequence[RankTables]) -> Ints:
    """By the clock's name, and how far it is from Unix time."""
    firsts: list[RankTables] = []
    told = []
    for table in tables:
        same = (at for at, first in enumerate(firsts) if _may_share(first, table))
        found = next(same, len(firsts))
        if found == len(firsts):
            firsts.append(table)
        told.append(found)
    return np.array(told, np.int64)


def _may_share(one: RankTables, other: RankTables) -> bool:
    if one.clock != other.clock:
        return False
    return one.tie_ns is None or other.tie_ns is None or abs(one.tie_ns - other.tie_ns) < SAME_TIE_NS


def _stepped_ns(tables: Sequence[RankTables], clocks: Ints) -> Ints:
    """Against the first rank of the same clock."""
    found = np.zeros(len(tables), np.int64)
    for at, table in enumerate(tables):
        first = tables[int(np.argmax(clocks == clocks[at]))]
        if table.tie_ns is not None and first.tie_ns is not None:
            found[at] = table.tie_ns - first.tie_ns
    return np.where(np.abs(found) >= STEPPED_NS, found, 0)


def _strangers(seen: Sightings, told: Ints, stepped_ns: Ints) -> list[int]:
    """Ranks that break their clock's proofs, taken out one by one: the one that breaks most, of equal ones the last."""
    begin = seen.begin_at_ns - stepped_ns[seen.position] - BROKEN_NS
    end = seen.end_at_ns - stepped_ns[seen.position]
    broken = _broken(seen, told, begin, end)
    if not len(broken):
        return []
    rows = np.isin(seen.match, broken)
    begins, ends = np.full((len(broken), len(told)), -np.inf), np.full((len(broken), len(told)), np.inf)
    cells = np.searchsorted(broken, seen.match[rows]), seen.position[rows]
    begins[cells], ends[cells] = begin[rows], end[rows]
    return _taken_out(begins, ends, told)


def _broken(seen: Sightings, told: Ints, begin: Ints, end: Ints) -> Ints:
    """Collectives that ranks of one clock cannot have had together; none where they are few."""
    clocks = int(told.max(initial=0)) + 1
    keys, which = np.unique(seen.match[seen.proves] * clocks + told[seen.position[seen.proves]], return_inverse=True)
    last, first = np.full(len(keys), -(2**62)), np.full(len(keys), 2**62)
    np.maximum.at(last, which, begin[seen.proves])
    np.minimum.at(first, which, end[seen.proves])
    broken = keys[last > first]
    counts = np.bincount(broken % clocks, minlength=clocks)
    many: Mask = counts >= BROKEN_COUNT
    return np.unique(broken[many[broken % clocks]] // clocks)


def _taken_out(begins: Floats, ends: Floats, told: Ints) -> list[int]:
    """By collective and rank: of broken ones, when each began and ended it; infinite where it did not take part.
    Written over: what a rank that goes out broke is taken off, so that the rest need not be counted anew."""
    breaks = np.column_stack([_apart(begins, ends, told, one).sum(axis=1) for one in range(len(told))])
    clocks = (told[:, None] == np.unique(told)).astype(np.float64)
    found: list[int] = []
    while True:
        broken = (breaks > 0) @ clocks > 0
        rows = broken[:, broken.sum(axis=0) >= BROKEN_COUNT].any(axis=1)
        if not rows.any():
            return sorted(found)
        counts = breaks[rows].sum(axis=0)
        one = len(counts) - 1 - int(np.argmax(counts[::-1]))
        found.append(one)
        breaks -= _apart(begins, ends, told, one)
        breaks[:, one], begins[:, one], ends[:, one] = 0, -np.inf, np.inf


def _apart(begins: Floats, ends: Floats, told: Ints, one: int) -> Mask:
    """By collective: with which ranks of its clock this one cannot have been in it."""
    apart: Mask = (told == told[one]) & ((ends[:, one, None] < begins) | (begins[:, one, None] > ends))
    return apart
