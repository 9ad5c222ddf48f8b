"""Which kernels the devices' time went to, by name and by category, and how fast those are whose FLOPs are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from ddptrace.analysis.alike import alike
from ddptrace.analysis.device.categories import category_of
from ddptrace.analysis.device.peaks import peak_flops_per_s
from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.device import KernelRow
from ddptrace.load.tables import DeviceWork, Operation, Work

NS_PER_S: Final = 1e9


def kernel_rows(view: RankView) -> list[KernelRow]:
    """Add up all device work of a rank's profiler windows by category and name, the longest first.

    The rows' `total_ns` add up to the durations of all kernels, copies and fills in the rank's files.
    """
    sums: defaultdict[tuple[str, str], _Sum] = defaultdict(_Sum)
    for window in view.device.profiled:
        for key, part in _sums(window.work, view.rank.device):
            sums[key].add(part)
    rows = [part.row(view.rank.rank, *key) for key, part in sums.items()]
    return sorted(rows, key=lambda row: (-row.total_ns, row.category, row.name))


class _Sum:
    """What some pieces of device work amount to."""

    def __init__(self, events: int = 0, total_ns: int = 0) -> None:
        self.events, self.total_ns = events, total_ns
        self.counted_ns = self.flops = 0
        self.ideal_ns: float | None = 0.0

    def add(self, other: _Sum) -> None:
        self.events += other.events
        self.total_ns += other.total_ns
        self.counted_ns += other.counted_ns
        self.flops += other.flops
        known = self.ideal_ns is not None and other.ideal_ns is not None
        self.ideal_ns = (self.ideal_ns or 0.0) + (other.ideal_ns or 0.0) if known else None

    def row(self, rank: int, category: str, name: str) -> KernelRow:
        is_counted = self.counted_ns > 0
        return KernelRow(
            rank,
            category,
            name,
            self.events,
            self.total_ns,
            round(self.total_ns / self.events),
            self.counted_ns,
            self.flops if is_counted else None,
            self.flops / self.counted_ns * NS_PER_S if is_counted and self.flops else None,
            round(self.ideal_ns) if is_counted and self.flops and self.ideal_ns is not None else None,
        )


def _sums(work: DeviceWork, device: str) -> Iterator[tuple[tuple[str, str], _Sum]]:
    """By category and name, in parts: work that one name, operator and range has in common."""
    found = alike(*_columns(work))
    counts, times = found.counts.tolist(), found.sums(work.end_at_ns - work.begin_at_ns).tolist()
    dtypes = () if work.counts is None else work.counts.dtypes
    for nth, (name, kind, operation, is_main, annotation, dtype) in enumerate(found.keys.tolist()):
        around = work.names[annotation] if annotation >= 0 else ""
        category = category_of(work.names[name], Work(kind), Operation(operation), bool(is_main), around)
        part = _Sum(counts[nth], times[nth])
        if dtype >= 0 and work.counts is not None:  # known, if only as those of another kernel
            mine = found.order[found.first[nth] : found.first[nth + 1]]
            part.counted_ns, part.flops = part.total_ns, sum(work.counts.flops[mine].tolist())
            peak = peak_flops_per_s(device, dtypes[dtype], work.names[name]) if part.flops else 1.0
            part.ideal_ns = None if peak is None else part.flops / peak * NS_PER_S
        yield (category, work.names[name]), part


def _columns(work: DeviceWork) -> tuple[Ints, ...]:
    """What decides on the category and the peak of each piece of work."""
    counts, kind = work.counts, work.kind.astype(np.int64)
    if counts is None:
        nothing = np.zeros(len(kind), np.int64)
        return work.name, kind, nothing, nothing, work.annotation, nothing - 1
    is_main = (counts.flops > 0).astype(np.int64)
    return work.name, kind, counts.operation.astype(np.int64), is_main, work.annotation, counts.dtype
