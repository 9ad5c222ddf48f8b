"""Arithmetic of half-open integer intervals, bare or labelled.

A *union* is an int64 array of shape (n, 2): sorted, apart, none empty. `Pieces` are stretches of one rank's time that
do not overlap, each with a label: steps, phases, backwards.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.tables import Intervals

Ints = NDArray[np.int64]
Time = TypeVar("Time", int, float)
EMPTY: Final[Intervals] = np.empty((0, 2), np.int64)


def pairs(items: Iterable[tuple[int, int]]) -> Intervals:
    """(begin, end) pairs as an array of shape (n, 2), in their order."""
    return np.array(list(items), np.int64).reshape(-1, 2)


def union(*parts: Intervals) -> Intervals:
    """Every instant that any interval of any part holds; the parts may overlap and be in any order."""
    spans = np.concatenate(parts) if parts else EMPTY
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return EMPTY
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    opens = np.flatnonzero(np.append(True, spans[1:, 0] > reach[:-1]))
    return np.column_stack((spans[opens, 0], reach[np.append(opens[1:], len(spans)) - 1]))


def merged(spans: Iterable[tuple[Time, Time]]) -> tuple[tuple[Time, Time], ...]:
    """Union of a few spans, where arrays would cost more than they save; empty ones that touch nothing stay."""
    out: list[tuple[Time, Time]] = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((begin, end))
    return tuple(out)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Instants that lie in both unions."""
    return _where(a, b, 3)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Instants of the union `a` that the union `b` does not hold."""
    return _where(a, b, 1)


def clip(a: Intervals, begin: int, end: int) -> Intervals:
    """The part of the union `a` inside [begin, end)."""
    return union(np.clip(a, begin, end))


def total(a: Intervals) -> int:
    """Length of the union."""
    return int((a[:, 1] - a[:, 0]).sum())


def _where(a: Intervals, b: Intervals, wanted: int) -> Intervals:
    """Sweep over all ends of both unions, an instant's code being 1 inside `a` plus 2 inside `b`."""
    at = np.concatenate((a[:, 0], a[:, 1], b[:, 0], b[:, 1]))
    change = np.repeat(np.array([1, -1, 2, -2]), (len(a), len(a), len(b), len(b)))
    order = np.argsort(at, kind="stable")
    edges, code = at[order], np.cumsum(change[order])
    hits = np.flatnonzero(code[:-1] == wanted)
    return union(np.column_stack((edges[hits], edges[hits + 1])))


class Measure:
    """How much of a union lies in an interval: O(log n) per question, and many questions at once."""

    def __init__(self, a: Intervals) -> None:
        self._begins, self._ends = a[:, 0], a[:, 1]
        self._before = np.append(0, np.cumsum(a[:, 1] - a[:, 0]))

    def within(self, begins: Ints, ends: Ints) -> Ints:
        """Length of the union inside each [begin, end); the arrays have one shape."""
        return self._until(ends) - self._until(begins)

    def _until(self, at: Ints) -> Ints:
        """Length of the union before each instant."""
        if not len(self._begins):
            return np.zeros(np.shape(at), np.int64)
        started = np.searchsorted(self._begins, at, side="right")
        unspent = np.maximum(self._ends[np.maximum(started - 1, 0)] - at, 0)
        return np.asarray(self._before[started] - np.where(started > 0, unspent, 0), np.int64)


# Labelled intervals ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pieces:
    """Disjoint intervals in time order, each with a label >= 0; three arrays of shape (n,)."""

    begins: Ints
    ends: Ints
    labels: Ints

    @classmethod
    def numbered(cls, spans: Intervals) -> Pieces:
        """The spans, shape (n, 2), labelled by their position."""
        return cls(spans[:, 0], spans[:, 1], np.arange(len(spans)))

    def only(self, *labels: int) -> Pieces:
        keep = np.isin(self.labels, labels)
        return Pieces(self.begins[keep], self.ends[keep], self.labels[keep])

    def spans(self) -> Intervals:
        return np.column_stack((self.begins, self.ends))

    def at(self, instants: Ints) -> Ints:
        """The label in force at each instant, -1 outside all pieces."""
        if not len(self.begins):
            return np.full(np.shape(instants), -1, np.int64)
        found = np.searchsorted(self.begins, instants, side="right") - 1
        inside = (found >= 0) & (instants < self.ends[found])
        return np.where(inside, self.labels[found], -1)

    def split(self, begins: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Cut each [begin, end) wherever a piece begins or ends: the parts' (source position, begin, end), in order.

        An empty interval is one empty part."""
        edges = np.unique(np.concatenate((self.begins, self.ends)))
        first = np.searchsorted(edges, begins, side="right")
        count = np.searchsorted(edges, np.maximum(ends - 1, begins), side="right") - first + 1
        source = np.repeat(np.arange(len(begins)), count)
        area = first[source] + np.arange(len(source)) - (np.cumsum(count) - count)[source]
        floor, ceiling = np.append(begins.min(initial=0), edges), np.append(edges, ends.max(initial=0))
        return source, np.maximum(begins[source], floor[area]), np.minimum(ends[source], ceiling[area])

    def outside(self, begins: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the parts of each [begin, end) that lie in no piece, as `split` does."""
        source, begins, ends = self.split(begins, ends)
        free = (self.at(begins) < 0) & (ends > begins)
        return source[free], begins[free], ends[free]


def innermost(marks: Sequence[tuple[int, int, int]]) -> Pieces:
    """Marks (begin, end, label) that may nest or overlap, as pieces: at each instant the latest begun mark that still
    lasts gives the label; of two begun together, the one that ends first."""
    waiting = sorted(marks, reverse=True)
    edges = sorted({edge for begin, end, _ in marks for edge in (begin, end)})
    running: list[tuple[int, int, int]] = []
    out: list[tuple[int, int, int]] = []
    for edge, following in itertools.pairwise(edges):
        while waiting and waiting[-1][0] == edge:
            begin, end, label = waiting.pop()
            heapq.heappush(running, (-begin, end, label))
        while running and running[0][1] <= edge:
            heapq.heappop(running)
        if running:
            out.append((edge, following, running[0][2]))
    columns = np.array(out, np.int64).reshape(-1, 3)
    return Pieces(columns[:, 0], columns[:, 1], columns[:, 2])
