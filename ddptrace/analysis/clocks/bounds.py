"""What proves how far clocks lie apart: nothing ends before what it needs has begun.

rank 0   [=========)        a collective, on one time line: each end lies after each begin
rank 1        [=====)

rank 0   send ┤             a message: its arrival lies after its sending
rank 1          ├ recv

Some collectives are known only by the time at which a rank's wait for them ended. They are not matched, because nobody
knows when they ran. They still bound the clocks, because no wait ends before all ranks have called: often they are the
shortest of all, such as the averaging of a loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.collectives.rows import HOOK_OP
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.rpc.rows import rpc_rows
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.ops import ALL_TO_ALL, RECEIVE, SEND, family_of
from ddptrace.schema import Evidence

Group = tuple[str, tuple[int, ...]]
ByTurn = dict[int, CollectiveRow]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
SLACK_NS: Final = 1_000
"""Profilers record instants to a microsecond."""
MOST_CELLS: Final = 4_000_000
"""Most collectives times clocks; of more, a random sample is used."""
Message = tuple[int, int, int, int]
"""Ranks that sent and received, and when."""


@dataclass(frozen=True, slots=True)
class Waited:
    """One collective. `positions`: of its ranks among all; `seqs` on each."""

    group: str
    turn: int
    op: str
    nbytes: int | None  # None where it is not the same on all
    positions: tuple[int, ...]
    seqs: tuple[int, ...]


def waited_for(tables: Sequence[RankTables]) -> Iterator[Waited]:
    """Yield them by group and turn, as long as the ranks with complete records make the same calls."""
    groups: dict[Group, dict[int, ByTurn]] = defaultdict(dict)
    for position, table in enumerate(tables):
        ranks = dict(table.facts.groups) if _counts(table) else {}
        for name, rows in _by_group(table.collectives).items():
            if name in ranks:
                groups[name, ranks[name]][position] = rows
    for (name, _), shown in sorted(groups.items()):
        if len(shown) > 1:
            yield from _of_group(name, shown)


def _counts(table: RankTables) -> bool:
    return table.facts.recorded and not table.facts.dropped and not table.facts.kept.sampled


def _by_group(rows: Sequence[CollectiveRow]) -> dict[str, ByTurn]:
    found: dict[str, ByTurn] = defaultdict(dict)
    for row in rows:
        if row.turn is not None and row.part == 0 and row.op != HOOK_OP:
            found[row.group][row.turn] = row
    return found


def _of_group(name: str, shown: dict[int, ByTurn]) -> Iterator[Waited]:
    turns = set.intersection(*(set(rows) for rows in shown.values()))
    for turn in sorted(turns):
        rows = [mine[turn] for mine in shown.values()]
        if _differ(rows):
            return
        if family_of(rows[0].op).ends_together and _is_waited(rows):
            sizes = {row.nbytes for row in rows}
            nbytes = rows[0].nbytes if len(sizes) == 1 else None
            yield Waited(name, turn, rows[0].op, nbytes, tuple(shown), tuple(row.seq for row in rows))


def _differ(rows: Sequence[CollectiveRow]) -> bool:
    first = rows[0]
    same_nbytes = family_of(first.op).same_nbytes
    return any(row.op != first.op or (same_nbytes and row.nbytes != first.nbytes) for row in rows)


def _is_waited(rows: Sequence[CollectiveRow]) -> bool:
    known = all(row.exec_end_at_ns is not None for row in rows)
    return known and any(row.evidence is Evidence.HOST for row in rows)


@dataclass(frozen=True, slots=True)
class Sightings:
    """Collectives that ranks end together, one entry for each rank of each, by collective. A begin is that of the
    execution where it was seen, else the call: an inferred one may be late, and would prove too much."""

    match: Ints
    position: Ints  # of the rank among all
    begin_at_ns: Ints
    end_at_ns: Ints
    proves: Mask  # every rank needed something of every other one, so that its end proves their begins

    def earlier(self, by_ns: Ints) -> Sightings:
        """Move the instants of each rank; `by_ns` of shape (ranks,)."""
        own = by_ns[self.position]
        return replace(self, begin_at_ns=self.begin_at_ns - own, end_at_ns=self.end_at_ns - own)


@dataclass(frozen=True, slots=True)
class SharedCollectives:
    """The same by clock, of those that ranks of at least two clocks took part in: when the last of a clock's ranks
    began and the first ended. Shape (n, clocks), NaN where none took part."""

    begin: Floats
    end: Floats
    proves: Mask

    def __len__(self) -> int:
        return len(self.begin)

    def chosen(self, rows: Mask | Ints) -> SharedCollectives:
        return SharedCollectives(self.begin[rows], self.end[rows], self.proves[rows])

    @property
    def present(self) -> Mask:
        return ~np.isnan(self.begin)


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages that left one clock at `begin` and had arrived at another by `end`; shape (n,)."""

    sender: Ints  # a clock
    receiver: Ints
    begin: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.begin)

    def chosen(self, rows: Mask) -> Messages:
        return Messages(self.sender[rows], self.receiver[rows], self.begin[rows], self.end[rows])


def sightings_of(tables: Sequence[RankTables], matches: Sequence[MatchRow]) -> Sightings:
    """Of `matches` in their order, then of those that ranks only waited for."""
    ranks = [table.row.rank for table in tables]
    found = [
        (row.op, row.nbytes, np.searchsorted(ranks, row.ranks), row.seqs)
        for row in matches
        if family_of(row.op).ends_together
    ]
    found += [(waited.op, waited.nbytes, np.array(waited.positions), waited.seqs) for waited in waited_for(tables)]
    counts = [len(seqs) for *_, seqs in found]
    match = np.repeat(np.arange(len(found)), counts)
    seqs = np.fromiter(chain.from_iterable(seqs for *_, seqs in found), np.int64, len(match))
    position = np.concatenate([one for _, _, one, _ in found] or [np.zeros(0, np.int64)])
    begin, end = np.zeros(len(match), np.int64), np.zeros(len(match), np.int64)
    for number, table in enumerate(tables):
        mine = np.flatnonzero(position == number)
        begin[mine], end[mine] = _spans(table, seqs[mine])
    proves = np.array([_needs_all(op, nbytes) for op, nbytes, *_ in found], np.bool_)
    return Sightings(match, position, begin, end, proves[match])


def shared_collectives_of(seen: Sightings, clocks: Ints) -> SharedCollectives:
    """`clocks`: the number of each rank's, from 0 on."""
    count = int(clocks.max(initial=-1)) + 1
    clock = clocks[seen.position]
    match, row = _of_several(seen.match, clock, count)
    chosen = row >= 0
    begin = np.full((len(match), count), -np.inf)
    end = np.full((len(match), count), np.inf)
    np.maximum.at(begin, (row[chosen], clock[chosen]), seen.begin_at_ns[chosen] - SLACK_NS)
    np.minimum.at(end, (row[chosen], clock[chosen]), seen.end_at_ns[chosen])
    absent = np.isinf(begin)
    begin[absent], end[absent] = np.nan, np.nan
    proves = np.zeros(len(match), np.bool_)
    proves[row[chosen]] = seen.proves[chosen]
    return SharedCollectives(begin, end, proves)


def messages_of(tables: Sequence[RankTables], clocks: Ints, by_ns: Ints) -> Messages:
    """Collect sends, receives and remote calls between ranks of different clocks. `by_ns` as in `Sightings.earlier`."""
    found = np.array([*_sent(tables), *_called(tables)], np.int64).reshape(-1, 4)
    sender, receiver = np.searchsorted([table.row.rank for table in tables], found[:, :2]).T
    begin, end = found[:, 2] - by_ns[sender] - SLACK_NS, found[:, 3] - by_ns[receiver]
    every = Messages(clocks[sender], clocks[receiver], begin.astype(np.float64), end.astype(np.float64))
    return every.chosen(every.sender != every.receiver)


def _needs_all(op: str, nbytes: int | None) -> bool:
    """An exchange that differs by rank can be empty between two."""
    return nbytes is not None or family_of(op) is not ALL_TO_ALL


def _spans(table: RankTables, wanted: Ints) -> tuple[Ints, Ints]:
    """Begin and end of these collectives. The end of one in several parts is that of the last."""
    known = [row for row in table.collectives if row.exec_end_at_ns is not None]
    exact = (Evidence.DEVICE, Evidence.BACKEND)
    begins = (row.exec_start_at_ns if row.evidence in exact else row.launch_at_ns for row in known)
    columns = [(row.seq, -row.part, begin, row.exec_end_at_ns) for row, begin in zip(known, begins, strict=True)]
    seq, after, begin, end = np.array(columns, np.int64).reshape(-1, 4).T
    order = np.lexsort((after, seq))
    seq, begin, end = seq[order], begin[order], end[order]
    last = np.searchsorted(seq, wanted)
    first = np.searchsorted(seq, wanted, side="right") - 1
    return begin[first], end[last]


def _of_several(match: Ints, clock: Ints, clocks: int) -> tuple[Ints, Ints]:
    """The collectives that ranks of several clocks took part in, and each entry's row among them; -1 where none."""
    size = int(match.max(initial=-1)) + 1
    low, high = np.full(size, clocks), np.full(size, -1)
    np.minimum.at(low, match, clock)
    np.maximum.at(high, match, clock)
    chosen = np.flatnonzero(high > low)
    most = MOST_CELLS // max(clocks, 1)
    if len(chosen) > most:
        chosen = np.sort(np.random.default_rng(0).permutation(chosen)[:most])
    row = np.full(size, -1)
    row[chosen] = np.arange(len(chosen))
    return chosen, row[match]


def _sent(tables: Sequence[RankTables]) -> Iterator[Message]:
    """Bound by counts: when the k-th receive from a rank ended, that rank had begun k sends, whichever belong together.
    That needs a record of every send; receives may be missing."""
    sends: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    receives: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for table in tables:
        rank = table.row.rank
        for row in table.collectives:
            if row.peer is None or row.part:
                continue
            if family_of(row.op) is SEND and _has_all(table):
                sends[row.group, rank, row.peer].append(row.launch_at_ns)
            elif family_of(row.op) is RECEIVE and row.exec_end_at_ns is not None:
                receives[row.group, row.peer, rank].append(row.exec_end_at_ns)
    for key, ends in receives.items():
        if len(ends) <= len(sends.get(key, ())):
            yield from ((key[1], key[2], begin, end) for begin, end in zip(sorted(sends[key]), sorted(ends)))  # noqa: B905 (as far as the receives go)


def _has_all(table: RankTables) -> bool:
    facts = table.facts
    return facts.recorded and not facts.dropped and not facts.kept.let_go and not facts.kept.sampled


def _called(tables: Sequence[RankTables]) -> Iterator[Message]:
    """A function runs within its call."""
    known = {table.row.rank for table in tables}
    rows = rpc_rows([table.rpc for table in tables]) if any(table.rpc.rpc.calls for table in tables) else ()
    for row in rows:
        caller, callee = row.rank, row.callee_rank
        if caller is None or callee is None or not {caller, callee} <= known:
            continue
        if row.launch_at_ns is not None and row.run_start_at_ns is not None:
            yield caller, callee, row.launch_at_ns, row.run_start_at_ns
        answered = row.op in ("rpc_sync", "rpc_async") and not row.failed  # others may be told before, or of a timeout
        if answered and row.run_end_at_ns is not None and row.done_at_ns is not None:
            yield callee, caller, row.run_end_at_ns, row.done_at_ns
