"""Describes one rank in one profiler window: its host's launches and waits, and which work waited for which.

device                     ══ kernel ══┤
thread   ├ launch ┤ ├ cudaStreamSynchronize ┤ ├ launch ┤        threads that launch are one: they work in turns
instants |        | |                       | |        |
between     own   own   waits ────────►|own  own  own

A file seldom tells which work waited for work of another stream; the order in which things ran does:

stream 7    ═══ a ═══╤═ b ═                      b is launched and its stream is free: it begins at once
stream 20            ╰►══ c ══╮                  c was launched, its stream was free, and it began as a ended
stream 7                      ╰►══ d ══          likewise d

Whether work waited for an event of another stream, or for room on the device, looks alike and is not told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.timeline.graph import Span
from ddptrace.load.tables import DeviceWork, HostCalls, IdleCause, Work

NONE: Final = -1
LONG_NS: Final = 50_000
"""A launch that takes longer waits for room in the device's queue, if much is in it."""
HOLDING: Final = (IdleCause.SYNCHRONIZE, IdleCause.COPY)
"""Calls that wait for the device."""
QUEUE_MIN: Final = 256
"""So much work in a queue may fill it."""


@dataclass(frozen=True, slots=True)
class Host:
    """Instants in time order, shape (n,): begins and ends of calls, and ends of steps."""

    at_ns: Ints
    span: NDArray[np.uint8]  # Span: what the host did since the instant before
    own_ns: Ints  # time since the instant before in which it did not wait for the device
    released_by: Ints  # position of the work that it waited for since then, NONE for none
    launched_at: Ints  # by work: the instant at which the call began that launched it, NONE where that is unknown
    step_ended_at: Ints  # by step: the instant of its end


@dataclass(frozen=True, slots=True)
class _Calls:
    """Launches, and after them the other calls: columns of shape (n,)."""

    begin: Ints
    end: Ints
    cause: NDArray[np.uint8]
    of_work: Ints  # by work: its launch, NONE where that is unknown

    @classmethod
    def of(cls, work: DeviceWork, held: HostCalls) -> _Calls:
        spans = np.column_stack((work.launch_begin_at_ns, work.launch_end_at_ns))
        launches, again = np.unique(spans[work.launched], axis=0, return_inverse=True)
        of_work = np.full(len(work.kind), NONE, np.int64)
        of_work[work.launched] = again.ravel()
        return cls(
            np.concatenate((launches[:, 0], held.begin_at_ns)),
            np.concatenate((launches[:, 1], held.end_at_ns)),
            np.concatenate((np.full(len(launches), IdleCause.LAUNCH, np.uint8), held.cause)),
            of_work,
        )


def host_of(work: DeviceWork, held: HostCalls, step_ends: Ints) -> Host:
    """`step_ends`: in time order."""
    calls = _Calls.of(work, held)
    count = len(calls.begin)
    at = np.concatenate((calls.begin, calls.end, step_ends))
    order = np.argsort(at, kind="stable")
    place = np.empty(len(at), np.int64)
    place[order] = np.arange(len(at))
    at = at[order]
    released_by = np.full(len(at), NONE, np.int64)
    released_by[place[count : 2 * count]] = _released_by(work, calls)
    before = np.append(at[:1], at[:-1])
    waits = released_by != NONE
    since = np.where(waits, np.maximum(before, work.end_at_ns[released_by]), before)
    launched_at = calls.of_work.copy()
    launched_at[work.launched] = place[calls.of_work[work.launched]]
    return Host(
        at,
        _spans(calls, before, at),
        at - since,
        released_by,
        launched_at,
        place[2 * count :],
    )


def _spans(calls: _Calls, before: Ints, at: Ints) -> NDArray[np.uint8]:
    """What the host did between each two instants."""
    found = np.full(len(at), Span.HOST, np.uint8)
    for cause, span in ((IdleCause.ALLOCATE, Span.ALLOCATE), (IdleCause.DATA, Span.DATA)):
        inside = np.zeros(len(at) + 1, np.int64)
        chosen = calls.cause == cause
        np.add.at(inside, np.searchsorted(before, calls.begin[chosen]), 1)
        np.add.at(inside, np.searchsorted(before, calls.end[chosen]), -1)
        found[np.cumsum(inside)[:-1] > 0] = span
    return found


def _released_by(work: DeviceWork, calls: _Calls) -> Ints:
    """By call: the work for whose end the host waited in it, NONE where it did not."""
    by_end = np.argsort(work.end_at_ns, kind="stable")
    ends, launches = work.end_at_ns[by_end], np.where(work.launched, work.launch_begin_at_ns, 0)[by_end]
    own_end = _own_ends(work, calls)
    found = np.full(len(calls.begin), NONE, np.int64)
    first = np.searchsorted(ends, calls.begin, side="right").tolist()
    last = np.searchsorted(ends, calls.end, side="right").tolist()
    waits = _may_wait(work, calls) & (np.array(first) < np.array(last))
    for call in np.flatnonzero(waits).tolist():
        limit = calls.begin[call] + (calls.cause[call] == IdleCause.LAUNCH and own_end[call] <= calls.end[call])
        candidates = np.flatnonzero(launches[first[call] : last[call]] < limit)
        if len(candidates):
            found[call] = by_end[first[call] + candidates[-1]]
    return found


def _own_ends(work: DeviceWork, calls: _Calls) -> Ints:
    """By call: when all that it launched was over; never, for what is no copy."""
    ends = np.full(len(calls.begin), np.iinfo(np.int64).max)
    copied = (calls.of_work != NONE) & (work.kind == Work.MEMORY)
    ends[calls.of_work[copied]] = work.end_at_ns[copied]
    return ends


def _may_wait(work: DeviceWork, calls: _Calls) -> NDArray[np.bool_]:
    """Which calls may have waited for the device: copies that end after what they launched, long launches with a full
    queue, synchronizing calls, and calls of the allocator after which nothing that was launched before still runs."""
    is_launch, allocates = calls.cause == IdleCause.LAUNCH, calls.cause == IdleCause.ALLOCATE
    is_long = calls.end - calls.begin > LONG_NS
    full = is_launch & is_long & (_queued(work, calls.begin) > QUEUE_MIN)
    copies = is_launch & (_own_ends(work, calls) <= calls.end)
    frees = allocates & (_latest_end(work, calls.begin) <= calls.end)
    waits: NDArray[np.bool_] = full | copies | frees | np.isin(calls.cause, HOLDING)
    return waits


def _queued(work: DeviceWork, at: Ints) -> Ints:
    """How much of the work that was launched before each instant had not begun."""
    launches, begins = (np.sort(one[work.launched]) for one in (work.launch_begin_at_ns, work.begin_at_ns))
    queued: Ints = np.searchsorted(launches, at) - np.searchsorted(begins, at, side="right")
    return queued


def _latest_end(work: DeviceWork, at: Ints) -> Ints:
    """When the last of the work that was launched before each instant was over."""
    order = np.argsort(work.launch_begin_at_ns[work.launched], kind="stable")
    launches, ends = (one[work.launched][order] for one in (work.launch_begin_at_ns, work.end_at_ns))
    latest = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(ends))
    return latest[np.searchsorted(launches, at)]


# Which work waited for which ------------------------------------------------------------------------------------------


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
