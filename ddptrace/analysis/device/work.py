"""What ran on each stream of the device: in all windows, and in each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ddptrace.analysis.device.populations import device_spans
from ddptrace.analysis.device.steps import DeviceWindow
from ddptrace.analysis.intervals import Ints, Measure, total, union
from ddptrace.analysis.rank_view import View
from ddptrace.analysis.tables.device import ScopeRow, StreamRow
from ddptrace.load.tables import DeviceWork, Intervals, Work

KINDS: Final = ("module", "annotation", "operator")


def stream_rows(view: View) -> list[StreamRow]:
    """The windows whole, then step by step; the streams in the order in which the profiler's files name them."""
    names = dict.fromkeys(name for window in view.device.profiled for name in window.work.streams)
    streams = [_Stream(name, view.device.profiled) for name in names]
    streams = [stream for stream in streams if len(stream.spans)]
    whole = [stream.whole(view.rank.rank) for stream in streams]
    steps = np.flatnonzero(view.device.on_device)
    rows = sorted((found for stream in streams for found in stream.in_steps(view, steps)), key=lambda found: found[0])
    return whole + [row for _, row in rows]


class _Stream:
    """All that one stream did, over all windows."""

    def __init__(self, name: str, windows: Sequence[DeviceWindow]) -> None:
        works = [(w.work, w.work.stream == w.work.streams.index(name)) for w in windows if name in w.work.streams]
        kinds = [union(*(device_spans(work, mine & (work.kind == kind)) for work, mine in works)) for kind in Work]
        self.name = name
        self.spans = np.concatenate([device_spans(work, mine) for work, mine in works])
        self.unions = (union(*kinds), *kinds)  # busy, compute, comm, memory

    def whole(self, rank: int) -> StreamRow:
        return StreamRow(rank, None, self.name, len(self.spans), *map(total, self.unions))

    def in_steps(self, view: View, steps: Ints) -> Iterator[tuple[int, StreamRow]]:
        """With the step's position; none for a step in which the stream was idle."""
        begins, ends = view.windows.begins[steps], view.windows.ends[steps]
        events = _touching(self.spans, begins, ends)
        measured = (Measure(part).within(begins, ends) for part in self.unions)
        for position, count, *ns in zip(*(column.tolist() for column in (steps, events, *measured)), strict=True):
            if count:
                yield position, StreamRow(view.rank.rank, view.ordinal(position), self.name, count, *ns)


def _touching(spans: Intervals, begins: Ints, ends: Ints) -> Ints:
    """How many of the spans have an instant in each [begin, end); an empty one is at the instant where it begins."""
    started = np.searchsorted(np.sort(spans[:, 0]), ends, side="left")
    over = np.searchsorted(np.sort(np.maximum(spans[:, 1], spans[:, 0] + 1)), begins, side="right")
    return np.where(ends > begins, started - over, 0)


def scope_rows(view: View) -> list[ScopeRow]:
    """Modules, then annotations, then operators; of each kind the most device time first."""
    rows = [row for kind in KINDS for row in _rows_of_kind(view, kind)]
    return sorted(
        rows, key=lambda row: (KINDS.index(row.kind), -row.compute_ns - row.comm_ns - row.memory_ns, row.name)
    )


def _rows_of_kind(view: View, kind: str) -> Iterator[ScopeRow]:
    """All windows together, by name: window by window each has its own numbers."""
    totals: dict[str, Ints] = defaultdict(lambda: np.zeros(1 + len(Work), np.int64))
    for window in view.device.profiled:
        for name, row in zip(window.work.names, _sums(window.work, getattr(window.work, kind)), strict=True):
            if row[0]:
                totals[name] += row
    for name, row in totals.items():
        events, compute_ns, comm_ns, memory_ns = row.tolist()
        yield ScopeRow(view.rank.rank, kind, name, events, compute_ns, comm_ns, memory_ns)


def _sums(work: DeviceWork, scope: Ints) -> Ints:
    """By name: number of events, then their nanoseconds by `Work`; shape (names, 4)."""
    sums = np.zeros((len(work.names), 1 + len(Work)), np.int64)
    known = scope >= 0
    names, kinds = scope[known], work.kind[known].astype(np.int64)
    np.add.at(sums, (names, np.zeros_like(kinds)), 1)
    np.add.at(sums, (names, 1 + kinds), (work.end_at_ns - work.begin_at_ns)[known])
    return sums
