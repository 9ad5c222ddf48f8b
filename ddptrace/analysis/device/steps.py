"""The stretch of device time that belongs to each step. The device runs behind the host, so it is not the step's own:

host     [ step 0    ][ step 1    ][ step 2    ]
device      [==0==0=][=1==1=====][=2====2==]          numbers: the step that launched the work
window      .........|..........|..........|          from where the previous step's last work ended to that of this
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.device.events import EventSteps
from ddptrace.analysis.intervals import Ints
from ddptrace.load.tables import DeviceWork, Intervals, Window

_NEVER = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class DeviceWindow:
    """One profiler window's work. `launched_by`: the position of the step that launched each piece of it, -1 where that
    was none of the window's steps, or is not known."""

    work: DeviceWork
    launched_by: Ints
    steps: Ints  # positions of the steps whose device time it tells


@dataclass(frozen=True, slots=True)
class DeviceSteps:
    """`windows`, shape (steps, 2), are disjoint and in time order; a step that launched nothing has an empty one. Where
    neither a profiler nor events tell the step's device time, its window is its wall time, less what device time of a
    step before still takes of it."""

    windows: Intervals
    on_device: NDArray[np.bool_]  # by step: a profiler tells its device time
    by_events: NDArray[np.bool_]  # by step: no profiler does, and events do
    profiled: tuple[DeviceWindow, ...]


def device_steps(walls: Intervals, windows: Sequence[Window], seen_in: Ints, events: EventSteps) -> DeviceSteps:
    """`seen_in`: by step, the position of the profiler window that it lies in, -1 for none."""
    begins, ends = walls[:, 0].copy(), walls[:, 1].copy()
    on_device = np.zeros(len(walls), np.bool_)
    profiled = []
    for position, window in enumerate(windows):
        if window.device is None:
            continue
        steps = np.flatnonzero(seen_in == position)
        if not window.device.launched.any():
            steps = steps[:0]
        nth = _nth_launching(window.device, walls[steps])
        profiled.append(DeviceWindow(window.device, np.append(steps, -1)[nth], steps))
        if len(steps):
            on_device[steps] = True
            begins[steps], ends[steps] = _device_time(window.device, walls[steps], nth)
    by_events = events.seen & (seen_in < 0)
    begins[by_events], ends[by_events] = events.windows[by_events].T
    if on_device.any() or by_events.any():
        begins, ends = _one_after_another(begins, ends)
    return DeviceSteps(np.column_stack((begins, ends)), on_device, by_events, tuple(profiled))


def _nth_launching(work: DeviceWork, hosts: Intervals) -> Ints:
    """Which of the steps launched each piece of work, -1 none of them. What was launched between two steps belongs to
    the later one."""
    if not len(hosts):
        return np.full(len(work.kind), -1, np.int64)
    nth = np.searchsorted(hosts[:, 1], work.launch_begin_at_ns, side="right")
    known = work.launched & (nth < len(hosts)) & (work.launch_begin_at_ns >= hosts[0, 0])
    return np.where(known, nth, -1)


def _device_time(work: DeviceWork, hosts: Intervals, nth: Ints) -> tuple[Ints, Ints]:
    """Begin and end of each step's device time, the lowest number where it is wherever the step before ended."""
    begins = np.full(len(hosts), _NEVER.min)
    ends = begins.copy()
    known = nth >= 0
    np.maximum.at(ends, nth[known], work.end_at_ns[known])
    begins[0] = _first_begin(work, int(hosts[0, 0]), nth == 0)
    return begins, ends


def _first_begin(work: DeviceWork, host_begin: int, own: NDArray[np.bool_]) -> int:
    """Where the work before the window's first step ended: launched before it, or without a launch but running before
    the step's own."""
    own_from = work.begin_at_ns[own].min() if own.any() else host_begin
    early = np.where(work.launched, work.launch_begin_at_ns < host_begin, work.begin_at_ns < own_from)
    return int(work.end_at_ns[early].max()) if early.any() else host_begin


def _one_after_another(begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Intervals that do not reach back behind the one before."""
    ends = np.maximum.accumulate(np.maximum(begins, ends))
    return np.maximum(begins, np.append(begins[:1], ends[:-1])), ends
