"""Tells what the devices worked on, by stream, scope and launch, in each step and in all windows together.

All windows together count twice: once all of their work, once the work whose launch was seen. Work that was queued
before a window opened has no launch in the file; that is 5 to 25 % of real files, and the two overlap numbers differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.device.steps import DeviceWindow, device_spans
from ddptrace.analysis.intervals import Ints, Measure, intersect, total, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.statistics import percentile
from ddptrace.analysis.tables.device import LaunchRow, Population, ScopeRow, StreamRow
from ddptrace.load.tables import DeviceWork, Intervals, Work

KINDS: Final = ("module", "annotation", "operator")


def stream_rows(view: RankView) -> list[StreamRow]:
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

    def in_steps(self, view: RankView, steps: Ints) -> Iterator[tuple[int, StreamRow]]:
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


def scope_rows(view: RankView) -> list[ScopeRow]:
    """Modules, then annotations, then operators; of each kind the most device time first."""
    rows = [row for kind in KINDS for row in _rows_of_kind(view, kind)]
    return sorted(
        rows, key=lambda row: (KINDS.index(row.kind), -row.compute_ns - row.comm_ns - row.memory_ns, row.name)
    )


def _rows_of_kind(view: RankView, kind: str) -> Iterator[ScopeRow]:
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


# How far the host ran ahead of the device -----------------------------------------------------------------------------


LAUNCH_BOUND_RATIO: Final = 0.1
"""Of a step's window; more than this spent waiting for the host makes the step launch-bound. A tenth is worth a change,
and well above what the gaps between the kernels of a full queue add up to (1 to 2 us each)."""
Delays = tuple[int | None, int | None, int | None]


def launch_rows(view: RankView) -> list[LaunchRow]:
    """One row per step whose device time is known, in time order."""
    return [row for window in view.device.profiled for row in _launches_of_window(view, window)]


def _launches_of_window(view: RankView, window: DeviceWindow) -> Iterator[LaunchRow]:
    begins, ends = view.windows.begins[window.steps], view.windows.ends[window.steps]
    busy, pending = _busy_and_pending(window.work)
    idle = ends - begins - Measure(busy).within(begins, ends)
    host_idle = ends - begins - Measure(union(busy, pending)).within(begins, ends)
    by_late = window.launched_by[_late(window.work)]
    late = np.bincount(by_late[by_late >= 0], minlength=len(view.steps.begins))
    columns = (window.steps, late[window.steps], ends - begins, idle, host_idle)
    rows = zip(_delays(window), zip(*(column.tolist() for column in columns), strict=True), strict=True)
    for (count, delays), (step, late_count, window_ns, idle_ns, host_idle_ns) in rows:
        yield LaunchRow(
            view.rank.rank,
            view.rank.steps[step].ordinal,
            count,
            late_count,
            *delays,
            window_ns,
            idle_ns,
            host_idle_ns,
            launch_bound=host_idle_ns > LAUNCH_BOUND_RATIO * window_ns,
        )


def _busy_and_pending(work: DeviceWork) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Unions of the instants at which any work runs, and at which any is launched and does not run yet."""
    waiting = np.column_stack((work.launch_end_at_ns, work.begin_at_ns))[work.launched]
    return union(np.column_stack((work.begin_at_ns, work.end_at_ns))), union(waiting)


def _late(work: DeviceWork) -> NDArray[np.bool_]:
    """Launched when all earlier work of its stream was over; not for a stream's first, before which nothing is known.
    Means nothing where `launched` is false."""
    order = np.lexsort((work.begin_at_ns, work.stream))
    stream, ends = work.stream[order], work.end_at_ns[order]
    late = np.zeros(len(order), np.bool_)
    same = stream[1:] == stream[:-1]
    late[order[1:]] = same & (_reach(stream, ends)[:-1] <= work.launch_begin_at_ns[order[1:]])
    return late


def _reach(stream: Ints, ends: Ints) -> Ints:
    """The latest end so far in each stream; `stream` ascends."""
    reach = ends.copy()
    first = np.flatnonzero(np.diff(stream, prepend=-1))
    for begin, end in zip(first, np.append(first[1:], len(stream)), strict=True):
        np.maximum.accumulate(ends[begin:end], out=reach[begin:end])
    return reach


def _delays(window: DeviceWindow) -> Iterator[tuple[int, Delays]]:
    """By step of the window: how many pieces of work it launched, and the median, ninth decile and maximum (each the
    delay of one of them) from launch to start."""
    delay = window.work.begin_at_ns - window.work.launch_begin_at_ns
    order = np.lexsort((delay, window.launched_by))
    by, delay = window.launched_by[order], delay[order]
    first, last = (np.searchsorted(by, window.steps, side=side) for side in ("left", "right"))
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        ordered = delay[begin:end].tolist()
        p50, p90, longest = (percentile(ordered, percent) if ordered else None for percent in (50, 90, 100))
        yield len(ordered), (p50, p90, longest)


# All windows together -------------------------------------------------------------------------------------------------


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
