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
class Wire:
    """An all-reduce of one process group. `workers`: so many at once; `lanes`: groups that share its bytes per second
    and take turns."""

    latency_ns: float
    ns_per_byte: float
    workers: int = DEFAULT_WORKERS
    lanes: int = 1

    def alone_ns(self, nbytes: float) -> float:
        return self.latency_ns + nbytes * self.ns_per_byte

    def scaled(self, before: int, after: int, algorithm: Algorithm = "ring", per_host: int = 1) -> Wire:
        """The same links with another number of ranks. The recorded one is taken as a ring of `before` ranks on as many
        links; `per_host`: ranks that share a link, for the hierarchical one."""
        hop_ns = self.latency_ns / hops(before, "ring")
        byte_ns = self.ns_per_byte / share(before, "ring")
        return replace(
            self,
            latency_ns=hop_ns * hops(after, algorithm, per_host),
            ns_per_byte=byte_ns * share(after, algorithm, per_host),
        )


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
