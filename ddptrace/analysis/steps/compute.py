"""When a rank computed: from a profiler window where one covers the step, else from the phases without the waits. Not
from these where it computes on a device: there the host's phases only launch, and nothing but a window tells."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints, Pieces, intersect, pairs, subtract, union
from ddptrace.analysis.steps.phases import OTHER
from ddptrace.load.tables import Intervals, RankRun, Window
from ddptrace.schema import Phase

HOSTS = ("cpu", "?")
"""What the name of a rank's device begins with, where it is none or is not known."""
COMPUTING = (int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.OPTIMIZER))


def is_on_device(rank: RankRun) -> bool:
    """Whether it computes on a device rather than on the host's processors."""
    if any(call.on_device for call in rank.calls) or any(window.on_device for window in rank.windows):
        return True
    names_one = bool(rank.device) and not rank.device.startswith(HOSTS)
    return names_one and not any(call.is_native for call in rank.calls)  # gradients in the host's memory


def profiled_in(rank: RankRun, steps: Pieces, phases: Pieces) -> Ints:
    """By step: the position of the profiler window that it lies in, -1 for none, or none that saw what computes. What
    comes before the first phase may be outside: there the profiler itself was being started."""
    on_device = is_on_device(rank)
    first = _first_phase_at(steps, phases)
    inside = np.full(len(steps.begins), -1, np.int64)
    for position, window in enumerate(rank.windows):
        if on_device and not window.on_device:
            continue
        inside[(window.begin_at_ns <= first) & (steps.ends <= window.end_at_ns)] = position
    return inside


def _first_phase_at(steps: Pieces, phases: Pieces) -> Ints:
    """Begin of the first phase in each step, the step's own begin where it has none or one runs into it."""
    marked = phases.begins[phases.labels != OTHER], phases.ends[phases.labels != OTHER]
    nth = np.searchsorted(marked[1], steps.begins, side="right")
    begins = np.append(marked[0], np.iinfo(np.int64).max)[nth]
    return np.where(begins < steps.ends, np.maximum(begins, steps.begins), steps.begins)


def rank_compute(
    rank: RankRun, windows: Pieces, phases: Pieces, profiled: NDArray[np.bool_], waits: Intervals
) -> Intervals:
    """Union of all computing of the rank. A step's window is judged by one source as a whole; what is outside of them
    all, by the profiler wherever it looked."""
    spans = windows.spans()
    on_device = is_on_device(rank)
    looked = union(*(_looked(window) for window in rank.windows if window.on_device or not on_device))
    seen = union(spans[profiled], subtract(looked, union(spans)))
    by_profiler = intersect(union(*(window.compute for window in rank.windows)), seen)
    if on_device:
        return by_profiler
    busy = union(phases.only(*COMPUTING).spans())
    return union(by_profiler, subtract(subtract(busy, waits), seen))


def _looked(window: Window) -> Intervals:
    """The window, and the device's work beyond it: the device runs behind the host."""
    begin, end = window.begin_at_ns, window.end_at_ns
    if window.device is not None and len(window.device.kind):
        begin = min(begin, int(window.device.begin_at_ns.min()))
        end = max(end, int(window.device.end_at_ns.max()))
    return pairs([(begin, end)])


def host_compute(rank: RankRun, compute: Intervals) -> Intervals:
    """What of `compute` is not a device's: a host that waits is blocked whatever its device does."""
    return subtract(compute, union(*(window.compute for window in rank.windows if window.on_device)))


def rank_memory(rank: RankRun, windows: Pieces, profiled: NDArray[np.bool_]) -> Intervals:
    """Union of device copies and fills in the windows of profiled steps."""
    return intersect(union(*(window.memory for window in rank.windows)), union(windows.spans()[profiled]))
