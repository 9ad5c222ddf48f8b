"""Ranges that nest on a thread: which of them is around an instant.

a        ├──────────────────────────┤
b           ├───────┤    ├────┤ c
edges    |  |       |    |    |     |
inner    a  b       a    c    a     none
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.kineto.events import FAR_NS, Ints, KinetoEvents

NOTHING: Final = -1


@dataclass(frozen=True, slots=True)
class Nest:
    """The ranges of one thread. Ranges are told by their position in the arrays given to `of`."""

    edges: Ints  # instants at which the innermost range changes, in order
    inner: Ints  # from each edge to the next: the innermost range, or NOTHING
    order: Ints  # ranges in order of their begin, outer before inner
    parent: Ints  # of each range, by position: the one around it, or NOTHING

    @classmethod
    def of(cls, begins: Ints, ends: Ints) -> Nest:
        order = np.lexsort((-ends, begins))
        parent = np.full(len(begins), NOTHING, np.int64)
        edges, inner = [-FAR_NS], [NOTHING]
        open_ranges = [(FAR_NS, NOTHING)]  # (end, position), outermost first
        ranges = zip(order.tolist(), begins[order].tolist(), ends[order].tolist(), strict=True)
        for position, begin, end in ranges:
            _close(open_ranges, begin, edges, inner)
            outer_end, parent[position] = open_ranges[-1]
            edges.append(begin)
            inner.append(position)
            open_ranges.append((min(end, outer_end), position))  # whole microseconds: a child can outlive its parent
        _close(open_ranges, FAR_NS - 1, edges, inner)
        return cls(np.array(edges, np.int64), np.array(inner, np.int64), order, parent)

    def innermost(self, at: Ints) -> Ints:
        """The innermost range around each instant, or NOTHING."""
        return self.inner[np.searchsorted(self.edges, at, side="right") - 1]


def _close(open_ranges: list[tuple[int, int]], until: int, edges: list[int], inner: list[int]) -> None:
    while open_ranges[-1][0] <= until:
        edges.append(open_ranges.pop()[0])
        inner.append(open_ranges[-1][1])


def innermost_around(events: KinetoEvents, chosen: NDArray[np.bool_], lanes: Ints, at: Ints) -> Ints:
    """Position of the innermost chosen event on the given lane at the given instant, or NOTHING, for each pair."""
    found = np.full(len(at), NOTHING, np.int64)
    for lane in np.unique(lanes).tolist():
        some = np.flatnonzero(chosen & (events.lane == lane))
        if len(some):
            asked = lanes == lane
            inner = Nest.of(events.begin_ns[some], events.end_ns[some]).innermost(at[asked])
            found[asked] = np.where(inner == NOTHING, NOTHING, some[inner])
    return found


def outermost(events: KinetoEvents, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Those of the chosen events that no other of them is around on the same lane."""
    found = np.zeros(len(chosen), np.bool_)
    for lane in np.unique(events.lane[chosen]).tolist():
        some = np.flatnonzero(chosen & (events.lane == lane))
        some = some[np.lexsort((-events.end_ns[some], events.begin_ns[some]))]
        reach = np.maximum.accumulate(events.end_ns[some])
        found[some[np.append(True, events.begin_ns[some][1:] >= reach[:-1])]] = True
    return found
