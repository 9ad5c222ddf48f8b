"""Which work waited for work of another stream. A file seldom tells; the order in which things ran does:

stream 7    ═══ a ═══╤═ b ═                      b is launched and its stream is free: it begins at once
stream 20            ╰►══ c ══╮                  c was launched, its stream was free, and it began as a ended
stream 7                      ╰►══ d ══          likewise d

Whether work waited for an event of another stream, or for room on the device, looks alike and is not told apart.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.load.tables import DeviceWork, Work

NONE: Final = -1
AT_ONCE_NS: Final = 3_000
"""Work that begins so soon after it may waits for nothing else."""
EARLY_NS: Final = 20_000
"""Work that waits for room on the device begins up to this much before the work that had it ends."""


def before_on_stream(work: DeviceWork) -> Ints:
    """By work: the one before it on its stream, NONE for the first."""
    order = np.lexsort((np.arange(len(work.stream)), work.stream))
    previous = np.full(len(order), NONE, np.int64)
    same = work.stream[order][1:] == work.stream[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def waited_for(work: DeviceWork, free_at_ns: Ints) -> Ints:
    """By work: the work of another stream whose end it waited for, NONE where it began at once or nothing shows it.
    `free_at_ns`: when it was launched and its stream was free."""
    by_end = np.argsort(work.end_at_ns, kind="stable")
    ends, begins, stream = work.end_at_ns[by_end], work.begin_at_ns[by_end], work.stream[by_end]
    found = np.full(len(work.kind), NONE, np.int64)
    first = np.searchsorted(ends, free_at_ns, side="right")
    last = np.searchsorted(ends, work.begin_at_ns + EARLY_NS, side="right")
    for one in np.flatnonzero(work.begin_at_ns - free_at_ns > AT_ONCE_NS).tolist():
        others = slice(first[one], last[one])
        at = work.begin_at_ns[one]
        is_before = (ends[others] <= at) | (begins[others] < at - EARLY_NS)
        may = is_before & (stream[others] != work.stream[one])
        if may.any():
            found[one] = by_end[first[one] + np.flatnonzero(may)[-1]]
    return found


def launched_before(work: DeviceWork) -> Ints:
    """By communication kernel: the work that the host launched last before it, whose stream its own waits for; NONE
    where that still ran when it began, and for other work."""
    order = np.argsort(np.where(work.launched, work.launch_begin_at_ns, np.iinfo(np.int64).min), kind="stable")
    is_other = (work.kind[order] != Work.COMM) & work.launched[order]
    last = np.maximum.accumulate(np.where(is_other, np.arange(len(order)), NONE))
    found = np.full(len(order), NONE, np.int64)
    found[order] = np.where(last != NONE, order[last], NONE)
    over = (found != NONE) & (work.end_at_ns[found] <= work.begin_at_ns)
    return np.where(over & (work.kind == Work.COMM) & work.launched, found, NONE)
