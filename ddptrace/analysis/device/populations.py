"""What a device did in all of its windows: once over all of its work, once over that whose launch was seen.

Work that was queued before a window opened has no launch in the file; that is 5 to 25 % of real files, and the two
overlap numbers differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import intersect, total, union
from ddptrace.analysis.tables.device import Population
from ddptrace.load.tables import DeviceWork, Intervals, Work


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """What one rank's device did in all of its windows; populations are None where no such work is in any."""

    rank: int
    gpu_events: int
    gpu_events_with_launch: int
    all: Population | None
    with_launch: Population | None


def device_row(rank: int, works: Sequence[DeviceWork]) -> DeviceRow:
    """`works`: one per window in which a device worked."""
    events = sum(len(work.kind) for work in works), sum(int(work.launched.sum()) for work in works)
    return DeviceRow(rank, *events, *(population(works, launched_only) for launched_only in (False, True)))


@dataclass(frozen=True, slots=True)
class _Covered:
    """Lengths of unions in one window."""

    span_ns: int
    busy_ns: int
    compute_ns: int
    comm_ns: int
    memory_ns: int
    hidden_ns: int


def population(works: Sequence[DeviceWork], launched_only: bool) -> Population | None:
    """All windows of a rank together; None where no such work is in any of them."""
    chosen = [(work, work.launched if launched_only else np.ones(len(work.kind), np.bool_)) for work in works]
    windows = [astuple(_covered(work, mask)) for work, mask in chosen if mask.any()]
    if not windows:
        return None
    span, busy, compute, comm, memory, hidden = (sum(column) for column in zip(*windows, strict=True))
    ratio = hidden / comm if comm else None
    return Population(span, span - busy, compute, comm, memory, hidden, comm - hidden, ratio)


def _covered(work: DeviceWork, chosen: NDArray[np.bool_]) -> _Covered:
    """`chosen` is true for one event at least."""
    begins, ends = work.begin_at_ns[chosen], work.end_at_ns[chosen]
    compute, comm, memory = (union(device_spans(work, chosen & (work.kind == kind))) for kind in Work)
    busy = union(compute, comm, memory)
    span_ns = int(ends.max() - begins.min())
    return _Covered(span_ns, *map(total, (busy, compute, comm, memory, intersect(comm, compute))))


def device_spans(work: DeviceWork, chosen: NDArray[np.bool_]) -> Intervals:
    """Begin and end of the chosen events, shape (n, 2), as they are: they may overlap."""
    return np.column_stack((work.begin_at_ns[chosen], work.end_at_ns[chosen]))
