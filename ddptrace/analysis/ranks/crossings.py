"""Where the ranks' trails cross: matched collectives, who has to arrive before they run, and how long they then take.

rank 0   launch ├────── wait ──────┤
rank 1                  launch ├───┤
                        arrival ├──┤ transfer

Beside those that are matched there are some that ranks are only seen to wait for: they have no times of their own in
`matches` but hold ranks up all the same, as the averaging of a loss in each step does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.clocks.bounds import Waited, waited_for
from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.matching.calls import Partial, groups_in_part
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.trail import can_be
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import LAUNCH, WAIT, MatchRow, Trail
from ddptrace.ops import Root, family_of

NONE: Final = -1


@dataclass(frozen=True, slots=True)
class Crossings:
    """Columns by matched collective, and for each trail the collective that its event is about, -1 where it has no part
    in one: it is no launch or wait, or not of a collective whose arrivals are all known."""

    needed: Ints  # arrivals, before it can run; 0 where they are not all known
    before: Ints  # the one in its group that it queued behind, -1 none
    arrival_at_ns: Ints  # the last one
    begin_at_ns: Ints  # of the transfer: nor before what it queued behind had ended
    end_at_ns: Ints  # on the rank where it ended first
    last_trail: Ints  # of the last one to arrive, and its launch there
    last_event: Ints
    of_events: tuple[Ints, ...]

    @property
    def transfer_ns(self) -> Ints:
        return self.end_at_ns - self.begin_at_ns


def begins_of(trail: Trail) -> Ints:
    """When each event began: a wait, where the host blocked; the others take no time."""
    before: Ints = np.append(trail.at_ns[:1], trail.at_ns[:-1])
    own: Ints = trail.local_ns.sum(axis=1)
    return before + own


def crossings_of(tables: Sequence[RankTables], matches: Sequence[MatchRow]) -> Crossings:
    """Of the tables' trails; positions of collectives are those in `matches`."""
    trails = [table.trail for table in tables]
    roots = _roots(tables, matches)
    parts = _Parts.of(matches, roots)
    events = [parts.events(trail) for trail in trails]
    needed = _needed(matches, roots)
    arrived, arrival, last_trail, last_event = _last_arrivals(trails, events, len(matches))
    known = (arrived == needed) & (needed > 0)
    before, begin, end = _transfers(matches, arrival, _before(matches, known))
    whole = np.append(known, False)
    of_events = tuple(np.where(whole[event], event, NONE) for event in events)
    return Crossings(np.where(known, needed, 0), before, arrival, begin, end, last_trail, last_event, of_events)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Who has a part in what: columns by rank and collective, sorted by rank, then seq."""

    rank: Ints
    seq: Ints
    match: Ints
    root: Ints  # of the collective, -1 without
    from_root: NDArray[np.bool_]

    @classmethod
    def of(cls, matches: Sequence[MatchRow], roots: Ints) -> _Parts:
        sizes = np.array([len(row.ranks) for row in matches], np.int64)
        rank = np.fromiter(chain.from_iterable(row.ranks for row in matches), np.int64, int(sizes.sum()))
        seq = np.fromiter(chain.from_iterable(row.seqs for row in matches), np.int64, int(sizes.sum()))
        order, match = np.lexsort((seq, rank)), np.repeat(np.arange(len(matches)), sizes)
        from_root = np.array([family_of(row.op).root is Root.FROM for row in matches], np.bool_)
        match = match[order]
        return cls(rank[order], seq[order], match, roots[match], from_root[match])

    def events(self, trail: Trail) -> Ints:
        """By event, the collective that it arrives at or waits for, -1 none."""
        first, last = np.searchsorted(self.rank, (trail.rank, trail.rank + 1)).tolist()
        if first == last:
            return np.full(len(trail.seq), NONE, np.int64)
        at = first + np.minimum(np.searchsorted(self.seq[first:last], trail.seq), last - first - 1)
        is_root, from_root = self.root[at] == trail.rank, self.from_root[at]
        arrives = (trail.kind == LAUNCH) & (is_root | ~from_root)
        waits = (trail.kind == WAIT) & ((self.root[at] == NONE) | (is_root != from_root))
        return np.where((self.seq[at] == trail.seq) & (arrives | waits), self.match[at], NONE)


def _roots(tables: Sequence[RankTables], matches: Sequence[MatchRow]) -> Ints:
    """By collective, the rank that is its root, -1 where it has none or nobody told."""
    wanted = {
        (rank, seq): match
        for match, row in enumerate(matches)
        if not family_of(row.op).ends_together
        for rank, seq in zip(row.ranks, row.seqs, strict=True)
    }
    roots = np.full(len(matches), NONE, np.int64)
    if wanted:
        for row in chain.from_iterable(table.collectives for table in tables):
            match = wanted.get((row.rank, row.seq))
            if match is not None and row.peer is not None:
                roots[match] = row.peer
    return roots


def _needed(matches: Sequence[MatchRow], roots: Ints) -> Ints:
    """Arrivals, 0 where nothing tells who waits for whom."""
    needed = np.zeros(len(matches), np.int64)
    for match, (row, root) in enumerate(zip(matches, roots.tolist(), strict=True)):
        family = family_of(row.op)
        if family.ends_together or (family.root is Root.TO and root != NONE):
            needed[match] = len(row.ranks)
        elif family.root is Root.FROM and root != NONE:
            needed[match] = 1
    return needed


def _last_arrivals(trails: Sequence[Trail], events: Sequence[Ints], n: int) -> tuple[Ints, Ints, Ints, Ints]:
    """By collective: how many arrived, when the last one did, its trail and event; of several the lowest rank."""
    arrived, at = np.zeros(n, np.int64), np.full(n, np.iinfo(np.int64).min)
    last_trail, last_event = np.full(n, NONE, np.int64), np.full(n, NONE, np.int64)
    for position, (trail, crosses) in enumerate(zip(trails, events, strict=True)):
        own = np.flatnonzero((trail.kind == LAUNCH) & (crosses != NONE))
        later = own[trail.at_ns[own] > at[crosses[own]]]
        arrived[crosses[own]] += 1
        met = crosses[later]
        at[met], last_trail[met], last_event[met] = trail.at_ns[later], position, later
    return arrived, at, last_trail, last_event


def _before(matches: Sequence[MatchRow], known: NDArray[np.bool_]) -> Ints:
    """By collective, the one before it in its group of those that are known."""
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = defaultdict(list)
    for match in np.flatnonzero(known).tolist():
        groups[matches[match].group, matches[match].ranks].append((matches[match].ordinal, match))
    before = np.full(len(matches), NONE, np.int64)
    for calls in groups.values():
        for (_, one), (_, following) in pairwise(sorted(calls)):
            before[following] = one
    return before


def _transfers(matches: Sequence[MatchRow], arrival: Ints, before: Ints) -> tuple[Ints, Ints, Ints]:
    """By collective, what it queued behind, when it began to move bytes, and when it had. One that ended before the one
    before it (a backend with several threads) did not queue."""
    end = np.maximum(arrival, np.array([row.first_end_at_ns for row in matches], np.int64))
    queued = (before != NONE) & (end >= end[before])
    return np.where(queued, before, NONE), np.where(queued, np.maximum(arrival, end[before]), arrival), end


# All collectives that ranks met in ------------------------------------------------------------------------------------


Span = tuple[int, int]


class ComparedRanks:
    """The ranks with steps that met others, `tables`, and all that these met in, `matches`, the `matched` ones first.
    Nobody waits for one that met nobody."""

    def __init__(self, ranks: Sequence[RankTables], matches: Sequence[MatchRow]) -> None:
        """`ranks`: all that are here; `matches`: of them, where they were matched."""
        lived = [table for table in ranks if len(table.trail.at_ns) and can_be(table.trail)]
        self.matches, self.matched = met_in(lived, matches), len(matches)
        numbers = {rank for row in self.matches for rank in row.ranks}
        self.tables = [table for table in lived if table.row.rank in numbers]
        self._ranks = ranks

    @cached_property
    def partial(self) -> list[Partial]:
        """Groups of which some ranks are not here."""
        return groups_in_part(self._ranks, self.tables)

    @cached_property
    def crossings(self) -> Crossings:
        """Where the trails of `tables` cross."""
        return crossings_of(self.tables, self.matches)


def met_in(tables: Sequence[RankTables], matches: Sequence[MatchRow]) -> tuple[MatchRow, ...]:
    """`matches`, and after them the others, of which `match` is -1."""
    matched = {key for row in matches for key in zip(row.ranks, row.seqs, strict=True)}
    found = [waited for waited in waited_for(tables) if not matched & set(_keys(waited, tables))]
    wanted = {key for waited in found for key in _keys(waited, tables)}
    spans = {
        (row.rank, row.seq): _waited_span(row)
        for table in tables
        for row in table.collectives
        if row.part == 0 and (row.rank, row.seq) in wanted
    }
    return (*matches, *(_waited_row(waited, tables, [spans[key] for key in _keys(waited, tables)]) for waited in found))


def _keys(waited: Waited, tables: Sequence[RankTables]) -> list[tuple[int, int]]:
    """Rank and seq on each of its ranks."""
    return [(tables[position].row.rank, seq) for position, seq in zip(waited.positions, waited.seqs, strict=True)]


def _waited_span(row: CollectiveRow) -> Span:
    """From its call until nobody waited any more."""
    return row.launch_at_ns, row.launch_at_ns if row.exec_end_at_ns is None else row.exec_end_at_ns


def _waited_row(waited: Waited, tables: Sequence[RankTables], spans: Sequence[Span]) -> MatchRow:
    begins, ends = zip(*spans, strict=True)
    ranks = tuple(tables[position].row.rank for position in waited.positions)
    shortest = min(end - begin for begin, end in spans)
    return MatchRow(
        -1,
        waited.group,
        waited.turn,
        waited.op,
        waited.nbytes,
        ranks,
        waited.seqs,
        min(begins),
        max(begins),
        min(ends),
        max(ends),
        shortest,
    )
