"""What a collective costs, and how that grows with the number of ranks.

alone     |latency|------- bytes x ns per byte -------|
beside    |latency|------------|                          two at once share the bytes per second
          .       |latency|---------------------|         but not the latency
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

Algorithm = Literal["ring", "tree", "hierarchical"]
ALGORITHMS: Final[tuple[Algorithm, ...]] = ("ring", "tree", "hierarchical")
DEFAULT_WORKERS: Final = 2
"""Threads of a Gloo process group."""


@dataclass(frozen=True, slots=True)
class Small:
    """What a message of at most so many bytes costs, where small ones are sent in another way."""

    most_nbytes: float
    latency_ns: float
    ns_per_byte: float


@dataclass(frozen=True, slots=True)
class Wire:
    """An all-reduce of one process group. `workers`: so many at once; `lanes`: groups that share its bytes per second
    and take turns; `small`: where the recording shows two message-size regimes, the lower one."""

    latency_ns: float
    ns_per_byte: float
    workers: int = DEFAULT_WORKERS
    lanes: int = 1
    small: Small | None = None

    def cost(self, nbytes: float) -> tuple[float, float]:
        """Latency, and the time that its bytes take with the wire to themselves; ns."""
        regime = self.small if self.small is not None and nbytes <= self.small.most_nbytes else self
        return regime.latency_ns, nbytes * regime.ns_per_byte

    def alone_ns(self, nbytes: float) -> float:
        return sum(self.cost(nbytes))

    def costing(self, latency: float, byte: float) -> Wire:
        """So many times the latency, and the time of each byte."""
        small = self.small and replace(
            self.small, latency_ns=self.small.latency_ns * latency, ns_per_byte=self.small.ns_per_byte * byte
        )
        return replace(self, latency_ns=self.latency_ns * latency, ns_per_byte=self.ns_per_byte * byte, small=small)

    def scaled(self, before: int, after: int, algorithm: Algorithm = "ring", per_host: int = 1) -> Wire:
        """The same links with another number of ranks. The recorded one is taken as a ring of `before` ranks on as many
        links; `per_host`: ranks that share a link, for the hierarchical one."""
        latency = hops(after, algorithm, per_host) / hops(before, "ring")
        return self.costing(latency, share(after, algorithm, per_host) / share(before, "ring"))


def hops(ranks: int, algorithm: Algorithm, per_host: int = 1) -> float:
    """Messages that follow each other: a ring passes each piece on 2(n - 1) times, a tree goes up and down, and the
    hierarchical one is a ring of hosts within which a tree adds up first and tells last."""
    if algorithm == "ring":
        return max(2 * (ranks - 1), 1)
    if algorithm == "tree":
        return max(2 * math.ceil(math.log2(ranks)), 1)
    hosts = math.ceil(ranks / per_host)
    return max(2 * math.ceil(math.log2(max(min(per_host, ranks), 1))) + 2 * (hosts - 1), 1)


def share(ranks: int, algorithm: Algorithm, per_host: int = 1) -> float:
    """Bytes over a link for each byte reduced. A tree in pieces sends all of it up and down; hosts of a hierarchical
    ring send what a ring of hosts does."""
    if algorithm == "tree":
        return 2.0
    members = ranks if algorithm == "ring" else math.ceil(ranks / per_host)
    return 2 * (members - 1) / members if members > 1 else 1.0
