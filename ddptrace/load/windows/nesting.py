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
        some = order[ends[order] > begins[order]]  # one without length is around nothing
        starts, stops = begins[some], ends[some]
        edges, inner, around = _swept_as_they_nest(starts, stops) or _walked(starts, stops)
        some = np.append(some, NOTHING)
        nest = cls(edges, some[inner], order, np.full(len(begins), NOTHING, np.int64))
        nest.parent[some[:-1]] = some[around]
        empty = np.flatnonzero(ends <= begins)
        nest.parent[empty] = nest.innermost(begins[empty])
        return nest

    def innermost(self, at: Ints) -> Ints:
        """The innermost range around each instant, or NOTHING."""
        return self.inner[np.searchsorted(self.edges, at, side="right") - 1]


ROUNDINGS_MAX: Final = 8
"""Rounds in which ranges are cut to those around them, one level in each."""
Swept = tuple[Ints, Ints, Ints]
"""Edges, the innermost range from each on, and by range the one around it. Ranges are in order of their begin."""


def _swept_as_they_nest(starts: Ints, stops: Ints) -> Swept | None:
    """As `_walked`, at once. Where a range outlives the one around it by so little that none begins meanwhile, as with
    rounded times, it ends with that; None where one begins."""
    for _ in range(ROUNDINGS_MAX):
        edges, inner, around = _swept(starts, stops)
        ends = np.append(stops, FAR_NS)[around]
        late = np.flatnonzero(stops > ends)
        if not len(late):
            return edges, inner, around
        if (np.searchsorted(starts, ends[late]) < np.searchsorted(starts, stops[late])).any():
            return None
        stops = np.minimum(stops, ends)
    return None


def _swept(starts: Ints, stops: Ints) -> Swept:
    """How many ranges are open tells which is innermost: the last one that began at this depth."""
    count = len(starts)
    closing = np.argsort(stops, kind="stable")
    begin_at = np.arange(count) + np.searchsorted(stops[closing], starts, side="right")
    end_at = np.arange(count) + np.searchsorted(starts, stops[closing], side="left")
    change = np.full(2 * count, -1, np.int64)
    change[begin_at] = 1
    depth = np.cumsum(change)
    level = depth[begin_at]  # of each range, from 1
    by_level = np.argsort(level, kind="stable")
    keys = level[by_level] * (2 * count + 1) + begin_at[by_level]

    def last_at(wanted: Ints, position: Ints) -> Ints:
        """The range that was the last to begin at a level before a position; NOTHING at level 0."""
        nth = np.searchsorted(keys, wanted * (2 * count + 1) + position) - 1
        return np.where(wanted > 0, by_level[nth], NOTHING)

    around = last_at(level - 1, begin_at)
    edges, inner = np.empty(2 * count, np.int64), np.empty(2 * count, np.int64)
    edges[begin_at], edges[end_at] = starts, stops[closing]
    inner[begin_at], inner[end_at] = np.arange(count), last_at(depth[end_at], end_at)
    return np.append(-FAR_NS, edges), np.append(NOTHING, inner), around


def _walked(starts: Ints, stops: Ints) -> Swept:
    """One by one. A range that outlives the one around it ends with that."""
    around = np.full(len(starts), NOTHING, np.int64)
    edges, inner = [-FAR_NS], [NOTHING]
    open_ranges = [(FAR_NS, NOTHING)]  # (end, position), outermost first
    for position, (begin, end) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        _close(open_ranges, begin, edges, inner)
        outer_end, around[position] = open_ranges[-1]
        edges.append(begin)
        inner.append(position)
        open_ranges.append((min(end, outer_end), position))
    _close(open_ranges, FAR_NS - 1, edges, inner)
    return np.array(edges, np.int64), np.array(inner, np.int64), around


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
