"""How far the host ran ahead of the device: whether the device had to wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.device.steps import DeviceWindow
from ddptrace.analysis.intervals import Ints, Measure, union
from ddptrace.analysis.rank_view import View
from ddptrace.analysis.tables.device import LaunchRow
from ddptrace.load.tables import DeviceWork

LAUNCH_BOUND_RATIO: Final = 0.1
"""Of a step's window; more than this spent waiting for the host makes the step launch-bound. A tenth is worth a change,
and well above what the gaps between the kernels of a full queue add up to (1 to 2 us each)."""

Delays = tuple[int | None, int | None, int | None]


def launch_rows(view: View) -> list[LaunchRow]:
    """One row per step whose device time is known, in time order."""
    return [row for window in view.device.profiled for row in _of_window(view, window)]


def _of_window(view: View, window: DeviceWindow) -> Iterator[LaunchRow]:
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
            view.rank.rank, view.rank.steps[step].ordinal, count, late_count, *delays, window_ns, idle_ns,
            host_idle_ns, launch_bound=host_idle_ns > LAUNCH_BOUND_RATIO * window_ns,
        )  # fmt: skip


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
        count = end - begin
        ranks = (-(-count // 2), -(-9 * count // 10), count)  # of the sorted delays, from 1
        p50, p90, longest = (int(delay[begin + nth - 1]) if count else None for nth in ranks)
        yield count, (p50, p90, longest)
