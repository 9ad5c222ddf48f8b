"""Tells when what computes was done with what the host had asked for: at once on a CPU, later on a device.

host     ├ a ┼ b ┼ c ┤ . . . . . . . . . . . . . . . .   launches, far ahead
stream     [ a  )┄┄┄┄┄┄[ b  )[ c )                        computes and waits
at(end of b)                ^
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints, Measure, pairs, subtract, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.load.tables import Call, DeviceWork, Intervals, StepMark, Work
from ddptrace.schema import Evidence

NEVER: Final[Ints] = np.zeros(0, np.int64)
UNKNOWN_NS: Final = 3600 * 10**9
"""No queue of launches is longer."""


@dataclass(frozen=True, slots=True)
class Clock:
    """`steps`: those in which it goes. `waited`: what computes waited for communication. `launched_at_ns`, ascending,
    and `done_at_ns`: the host launched a piece of work, and the stream was done with it and all before; empty where the
    host itself computes."""

    steps: Sequence[StepMark]
    waited: Measure
    launched_at_ns: Ints
    done_at_ns: Ints

    def at_ns(self, host_ns: int) -> int:
        """When what the host had asked for by then was done."""
        if not len(self.launched_at_ns):
            return host_ns
        before = int(np.searchsorted(self.launched_at_ns, host_ns))
        return int(self.done_at_ns[max(before - 1, 0)])

    def worked_ns(self, begin_ns: int, end_ns: int) -> int:
        """Return how long it worked on what the host asked for from begin to end."""
        begin, end = self.at_ns(begin_ns), self.at_ns(end_ns)
        return max(end - begin - int(self.waited.within(np.array([begin]), np.array([end]))[0]), 0)


def clock_of(view: RankView, calls: Sequence[Call]) -> Clock:
    """Return the clock of a rank's host, or of its device's stream in profiled steps. `calls`: what it waits for."""
    if not view.is_on_device:
        waited = Measure(union(pairs(wait for call in calls for wait in call.waits)))
        return Clock(view.rank.steps, waited, NEVER, NEVER)
    steps = [view.rank.steps[position] for one in view.device.profiled for position in one.steps.tolist()]
    works = [_computing(one.work) for one in view.device.profiled]
    launched, done = (np.concatenate([NEVER, *(one[column] for one in works)]) for column in (0, 1))
    order = np.argsort(launched, kind="stable")
    waited = Measure(subtract(_sent(view, {call.seq for call in calls}), view.compute))
    return Clock(steps, waited, launched[order], np.maximum.accumulate(done[order]))


def _computing(work: DeviceWork) -> tuple[Ints, Ints]:
    """When the host launched each kernel of the stream that computes most, and when it ended. Those without a launch in
    the file were launched before all others."""
    kernels = work.kind == Work.COMPUTE
    took = np.bincount(work.stream[kernels], (work.end_at_ns - work.begin_at_ns)[kernels], len(work.streams))
    mine = kernels & (work.stream == took.argmax())
    launched = np.where(work.launched, work.launch_begin_at_ns, work.begin_at_ns.min(initial=0) - UNKNOWN_NS)
    return launched[mine], work.end_at_ns[mine]


def _sent(view: RankView, calls: Container[int]) -> Intervals:
    """When kernels of these calls communicated."""
    known = (one for one in view.comms if one.evidence is Evidence.DEVICE and one.seq in calls)
    return union(pairs((one.begin_at_ns or 0, one.end_at_ns or 0) for one in known))
