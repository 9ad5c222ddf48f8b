"""Finds out which rank waited for which at each collective, in a run that still grows.

The ranks of one host read the same clock, so their arrivals can be compared directly. A group with ranks on other hosts
is left out, because the last one to arrive is unknown. The results equal those of `ddptrace.analyze` afterwards.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ddptrace.analysis.clocks.rows import SAME_TIE_NS, STEPPED_NS
from ddptrace.analysis.matching.calls import GroupCall, Key, differ
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.ops import SPARSE, family_of
from ddptrace.schema import Evidence
from ddptrace.telemetry.rows import Meeting, RankRows

AWAITED_MAX: Final = 1 << 16
"""Most arrivals that wait for those of other ranks, about 50 MB. Beyond it the oldest are dropped, so there is no
result for a rank that is read much later than the others."""

CLOSED: Final = sys.maxsize
"""A turn after all others."""

Group = tuple[str, str, tuple[int, ...]]
"""Run, name and ranks."""


class Arrival(NamedTuple):
    """One rank at one collective. Instants are Unix time as the rank's clock was tied to it."""

    mark: GroupCall
    key: Key
    launch_unix_ns: int
    begin_unix_ns: int | None  # None: unknown
    length_ns: int
    seen: bool  # its begin was measured, not only its end
    on_device: bool


@dataclass(frozen=True, slots=True)
class Met:
    """One collective on one of its ranks."""

    rank: int
    group: str
    meeting: Meeting


@dataclass(frozen=True, slots=True)
class _Rank:
    clock: str
    tie_ns: int | None


class HostMeetings:
    """Joins the ranks' collectives by group and turn, in whatever order ranks are read."""

    def __init__(self, most: int = AWAITED_MAX) -> None:
        self._most = most
        self._ranks: dict[str, dict[int, _Rank]] = {}  # by run
        self._stepped_ns: dict[str, dict[int, int]] = {}  # by run and rank
        self._partial: set[tuple[str, int]] = set()  # ranks with missing steps
        self._distrusted: set[tuple[str, int]] = set()
        self._awaited: OrderedDict[tuple[Group, int], dict[int, Arrival]] = OrderedDict()
        self._size = 0  # arrivals in it
        self._met: set[Group] = set()
        self._next: dict[Group, int] = {}  # earlier turns are dropped; with `CLOSED` all are

    def distrust(self, run_id: str, rank: int) -> None:
        """Leave out a rank with missing records: its k-th call of a group may really be a later one."""
        if (run_id, rank) not in self._distrusted:
            self._distrusted.add((run_id, rank))
            self._next |= {group: CLOSED for group in self._next if group[0] == run_id and rank in group[2]}

    def add(self, rows: RankRows, calls: Iterable[tuple[int | None, CollectiveRow]]) -> Iterator[Met]:
        """Add whole calls of a rank, each once and in time order, with the steps that launched them. Yield the
        collectives that are complete now."""
        self._know(rows)
        if rows.partial_steps:
            self._partial.add((rows.run_id, rows.rank))
        groups = {
            name: (rows.run_id, name, ranks)
            for name, ranks in rows.groups.items()
            if len(ranks) > 1 and rows.rank in ranks
        }
        for step, row in calls:
            group = groups.get(row.group)
            if group is not None and row.turn is not None and row.turn >= self._begin(group):
                yield from self._arrive(group, rows.rank, _arrival(rows, row, row.turn, step))

    def _know(self, rows: RankRows) -> None:
        ranks, own = self._ranks.setdefault(rows.run_id, {}), _Rank(rows.clock, rows.tie_ns)
        if ranks.get(rows.rank) != own:
            ranks[rows.rank] = own
            self._stepped_ns[rows.run_id] = {rank: _stepped_ns(ranks, rank) for rank in sorted(ranks)}

    def _begin(self, group: Group) -> int:
        if group not in self._next:
            is_distrusted = any((group[0], rank) in self._distrusted for rank in group[2])
            self._next[group] = CLOSED if is_distrusted else 0
        return self._next[group]

    def _arrive(self, group: Group, rank: int, arrival: Arrival) -> Iterator[Met]:
        key = group, arrival.mark.turn
        here = self._awaited.setdefault(key, {})
        self._size += rank not in here
        here[rank] = arrival
        if len(here) == len(group[2]):
            self._size -= len(self._awaited.pop(key))
            self._met.add(group)
            yield from self._meet(group, here)
        while self._size > self._most:
            self._drop_the_oldest()

    def _drop_the_oldest(self) -> None:
        """Drop the oldest collective. If its group was never complete, some ranks are on other hosts: drop the group
        too."""
        (group, turn), dropped = self._awaited.popitem(last=False)
        self._size -= len(dropped)
        self._next[group] = max(self._next[group], turn + 1) if group in self._met else CLOSED
        for key in [key for key in self._awaited if key[0] == group and self._next[group] == CLOSED]:
            self._size -= len(self._awaited.pop(key))

    def _meet(self, group: Group, here: Mapping[int, Arrival]) -> Iterator[Met]:
        run_id, name, ranks = group
        if self._part(run_id, here) or not self._share_a_clock(run_id, ranks):
            self._next[group] = CLOSED
            return
        for rank, meeting in _meetings(here, self._stepped_ns[run_id]):
            yield Met(rank, name, meeting)

    def _part(self, run_id: str, here: Mapping[int, Arrival]) -> bool:
        """Whether the ranks called different things. If steps are missing, calls may be too, and must be of the same
        step."""
        first, *others = here.values()
        if any(other.key != first.key and differ(first.mark, other.mark) for other in others):
            return True
        counted = any((run_id, rank) in self._partial for rank in here) if self._partial else False
        return counted and any(other.mark.step != first.mark.step for other in others)

    def _share_a_clock(self, run_id: str, ranks: tuple[int, ...]) -> bool:
        known = [self._ranks[run_id][rank] for rank in ranks]
        ties = [rank.tie_ns for rank in known if rank.tie_ns is not None]
        return len({rank.clock for rank in known}) == 1 and (not ties or max(ties) - min(ties) < SAME_TIE_NS)


def _stepped_ns(ranks: Mapping[int, _Rank], rank: int) -> int:
    """Return by how much the rank's instants are later than those of the lowest rank with its clock, because the wall
    clock was set between their starts."""
    own = ranks[rank]
    first = ranks[min(other for other, known in ranks.items() if known.clock == own.clock)]
    if own.tie_ns is None or first.tie_ns is None:
        return 0
    apart = own.tie_ns - first.tie_ns
    return apart if abs(apart) >= STEPPED_NS else 0


def _arrival(rows: RankRows, row: CollectiveRow, turn: int, step: int | None) -> Arrival:
    zero, begin, end = rows.zero_unix_ns, row.exec_start_at_ns, row.exec_end_at_ns
    is_known = begin is not None and end is not None and row.evidence is not Evidence.HOST
    mark = GroupCall(turn, row.op, None if row.op == SPARSE else row.nbytes, row.dtype, row.peer, step=step)
    return Arrival(
        mark,
        mark.key,
        zero + row.launch_at_ns,
        zero + begin if is_known and begin is not None else None,
        row.comm_ns or 0,
        row.tells_arrival,
        row.on_device,
    )


def _meetings(here: Mapping[int, Arrival], stepped_ns: Mapping[int, int]) -> Iterator[tuple[int, Meeting]]:
    """Yield the result of each rank. There is none if a rank can end before all have arrived, if the execution of one
    is unknown, or if only the launch is known of a collective on a device."""
    every = here.values()
    by_begin = all(arrival.seen for arrival in every)
    waits = all(family_of(arrival.mark.op).ends_together for arrival in every)
    if not waits or (not by_begin and any(arrival.on_device for arrival in every)):
        return
    begins = {rank: here[rank].begin_unix_ns for rank in sorted(here)}
    known = {rank: at - stepped_ns[rank] for rank, at in begins.items() if at is not None}
    if len(known) < len(here):
        return
    launches = {rank: here[rank].launch_unix_ns - stepped_ns[rank] for rank in known}
    arrivals = known if by_begin else launches
    in_order = sorted(arrivals.values())
    first, before, at = in_order[0], in_order[-2], in_order[-1]
    last = max(arrivals, key=arrivals.__getitem__)  # the lowest rank among equals
    for rank, begin in known.items():
        length = here[rank].length_ns
        wait = min(max(at - begin, 0), length)
        yield rank, Meeting(wait, length - wait, last, at - first, at - before, min(here), at)
