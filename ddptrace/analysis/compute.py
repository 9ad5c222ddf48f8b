"""When a rank computed: from a profiler window where one covers the step, else from the phases without the waits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints, intersect, subtract, union
from ddptrace.analysis.phases import OTHER
from ddptrace.analysis.pieces import Pieces
from ddptrace.load.tables import Intervals, RankRun
from ddptrace.schema import Phase

COMPUTING = (int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.OPTIMIZER))


def step_windows(walls: Intervals) -> Intervals:
    """The window that each step's breakdown runs over, shape (steps, 2). On CPU it is the step's wall time."""
    return walls


def profiled_steps(rank: RankRun, steps: Pieces, phases: Pieces) -> NDArray[np.bool_]:
    """Which steps lie inside one profiler window. What comes before the first phase may be outside: there the profiler
    itself was being started."""
    first = _first_phase_at(steps, phases)
    inside = np.zeros(len(steps.begins), np.bool_)
    for window in rank.windows:
        inside |= (window.begin_at_ns <= first) & (steps.ends <= window.end_at_ns)
    return inside


def _first_phase_at(steps: Pieces, phases: Pieces) -> Ints:
    """Begin of the first phase in each step, the step's own begin where it has none or one runs into it."""
    marked = phases.begins[phases.labels != OTHER], phases.ends[phases.labels != OTHER]
    nth = np.searchsorted(marked[1], steps.begins, side="right")
    begins = np.append(marked[0], np.iinfo(np.int64).max)[nth]
    return np.where(begins < steps.ends, np.maximum(begins, steps.begins), steps.begins)


def rank_compute(
    rank: RankRun, steps: Pieces, phases: Pieces, profiled: NDArray[np.bool_], waits: Intervals
) -> Intervals:
    """Union of all computing of the rank. A step is judged by one source as a whole; outside of steps, by the profiler
    wherever it looked."""
    walls = steps.spans()
    windows = union(*(np.array([[w.begin_at_ns, w.end_at_ns]], np.int64) for w in rank.windows))
    seen = union(walls[profiled], subtract(windows, union(walls)))
    by_profiler = intersect(union(*(window.compute for window in rank.windows)), seen)
    busy = union(phases.only(*COMPUTING).spans())
    return union(by_profiler, subtract(subtract(busy, waits), seen))


def rank_memory(rank: RankRun, steps: Pieces, profiled: NDArray[np.bool_]) -> Intervals:
    """Union of device copies and fills in the profiled steps."""
    return intersect(union(*(window.memory for window in rank.windows)), union(steps.spans()[profiled]))
