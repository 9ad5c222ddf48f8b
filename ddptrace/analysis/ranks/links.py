"""Which host's links are slow, by how fast its connections carried what was sent while something was under way.

    host 0 ──── 41 MB/s ────▶ host 3 ──── 47 MB/s ────▶ host 2 ──── 135 MB/s ────▶ host 1 ...

A slow host slows what it receives as well, since acknowledgements go out over the same link: it is the one that the
slow connections have in common. Of two hosts both lie at the ends of all; there the other one ends collectives later,
as it still receives when the slow one has handed its last bytes over to its system.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.load.tables import LinkSample

SLOW_RATIO: Final = 0.6
"""Below this share of the median of the connections that do not touch a host, its links are slow."""

BUSY_MIN_RATIO: Final = 0.5
"""For so much of the time in which its ranks communicate they have to be busy: else it is not they that take it."""

LOADED_MIN_RATIO: Final = 0.1
"""Of what a host sent: a connection that carried less tells of its delay and not of its rate."""

LATER_MIN_RATIO: Final = 0.2
"""So much later, of the transfers' time, collectives end on one of two hosts where the other's link is slow."""

FAST_SHARE: Final = 0.25
"""Of the transfers of one kind: so many of them were fast, if any."""

Ends = Mapping[tuple[int, int], int]
"""Of executions, by rank and seq."""


@dataclass(frozen=True, slots=True)
class Connection:
    """All that one host sent to another. `busy_ns`: added over its connections."""

    sender: str
    receiver: str
    sent_nbytes: int
    busy_ns: int

    @property
    def bytes_per_s(self) -> float:
        return self.sent_nbytes * 1e9 / self.busy_ns

    def touches(self, host: str) -> bool:
        return host in (self.sender, self.receiver)


@dataclass(frozen=True, slots=True)
class SlowHost:
    """`others_bytes_per_s`: the median of the connections that do not touch it, of two hosts that of the other one."""

    host: str
    ranks: tuple[int, ...]
    bytes_per_s: float
    others_bytes_per_s: float

    @property
    def ratio(self) -> float:
        return self.bytes_per_s / self.others_bytes_per_s


def slow_host(tables: Sequence[RankTables], matches: Sequence[MatchRow] = ()) -> SlowHost | None:
    """The host whose links are slowest, where they are slow enough to tell and take the communication's time."""
    members: defaultdict[str, list[RankTables]] = defaultdict(list)
    for table in tables:
        members[table.row.host].append(table)
    found = list(connections(members))
    if not found:
        return None
    slowest = min(found, key=lambda one: one.bytes_per_s)
    found_host = _named(slowest, found, _later_host(members, matches)) if len(members) > 1 else None
    if found_host is None:
        return None
    host, others = found_host
    own = min((connection for connection in found if connection.touches(host)), key=lambda one: one.bytes_per_s)
    comm_ns = sum(step.comm_ns or 0 for table in members[host] for step in table.steps)
    if not own.busy_ns >= BUSY_MIN_RATIO * comm_ns > 0:
        return None
    return SlowHost(host, tuple(table.row.rank for table in members[host]), own.bytes_per_s, others)


def fast_of_its_kind(matches: Sequence[MatchRow], transfer_ns: Ints) -> Ints:
    """Each transfer, or what the fastest quarter of those of the same bucket or size takes at most, if that is less."""
    kinds: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for position, row in enumerate(matches):
        kinds[row.group, row.ranks, row.op, row.nbytes, row.bucket].append(position)
    fast = transfer_ns.copy()
    for positions in kinds.values():
        fast[positions] = np.minimum(fast[positions], int(np.quantile(transfer_ns[positions], FAST_SHARE)))
    return fast


def _named(slowest: Connection, found: Sequence[Connection], later: str | None) -> tuple[str, float] | None:
    """The slow host, and how fast the others are."""
    sender, receiver = slowest.sender, slowest.receiver
    apart = {
        host: [connection.bytes_per_s for connection in found if not connection.touches(host)]
        for host in (sender, receiver)
    }
    if any(apart.values()):
        host = max(apart, key=lambda one: min(apart[one], default=inf))  # the sender, where both explain as much
        others = median(apart[host] or _not_from(host, found))
        return (host, others) if slowest.bytes_per_s < SLOW_RATIO * others else None
    back = _not_from(sender, found)
    if back and (slowest.bytes_per_s < SLOW_RATIO * median(back) or later == receiver):
        return sender, median(back)
    return None


def _not_from(host: str, found: Sequence[Connection]) -> list[float]:
    return [connection.bytes_per_s for connection in found if connection.sender != host]


def connections(members: Mapping[str, Sequence[RankTables]]) -> Iterator[Connection]:
    """Between each two of the hosts, in their order; those that carried little of what their sender sent are left
    out."""
    owners = {sample.own: host for host, tables in members.items() for table in tables for sample in table.load.links}
    for host, tables in members.items():
        sent: defaultdict[str, list[LinkSample]] = defaultdict(list)
        for end in (end for table in tables for end in _last(table.load.links)):
            receiver = owners.get(end.peer)
            if receiver is not None and receiver != host:
                sent[receiver].append(end)
        least = LOADED_MIN_RATIO * sum(end.sent_nbytes for ends in sent.values() for end in ends)
        for receiver, ends in sent.items():
            loaded = [end for end in ends if end.sent_nbytes >= least and end.sent_nbytes and end.busy_ns]
            if loaded:
                yield Connection(host, receiver, sum(e.sent_nbytes for e in loaded), sum(e.busy_ns for e in loaded))


def _last(samples: Iterable[LinkSample]) -> Iterator[LinkSample]:
    """The last sample between each two addresses: counts are so far."""
    yield from {(sample.own, sample.peer): sample for sample in samples}.values()


def _later_host(members: Mapping[str, Sequence[RankTables]], matches: Sequence[MatchRow]) -> str | None:
    """Of two hosts the one where collectives end later, by more than their clocks may lie apart."""
    if len(members) != 2:
        return None
    ends = [_ends(tables) for tables in members.values()]
    later_ns = unsure_ns = transfer_ns = 0
    for match in matches:
        if match.uncertainty_ns is None:
            continue
        keys = list(zip(match.ranks, match.seqs, strict=True))
        last = [max((of[key] for key in keys if key in of), default=None) for of in ends]
        if last[0] is not None and last[1] is not None:
            later_ns += last[1] - last[0]
            unsure_ns += match.uncertainty_ns
            transfer_ns += max(last[0], last[1]) - (match.last_arrival_at_ns or max(last[0], last[1]))
    if abs(later_ns) <= unsure_ns + LATER_MIN_RATIO * max(transfer_ns, 0):
        return None
    return list(members)[later_ns > 0]


def _ends(tables: Sequence[RankTables]) -> Ends:
    return {
        (row.rank, row.seq): row.exec_end_at_ns
        for table in tables
        for row in table.collectives
        if row.exec_end_at_ns is not None
    }
