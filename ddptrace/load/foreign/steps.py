"""Steps and phases of a loop that only torch.profiler watched.

main     ├ data ┤ ops ops ops ops                  ├ Optimizer.step ┤ ├ data ┤ ops …
engine                            node node node
phases   ├ DATA ┤├── FORWARD ───┤├─ BACKWARD ──┤   ├── OPTIMIZER ───┤
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from ddptrace.load.foreign.trace import DATA, DDP_COPY, DDP_MARKS, OPTIMIZER_STEP, Trace
from ddptrace.load.kineto.events import Ints
from ddptrace.load.tables import Intervals, PhaseMark, StepMark
from ddptrace.load.windows.device import PROFILER_STEP
from ddptrace.load.windows.nesting import NOTHING, innermost_around
from ddptrace.schema import Phase, StepEnd

MOST_DIGITS = 15  # of a step's number


def steps_of(trace: Trace, backwards: Intervals) -> list[StepMark]:
    """As the profiler's own ranges say; without any, one per update, from 0."""
    return _said(trace) or _updates(trace, backwards)


def _said(trace: Trace) -> list[StepMark]:
    """What lies between two ranges belongs to the second: the batch is fetched there. Times that were rounded can make
    one begin before the last ended; one that ends before it, too, is inside it."""
    marks: list[StepMark] = []
    ranges = np.flatnonzero(trace.named((PROFILER_STEP,)) & (trace.events.lane == trace.main_lane))
    for position, (begin, end) in zip(ranges.tolist(), trace.spans(ranges), strict=True):
        number = trace.name(position).removeprefix(PROFILER_STEP)
        begins = marks[-1].end_at_ns if marks else begin
        if number.isdecimal() and len(number) <= MOST_DIGITS and end > begins:
            marks.append(StepMark(int(number), StepEnd.SAID, begins, end))
    return marks


def _updates(trace: Trace, backwards: Intervals) -> list[StepMark]:
    """Several optimizers between two backwards update once."""
    ends = [end for _, end in trace.spans(trace.main_ranges(OPTIMIZER_STEP))]
    after = np.searchsorted(backwards[:, 0], ends).tolist()
    last = [end for k, end in enumerate(ends) if not len(backwards) or k + 1 == len(ends) or after[k + 1] > after[k]]
    spans = itertools.pairwise([trace.begin_at_ns, *last])
    return [StepMark(k, StepEnd.OPTIMIZER, begin, end) for k, (begin, end) in enumerate(spans) if end > begin]


def phases_of(trace: Trace, backwards: Intervals) -> list[PhaseMark]:
    """In time order; backwards are counted from 0."""
    thread = trace.main_thread
    marks = [PhaseMark(Phase.FORWARD, *span, thread, None) for span in _forwards(trace, backwards)]
    for k, (begin, end) in enumerate(backwards.tolist()):
        marks.append(PhaseMark(Phase.BACKWARD, begin, end, thread, k))
    for phase, prefix in ((Phase.OPTIMIZER, OPTIMIZER_STEP), (Phase.DATA, DATA)):
        marks += [PhaseMark(phase, *span, thread, None) for span in trace.spans(trace.main_ranges(prefix))]
    return sorted(marks, key=lambda mark: (mark.begin_at_ns, -mark.end_at_ns))


def backwards_of(trace: Trace) -> Intervals:
    """Runs of the engine's nodes on any thread, which nothing of the main thread's own interrupts. DDP's reducer takes
    part in a backward that has begun, and what leads to its copying a bucket back is its own."""
    events = trace.events
    nodes = np.flatnonzero(trace.is_node)
    if not len(nodes):
        return np.empty((0, 2), np.int64)
    ours = np.flatnonzero(trace.is_node | trace.named(DDP_MARKS[1:]))
    begins, reach = events.begin_ns[ours], np.maximum.accumulate(events.end_ns[ours])
    by_op, by_loop = (
        np.searchsorted(at, begins[1:], side="right") > np.searchsorted(at, reach[:-1])
        for at in (np.sort(events.begin_ns[trace.main_ops]), np.sort(_loop_begins(trace)))
    )
    before = by_loop | (by_op & ~trace.named((DDP_COPY,))[ours[1:]])
    opens = np.flatnonzero(np.append(True, before))
    has_node = np.add.reduceat(trace.is_node[ours].astype(np.int64), opens) > 0
    spans = np.column_stack((begins[opens], reach[np.append(opens[1:], len(ours)) - 1]))
    return spans[has_node]


def _loop_begins(trace: Trace) -> Ints:
    prefixes = (PROFILER_STEP, OPTIMIZER_STEP, DATA)
    ranges = np.concatenate([trace.main_ranges(prefix) for prefix in prefixes])
    begins: Ints = trace.events.begin_ns[ranges]
    return begins


def _forwards(trace: Trace, backwards: Intervals) -> list[tuple[int, int]]:
    """The main thread's operators from the last boundary before a backward up to it; gradients may be zeroed before
    them, or after."""
    events, ops = trace.events, _outside(trace, trace.main_ops, "Optimizer.")
    begins, bounds = events.begin_ns[ops], _boundaries(trace, backwards)
    found = []
    for backward in backwards[:, 0].tolist():
        first = int(np.searchsorted(begins, _last_before(bounds, backward)))
        last = int(np.searchsorted(begins, backward)) - 1
        if first <= last:
            found.append((int(begins[first]), min(int(events.end_ns[ops[last]]), backward)))
    return [(begin, end) for begin, end in found if end > begin]


def _outside(trace: Trace, ops: Ints, prefix: str) -> Ints:
    """Those of the main thread's operators that are in no range of this name."""
    begins = trace.events.begin_ns[ops]
    around = innermost_around(trace.events, trace.named((prefix,)), trace.events.lane[ops], begins)
    outside: Ints = ops[around == NOTHING]
    return outside


def _boundaries(trace: Trace, backwards: Intervals) -> Ints:
    """Instants at which something other than a forward was over, sorted: a batch, an update, a backward, a step."""
    ranges = [trace.main_ranges(prefix) for prefix in (OPTIMIZER_STEP, DATA)]
    ends = trace.events.end_ns[np.concatenate(ranges)]
    steps = trace.events.begin_ns[trace.main_ranges(PROFILER_STEP)]
    return np.sort(np.concatenate((ends, backwards[:, 1], steps)))


def _last_before(bounds: Ints, at: int) -> int:
    k = int(np.searchsorted(bounds, at, side="right"))
    return int(bounds[k - 1]) if k else -(2**62)


def until_awaited(marks: Sequence[PhaseMark], trace: Trace, ends: dict[int, int]) -> list[PhaseMark]:
    """Backwards with what DDP awaits on the host at their end. `ends`: by ordinal, when the last of that was over."""
    nexts = np.sort(np.concatenate((trace.events.begin_ns[trace.main_ops], _loop_begins(trace))))
    found = []
    for mark in marks:
        over = ends.get(mark.backward, mark.end_at_ns) if mark.backward is not None else mark.end_at_ns
        k = int(np.searchsorted(nexts, mark.end_at_ns))
        bound = int(nexts[k]) if k < len(nexts) else over
        found.append(dataclasses.replace(mark, end_at_ns=max(mark.end_at_ns, min(over, bound))))
    return found
