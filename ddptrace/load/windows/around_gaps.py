"""What the launching threads did around a device's longest idle gaps, for a picture: bounded, whatever the file holds.

stream   ┤ gemm ├                                   ├ gemm
gap             |-----------------------------------|
near     |------|-----------------------------------|------|     the gap and `NEAR_NS` before and after it
thread     ├ aten::to ───────────────┤   ├ aten::mm ──┤          taken whole
              ├ cudaMemcpyAsync ──┤          ├ launch ┤
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ddptrace.load.kineto.events import Category, Ints, KinetoEvents
from ddptrace.load.tables import HostRanges, Intervals
from ddptrace.load.windows.cpu_compute import union
from ddptrace.load.windows.device import Mask, named, of_category
from ddptrace.load.windows.nesting import NOTHING
from ddptrace.schema import RANGE_PREFIX

MOST_GAPS: Final = 50
NEAR_NS: Final = 200_000
MOST_RANGES: Final = 20_000
"""Of one window; the longest stay."""


def around_gaps(events: KinetoEvents, gaps: Intervals, lanes: Ints) -> HostRanges:
    """Take operators, annotations and calls of the runtime.

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
