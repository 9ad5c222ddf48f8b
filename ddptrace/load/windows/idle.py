"""Tells what the host did while the device was idle, and what held the threads that launch its work.

Each gap of the device is cut into pieces, and each piece has a cause:

stream   ┤ gemm ├                                        ├ gemm
gap             |----------------------------------------|
queued          |                                    |---|          launched, and not begun yet
thread             ├ aten::to ──────────────┤      ├──┤ cudaLaunchKernel
                      ├ cudaMemcpyAsync ─┤
pieces          |--|--|------------------|--|------|-|---|
cause        nothing op   copy           op nothing  launch, queued

The thread is the one that launched the work at the end of the gap. Where it launched that work before the gap, the main
thread is taken. The cause of a piece is the innermost range that the thread was in. What runs inside a data loader, a
garbage collection or `.item()` belongs to that, however deep. While work is queued, the cause is the queue, whatever
the host does: it often waits for that work.

A host that waits for the device launches nothing meanwhile, so the device then has nothing to do. The wait is therefore
the cause of the host's next work, too, for as long as the host had waited: without the wait, it would have been ahead
by that time.

stream   ┤ gemm, gemm, gemm ├              ├ gemm
thread          ├ aten::item ┤   ├ aten::mm ┤
waited          |-----------|
gap                         |--------------|
cause                        sync─────►|op                        as long as it waited, and no longer

The report draws the longest gaps. For that, this file keeps what the launching threads did around them, and never more
than a fixed number of ranges:

stream   ┤ gemm ├                                   ├ gemm
gap             |-----------------------------------|
near     |------|-----------------------------------|------|     the gap and `NEAR_NS` before and after it
thread     ├ aten::to ───────────────┤   ├ aten::mm ──┤          taken whole
              ├ cudaMemcpyAsync ──┤          ├ launch ┤

Whether or not the device is idle, the launching threads are also held up by calls in which the host may wait for its
device, and by fetching batches. Each such call has a cause:

thread   ├ enumerate(DataLoader) ┤ ├ cudaLaunchKernel ┤ ├ cudaStreamSynchronize ──────┤ ├ cudaMalloc ┤
cause    DATA                                           SYNCHRONIZE                     ALLOCATE
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from ddptrace.load.kineto.events import Category, Ints, KinetoEvents
from ddptrace.load.tables import HOST_AT_WORK, DeviceIdle, HostCalls, HostRanges, IdleCause, Intervals
from ddptrace.load.windows.cpu_compute import union
from ddptrace.load.windows.device import PROFILER_STEP, KinetoWork, Mask, judged_by_name, named, of_category, operators
from ddptrace.load.windows.nesting import NOTHING, Nest
from ddptrace.schema import RANGE_PREFIX

Rules = tuple[tuple[re.Pattern[str], IdleCause], ...]

AROUND: Final[Rules] = (
    (re.compile(r"enumerate\(DataLoader\)#|torch/utils/data/dataloader\.py\(\d+\): __next__"), IdleCause.DATA),
    (re.compile(r"<built-in method collect of module|(?:^|/)gc\.py\(|^gc\b|garbage collect", re.I), IdleCause.COLLECT),
    (re.compile(r"aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$"), IdleCause.SYNCHRONIZE),
)
"""Ranges that own all that runs inside them."""
RUNTIME: Final[Rules] = (
    (re.compile(r"Synchronize|EventQuery"), IdleCause.SYNCHRONIZE),
    (re.compile(r"[Mm]emcpy"), IdleCause.COPY),
    (re.compile(r"Malloc|Free|HostAlloc|HostRegister|Mem(?:Alloc|Create|Map|Unmap|Release)"), IdleCause.ALLOCATE),
    (re.compile(r"Launch"), IdleCause.LAUNCH),
)
"""Calls of the device's runtime or driver, CUDA's or HIP's."""
COPYING: Final = re.compile(r"aten::(?:copy_|_copy_from)$")
"""Operators whose synchronization is a part of the copy: one of memory that is not pinned, or that blocks."""
WAITS: Final = (IdleCause.SYNCHRONIZE, IdleCause.COPY)
"""Causes in which the host waits for the device."""
SILENT: Final = (PROFILER_STEP, RANGE_PREFIX)
"""Ranges that tell nothing of what the host did. Those of the profiler's steps do not nest with Python's frames."""


def device_idle(events: KinetoEvents, works: KinetoWork, main_lane: int, begin: int, end: int) -> DeviceIdle | None:
    """Attribute the device's idle time from `begin` to `end`, in ns.

    Args:
        events: One file.
        works: The device's work in it.
        main_lane: Lane of the thread that is asked where the work that ends a gap was not launched in it.
        begin: First instant.
        end: Last instant.

    Returns:
        The pieces in time order, which partition the idle time exactly; None where no device worked.
    """
    if not len(works.position):
        return None
    begins, ends = events.begin_ns[works.position], events.end_ns[works.position]
    gaps = _complement(union(np.column_stack((begins, ends))), begin, end)
    launched = works.launch != NOTHING
    queued = union(np.column_stack((events.end_ns[works.launch], begins))[launched])
    lanes = _launching_lanes(events, works, gaps, main_lane)
    ranges = _Ranges.of(events)
    threads = [_Thread.of(ranges, lane, gaps[lanes == lane]) for lane in np.unique(lanes).tolist()]
    found = [thread.pieces(np.flatnonzero(lanes == thread.lane), gaps, queued) for thread in threads]
    columns = [np.concatenate(parts) for parts in zip(*found, strict=True)] if found else [np.empty(0, np.int64)] * 6
    order = np.argsort(columns[1], kind="stable")
    gap, starts, stops, cause, name, operator = (column[order] for column in columns)
    around = _around_gaps(events, gaps, lanes)
    return DeviceIdle(gap, starts, stops, cause.astype(np.uint8), name, operator, gaps, events.names, around)


def _complement(busy: Intervals, begin: int, end: int) -> Intervals:
    """The instants from begin to end that the union does not hold."""
    gaps = np.column_stack((np.append(begin, busy[:, 1]), np.append(busy[:, 0], end)))
    return union(np.clip(gaps, begin, end))


def _launching_lanes(events: KinetoEvents, works: KinetoWork, gaps: Intervals, main_lane: int) -> Ints:
    """By gap: the thread that launched the first work after it, if it did so in the gap."""
    begins = events.begin_ns[works.position]
    after = np.searchsorted(begins, gaps[:, 1])
    known = after < len(begins)
    launch = np.full(len(gaps), NOTHING, np.int64)
    launch[known] = works.launch[after[known]]
    in_gap = (launch != NOTHING) & (events.end_ns[launch] > gaps[:, 0])
    return np.where(in_gap, events.lane[launch], main_lane)


def _holds(spans: Intervals, at: Ints) -> Mask:
    """Whether the union holds each instant."""
    if not len(spans):
        return np.zeros(len(at), np.bool_)
    nth = np.searchsorted(spans[:, 0], at, side="right") - 1
    held: Mask = (nth >= 0) & (at < spans[nth, 1])
    return held


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Which of a file's events tell what a thread did."""

    events: KinetoEvents
    on_host: Mask
    is_operator: Mask

    @classmethod
    def of(cls, events: KinetoEvents) -> _Ranges:
        on_host = of_category(events, Category.OP, Category.ANNOTATION, Category.RUNTIME, Category.FRAME)
        return cls(events, on_host & ~named(events, SILENT), operators(events))


@dataclass(frozen=True, slots=True)
class _Thread:
    """The ranges of one thread that reach into its gaps. The columns have one row more, for instants in no range."""

    lane: int
    nest: Nest
    begin: Ints
    cause: Ints
    name: Ints  # index into the events' names, or NOTHING
    operator: Ints  # the same of the outermost operator around

    @classmethod
    def of(cls, ranges: _Ranges, lane: int, gaps: Intervals) -> _Thread:
        events = ranges.events
        some = np.flatnonzero(ranges.on_host & (events.lane == lane))
        begins, ends = events.begin_ns[some], events.end_ns[some]
        reach = np.searchsorted(gaps[:, 1], begins, side="right")  # the first gap that ends later
        touches = (reach < len(gaps)) & (ends > np.append(gaps[:, 0], 0)[reach])
        some = _nesting(events, some[touches])
        nest = Nest.of(events.begin_ns[some], events.end_ns[some])
        cause, name = _own_causes(events, some)
        cause[_copying(events, some, nest) & (cause == IdleCause.SYNCHRONIZE)] = IdleCause.COPY
        owner = _owners(events, some, nest, cause)
        owned = owner != NOTHING
        begin = events.begin_ns[some]
        begin[owned], cause[owned], name[owned] = begin[owner[owned]], cause[owner[owned]], name[owner[owned]]
        outer = _outermost(nest.parent, ranges.is_operator[some])
        operator = np.where(outer == NOTHING, NOTHING, events.name[some][outer] if len(some) else NOTHING)
        return cls(
            lane,
            nest,
            np.append(begin, NOTHING),
            np.append(cause, IdleCause.NOTHING),
            np.append(name, NOTHING),
            np.append(operator, NOTHING),
        )

    def pieces(self, mine: Ints, gaps: Intervals, queued: Intervals) -> tuple[Ints, ...]:
        """Gap, begin, end, cause, name and operator of each piece of the gaps `mine`."""
        own = gaps[mine]
        ranges, since, until = self._waits(own[:, 0], queued)
        edges = np.concatenate((own.ravel(), self.nest.edges, queued.ravel(), until))
        edges = np.sort(edges[(edges >= own[0, 0]) & (edges <= own[-1, 1])])
        starts, stops = edges[:-1], edges[1:]
        gap = np.searchsorted(own[:, 0], starts, side="right") - 1
        inside = (starts < own[gap, 1]) & (starts < stops)
        gap, starts, stops = gap[inside], starts[inside], stops[inside]
        inner = self.nest.innermost(starts)
        at_work = np.isin(self.cause[inner], HOST_AT_WORK) & ~_holds(queued, starts)
        late = np.flatnonzero(at_work & (starts >= since[0])) if len(since) else np.empty(0, np.int64)
        wait = np.searchsorted(since, starts[late], side="right") - 1
        after = starts[late] < until[wait]
        inner[late[after]] = ranges[wait[after]]
        cause, name, operator = self.cause[inner], self.name[inner], self.operator[inner]
        cause[_holds(queued, starts)] = IdleCause.QUEUED
        return mine[gap], starts, stops, cause, name, operator

    def _waits(self, at: Ints, queued: Intervals) -> tuple[Ints, Ints, Ints]:
        """The ranges in which the thread waited when the device ran dry, when that was, and how long the thread's work
        after that belongs to the wait. `at`: when gaps begin, in order."""
        inner = self.nest.innermost(at)
        waits = np.isin(self.cause[inner], WAITS) & ~_holds(queued, at)
        inner, at = inner[waits], at[waits]
        return inner, at, at + (at - self.begin[inner])


def _owners(events: KinetoEvents, some: Ints, nest: Nest, cause: Ints) -> Ints:
    """By range: the one that owns it, or NOTHING. A range of the data loader itself tells more than Python's frame."""
    special = np.isin(cause, [special for _, special in AROUND]) & (events.category[some] != Category.RUNTIME)
    owner = _outermost(nest.parent, special)
    plain = _outermost(nest.parent, special & (events.category[some] != Category.FRAME))
    both = np.flatnonzero((owner != NOTHING) & (plain != NOTHING))
    alike = both[cause[owner[both]] == cause[plain[both]]]
    owner[alike] = plain[alike]
    return owner


def _copying(events: KinetoEvents, some: Ints, nest: Nest) -> Mask:
    """Whether a range is inside of an operator that copies."""
    copies = judged_by_name(events, some, lambda name: COPYING.match(name) is not None) > 0
    found: Mask = _outermost(nest.parent, copies) != NOTHING
    return found


def _nesting(events: KinetoEvents, some: Ints) -> Ints:
    """Leave out Python's frames that open or close one of the other ranges: it begins in one and outlives it."""
    is_frame = events.category[some] == Category.FRAME
    frames, others = some[is_frame], some[~is_frame]
    if not len(frames):
        return some
    nest = Nest.of(events.begin_ns[others], events.end_ns[others])
    crosses = nest.innermost(events.begin_ns[frames]) != nest.innermost(events.end_ns[frames] - 1)
    return np.sort(np.concatenate((others, frames[~crosses])))


def _own_causes(events: KinetoEvents, some: Ints) -> tuple[Ints, Ints]:
    """What each range is by itself, and its name."""
    category, name = events.category[some], events.name[some]
    cause = np.full(len(some), IdleCause.NOTHING, np.int64)
    cause[category == Category.OP] = IdleCause.OPERATOR
    cause[category == Category.FRAME] = IdleCause.PYTHON
    cause[category == Category.RUNTIME] = IdleCause.RUNTIME
    is_call = category == Category.RUNTIME
    for rules, where in ((AROUND, ~is_call), (RUNTIME, is_call)):
        special = judged_by_name(events, some, partial(_first, rules))
        ruled = where & (special != NOTHING)
        cause[ruled] = special[ruled]
    return cause, name


def _first(rules: Rules, text: str) -> int:
    return next((int(cause) for pattern, cause in rules if pattern.search(text)), NOTHING)


def _outermost(parent: Ints, chosen: Mask) -> Ints:
    """By range: the outermost of itself and those around it that are chosen, or NOTHING."""
    found = np.where(chosen, np.arange(len(parent)), NOTHING)
    inside = np.flatnonzero(parent != NOTHING) if chosen.any() else np.empty(0, np.int64)
    around = parent[inside]
    while len(inside):
        hit = chosen[around]
        found[inside[hit]] = around[hit]
        around = parent[around]
        is_deeper = around != NOTHING
        inside, around = inside[is_deeper], around[is_deeper]
    return found


# What the launching threads did around the longest gaps ---------------------------------------------------------------


MOST_GAPS: Final = 50
NEAR_NS: Final = 200_000
MOST_RANGES: Final = 20_000
"""Of one window; the longest stay."""


def _around_gaps(events: KinetoEvents, gaps: Intervals, lanes: Ints) -> HostRanges:
    """Take operators, annotations and calls of the runtime around the longest gaps.

    Args:
        events: One file.
        gaps: Idle gaps of the device.
        lanes: By gap, lane of the thread that launched the work after it, or NOTHING.

    Returns:
        The ranges in order of begin, outer before inner.
    """
    length = gaps[:, 1] - gaps[:, 0]
    longest = np.argsort(-length, kind="stable")[:MOST_GAPS]
    longest = longest[lanes[longest] != NOTHING]
    shown = of_category(events, Category.OP, Category.ANNOTATION, Category.RUNTIME) & ~named(events, (RANGE_PREFIX,))
    found = [np.empty(0, np.int64)]
    for lane in np.unique(lanes[longest]).tolist():
        near = union(gaps[longest[lanes[longest] == lane]] + np.array([-NEAR_NS, NEAR_NS]))
        mine = np.flatnonzero(shown & (events.lane == lane))
        found.append(mine[_touches(near, events.begin_ns[mine], events.end_ns[mine])])
    taken = np.concatenate(found)
    lasted = events.end_ns[taken] - events.begin_ns[taken]
    taken = taken[np.argsort(-lasted, kind="stable")[:MOST_RANGES]]
    return _table(events, taken[np.lexsort((-events.end_ns[taken], events.begin_ns[taken]))])


def _touches(spans: Intervals, begins: Ints, ends: Ints) -> Mask:
    """Whether each range has an instant in the union."""
    next_end = np.searchsorted(spans[:, 1], begins, side="right")
    touches: Mask = (next_end < len(spans)) & (ends > np.append(spans[:, 0], 0)[next_end])
    return touches


def _table(events: KinetoEvents, taken: Ints) -> HostRanges:
    used, name = np.unique(events.name[taken], return_inverse=True)
    lanes, thread = np.unique(events.lane[taken], return_inverse=True)
    threads = tuple(events.lanes[lane].name.strip() or events.lanes[lane].tid for lane in lanes.tolist())
    return HostRanges(
        name.reshape(-1),
        thread.reshape(-1),
        events.begin_ns[taken],
        events.end_ns[taken],
        events.category[taken] == Category.RUNTIME,
        tuple(events.names[index] for index in used.tolist()),
        threads,
    )


# What held the launching threads --------------------------------------------------------------------------------------


FETCH: Final = next(pattern for pattern, cause in AROUND if cause is IdleCause.DATA)
HOLDING: Final = (IdleCause.SYNCHRONIZE, IdleCause.COPY, IdleCause.ALLOCATE)
NEVER_WAITS: Final = re.compile(r"Query")
GRAPH: Final = re.compile(r"GraphLaunch")


def host_calls(events: KinetoEvents, works: KinetoWork) -> HostCalls | None:
    """List what held the launching threads of one file, in order of begin; None where no device worked. Launches are
    left out: they stand beside the work that they launched."""
    if not len(works.position):
        return None
    launches = np.unique(works.launch[works.launch != NOTHING])
    mine = np.isin(events.lane, np.unique(events.lane[launches]))
    mine[launches] = False
    cause = np.full(len(events.name), IdleCause.NOTHING, np.uint8)
    on_host = of_category(events, Category.OP, Category.ANNOTATION, Category.FRAME)
    cause[on_host & _named(events, FETCH)] = IdleCause.DATA
    for pattern, kind in reversed([rule for rule in RUNTIME if rule[1] in HOLDING]):
        cause[of_category(events, Category.RUNTIME) & _named(events, pattern)] = kind
    chosen = np.flatnonzero(mine & (cause != IdleCause.NOTHING) & ~_named(events, NEVER_WAITS))
    graphs = int((of_category(events, Category.RUNTIME) & _named(events, GRAPH)).sum())
    return HostCalls(cause[chosen], events.begin_ns[chosen], events.end_ns[chosen], graphs)


def _named(events: KinetoEvents, pattern: re.Pattern[str]) -> Mask:
    matches: Mask = np.array([pattern.search(name) is not None for name in events.names], np.bool_)[events.name]
    return matches
