"""Instants, and what has to pass between them. Played, every instant comes as soon as all that it waits for allows:

host     launch ──10──▶ launch ──10──▶ …        an arrow: the later instant comes at least so much after the earlier
            │5             │5
device    begin ─7─▶ end  begin ─9─▶ end        begin = max(launch + 5, end of the work before)
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints
from ddptrace.errors import DdptraceError

Floats = NDArray[np.float64]


class Span(enum.IntEnum):
    """What passes between two instants."""

    HOST = 0  # the host works
    DATA = 1  # the host fetches a batch
    ALLOCATE = 2  # the host allocates or frees memory
    DELAY = 3  # work begins after it may
    COMPUTE = 4  # a kernel runs that does not communicate
    MEMORY = 5  # a copy or fill runs
    TRANSFER = 6  # a kernel communicates
    ORDER = 7  # nothing: the one waits for the other
    ARRIVAL = 8  # nothing: ranks wait for one to come to a collective


@dataclass(frozen=True, slots=True)
class Graph:
    """Arrows are sorted by the instant that they lead to, and instants by when they can be told: an arrow leads from a
    lower number to a higher one."""

    at_ns: Ints  # by instant, as recorded
    source: Ints  # by arrow: number of the earlier instant
    target: Ints  # number of the later one
    span: NDArray[np.uint8]  # Span
    ns: Floats  # least time between them
    rank: Ints  # global rank whose time it is
    call: Ints  # position of the collective that a TRANSFER belongs to, else -1

    def played(self, ns: Floats) -> Ints:
        """Return when each instant comes, if `ns` passes along the arrows. An instant that waits for none comes as
        recorded."""
        at = self.at_ns.tolist()
        known = -1
        for source, target, length in zip(self.source.tolist(), self.target.tolist(), ns.tolist(), strict=True):
            arrives = at[source] + length
            if target != known or arrives > at[target]:
                at[target] = arrives
                known = target
        instants: Ints = np.rint(at).astype(np.int64)
        return instants


@dataclass(frozen=True, slots=True)
class Arrows:
    """Arrows as they are found: columns as in `Graph`, in any order."""

    source: Ints
    target: Ints
    span: NDArray[np.uint8]
    ns: Ints
    rank: Ints
    call: Ints

    @classmethod
    def of(
        cls,
        source: Ints,
        target: Ints,
        span: Span | NDArray[np.uint8],
        ns: Ints | int,
        rank: int,
        call: Ints | int = -1,
    ) -> Arrows:
        """One value may stand for a whole column."""
        count = len(source)
        kinds = np.full(count, span, np.uint8) if isinstance(span, Span) else span
        return cls(
            source,
            target,
            kinds,
            np.broadcast_to(np.asarray(ns, np.int64), (count,)),
            np.full(count, rank, np.int64),
            np.broadcast_to(np.asarray(call, np.int64), (count,)),
        )


def graph_of(at_ns: Ints, found: Sequence[Arrows]) -> tuple[Graph, Ints]:
    """Number the instants anew, so that each comes after all that it waits for. Return the new numbers as well.

    Raises:
        DdptraceError: Instants wait for each other in a circle.
    """
    source, target, span, ns, rank, call = (
        np.concatenate([getattr(arrows, name) for arrows in found]) for name in Arrows.__slots__
    )
    number = _numbers(at_ns, source, target)
    order = np.argsort(number[target], kind="stable")
    times = np.empty_like(at_ns)
    times[number] = at_ns
    graph = Graph(
        times,
        number[source][order],
        number[target][order],
        span[order],
        ns[order].astype(np.float64),
        rank[order],
        call[order],
    )
    return graph, number


def _numbers(at_ns: Ints, source: Ints, target: Ints) -> Ints:
    """By instant, a number that is higher than those of all that it waits for."""
    order = np.argsort(source, kind="stable")
    targets = target[order].tolist()
    first = np.searchsorted(source[order], np.arange(len(at_ns) + 1)).tolist()
    waits_for = np.bincount(target, minlength=len(at_ns)).tolist()
    ready = [instant for instant, count in enumerate(waits_for) if not count]
    told: list[int] = []
    while ready:
        instant = ready.pop()
        told.append(instant)
        for one in targets[first[instant] : first[instant + 1]]:
            waits_for[one] -= 1
            if not waits_for[one]:
                ready.append(one)
    if len(told) < len(at_ns):
        raise DdptraceError(
            "collectives of different ranks wait for each other in a circle: they are not matched right"
        )
    number = np.empty(len(at_ns), np.int64)
    number[told] = np.arange(len(at_ns))
    return number
