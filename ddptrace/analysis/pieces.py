"""Labelled stretches of one rank's time that do not overlap: steps, phases, backwards."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.load.tables import Intervals


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
