"""How fast each host's links carried what was sent over them, while something was under way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ddptrace.analysis.rank_tables import RankTables
from ddptrace.load.tables import LinkSample

SLOW_RATIO: Final = 0.6
"""Below this share of the other hosts' median a host's links are slow."""

BUSY_MIN_RATIO: Final = 0.5
"""For so much of the time in which its ranks communicate they have to be busy: else it is not they that take it."""


@dataclass(frozen=True, slots=True)
class HostLinks:
    """What one host's ranks sent to other hosts. `busy_ns`: added over its connections."""

    host: str
    ranks: tuple[int, ...]
    sent_nbytes: int
    busy_ns: int
    comm_ns: int  # its ranks communicated

    @property
    def bytes_per_s(self) -> float:
        return self.sent_nbytes * 1e9 / self.busy_ns


@dataclass(frozen=True, slots=True)
class SlowHost:
    """`others_bytes_per_s`: the other hosts' median."""

    links: HostLinks
    others_bytes_per_s: float

    @property
    def ratio(self) -> float:
        return self.links.bytes_per_s / self.others_bytes_per_s


def slow_host(tables: Sequence[RankTables]) -> SlowHost | None:
    """The host whose links are slowest, where they are slow enough to tell and take the communication's time."""
    hosts = list(host_links(tables))
    if len(hosts) < 2:
        return None
    slowest = min(hosts, key=lambda one: (one.bytes_per_s, one.ranks))
    others = median(one.bytes_per_s for one in hosts if one is not slowest)
    is_slow = slowest.bytes_per_s < SLOW_RATIO * others
    is_busy = slowest.busy_ns >= BUSY_MIN_RATIO * slowest.comm_ns > 0
    return SlowHost(slowest, others) if is_slow and is_busy else None


def host_links(tables: Sequence[RankTables]) -> Iterator[HostLinks]:
    """In order of the hosts' lowest ranks; those that sent nothing to another host are left out."""
    hosts: defaultdict[str, list[RankTables]] = defaultdict(list)
    for table in tables:
        hosts[table.row.host].append(table)
    for host, members in hosts.items():
        own = {sample.own for table in members for sample in table.load.links}
        ends = [end for table in members for end in _last(table.load.links) if end.peer not in own]
        sent, busy = sum(end.sent_nbytes for end in ends), sum(end.busy_ns for end in ends)
        if sent and busy:
            comm = sum(step.comm_ns for table in members for step in table.steps)
            yield HostLinks(host, tuple(table.row.rank for table in members), sent, busy, comm)


def _last(samples: Iterable[LinkSample]) -> Iterator[LinkSample]:
    """The last sample between each two addresses: counts are so far."""
    yield from {(sample.own, sample.peer): sample for sample in samples}.values()
