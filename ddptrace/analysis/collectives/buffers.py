"""What it costs a rank that DDP sends it rank 0's buffers before each forward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddptrace.analysis.intervals import intersect, pairs, total, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.load.tables import Intervals, Window
from ddptrace.schema import Origin


@dataclass(frozen=True, slots=True)
class BufferTime:
    """One rank in one step."""

    step: int  # ordinal
    host_ns: int  # packing, sending and unpacking held the host
    cost_ns: int  # part of it in which the device was idle; all of it where the host computes


def buffer_times(view: RankView) -> tuple[BufferTime, ...]:
    """By step, of those that sent buffers. Where no profiler looked, the broadcasts alone tell, without the packing; on
    a device they tell nothing of the host."""
    spans: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for begin, end in _held(view):
        position = int(view.steps.at(np.array([begin], np.int64))[0])
        if position >= 0:
            spans[position].append((begin, end))
    if not spans:
        return ()
    idle = union(*(_gaps(window) for window in view.rank.windows))
    return tuple(_of_step(view, position, union(pairs(mine)), idle) for position, mine in sorted(spans.items()))


def _held(view: RankView) -> Iterator[tuple[int, int]]:
    for window in view.rank.windows:
        yield from window.buffers
    if view.is_on_device:
        return
    looked = [(window.begin_at_ns, window.end_at_ns) for window in view.rank.windows]
    for comm in view.comms:
        is_buffers = comm.call is not None and comm.call.origin == Origin.BUFFERS.word
        seen = any(begin <= comm.launch_at_ns < end for begin, end in looked)
        if is_buffers and not seen and comm.end_at_ns is not None:
            yield comm.launch_at_ns, max(comm.launch_at_ns, comm.end_at_ns)


def _gaps(window: Window) -> Intervals:
    return np.zeros((0, 2), np.int64) if window.idle is None else union(window.idle.gaps)


def _of_step(view: RankView, position: int, held: Intervals, idle: Intervals) -> BufferTime:
    host_ns = total(held)
    cost_ns = total(intersect(held, idle)) if view.is_on_device else host_ns
    return BufferTime(view.rank.steps[position].ordinal, host_ns, cost_ns)
