"""What a rank was doing in each step: the phase of its main training thread, and when it computed.

The phases divide each step into data, forward, backward, optimizer and other. When the rank computed comes from the
profiler window that covers the step. Without a window it comes from the phases without their waits; but not for a rank
that computes on a device, where the host's phases only launch: there only a window shows it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints, Pieces, innermost, intersect, pairs, subtract, union
from ddptrace.load.tables import Intervals, PhaseMark, RankRun, Window
from ddptrace.schema import Phase

OTHER: Final = 0
PHASE_NAMES: Final = ("other", *(phase.name.lower() for phase in Phase))
"""By label: 0 is other, the rest are `Phase`'s own numbers."""
HOSTS = ("cpu", "?")
"""Prefixes of a device's name if the rank has no device, or an unknown one."""
COMPUTING = (int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.OPTIMIZER))


def main_thread(rank: RankRun) -> int | None:
    """Find the thread that trains: most backwards, else most marks of any phase. None without marks."""
    backwards = Counter(mark.thread for mark in rank.phases if mark.phase is Phase.BACKWARD)
    threads = backwards or Counter(mark.thread for mark in rank.phases)
    return threads.most_common(1)[0][0] if threads else None


def main_marks(rank: RankRun) -> tuple[PhaseMark, ...]:
    """List the main thread's marks by begin. A forward before a backward is extended to it, because the time between
    them computes the loss."""
    thread = main_thread(rank)
    marks = sorted((m for m in rank.phases if m.thread == thread), key=lambda m: (m.begin_at_ns, -m.end_at_ns))
    begins = [mark.begin_at_ns for mark in marks]
    return tuple(_with_loss(mark, marks, begins) for mark in marks)


def _with_loss(mark: PhaseMark, marks: Sequence[PhaseMark], begins: list[int]) -> PhaseMark:
    following = bisect_left(begins, mark.end_at_ns)
    if mark.phase is not Phase.FORWARD or following == len(marks) or marks[following].phase is not Phase.BACKWARD:
        return mark
    return replace(mark, end_at_ns=begins[following])


def phase_pieces(marks: Sequence[PhaseMark], rank: RankRun) -> Pieces:
    """Give each instant the phase of the innermost mark. A pause, in which ddptrace held the thread, is OTHER."""
    stretches = [(mark.begin_at_ns, mark.end_at_ns, int(mark.phase)) for mark in marks]
    return innermost(stretches + [(pause.begin_at_ns, pause.end_at_ns, OTHER) for pause in rank.pauses])


def stretches(steps: Pieces, phases: Pieces) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut steps by phase: (step's position, begin, end, phase label); neighbours in a step differ in phase."""
    parts = phases.split(steps.begins, steps.ends)
    source, begins, ends = (column[parts[2] > parts[1]] for column in parts)
    labels = np.maximum(phases.at(begins), OTHER)
    first = np.flatnonzero((np.diff(source, prepend=-1) != 0) | (np.diff(labels, prepend=-1) != 0))
    last = np.append(first, len(source))[1:] - 1
    return source[first], begins[first], ends[last], labels[first]


def phase_totals(steps: Pieces, phases: Pieces) -> Ints:
    """Sum the nanoseconds of each phase in each step, shape (steps, labels)."""
    step, begins, ends, labels = stretches(steps, phases)
    totals = np.zeros((len(steps.begins), len(PHASE_NAMES)), np.int64)
    np.add.at(totals, (step, labels), ends - begins)
    return totals


def is_on_device(rank: RankRun) -> bool:
    """Whether the rank computes on a device rather than on the host's CPUs."""
    if any(call.on_device for call in rank.calls) or any(window.on_device for window in rank.windows):
        return True
    names_one = bool(rank.device) and not rank.device.startswith(HOSTS)
    return names_one and not any(call.is_native for call in rank.calls)  # gradients in the host's memory


def profiled_in(rank: RankRun, steps: Pieces, phases: Pieces) -> Ints:
    """Find for each step the profiler window that covers it, -1 if none does or if it did not record where the rank
    computes. Time before the first phase may lie outside: there the profiler itself was starting."""
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
    """Union of all computing of the rank. Each step's window is measured by one source as a whole; time outside of all
    steps, by the profiler where it was on."""
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
    """Part of `compute` that ran on no device: a host that waits is blocked, whatever its device does."""
    return subtract(compute, union(*(window.compute for window in rank.windows if window.on_device)))


def rank_memory(rank: RankRun, windows: Pieces, profiled: NDArray[np.bool_]) -> Intervals:
    """Union of device copies and fills in the windows of profiled steps."""
    return intersect(union(*(window.memory for window in rank.windows)), union(windows.spans()[profiled]))
