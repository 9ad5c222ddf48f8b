"""When each communication ran, by what evidence, and how much of it was exposed, hidden and charged."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import EMPTY, Ints, Measure, Pieces, pairs, union
from ddptrace.load.tables import Call, CallEvents, DeviceEvents, HookCall, Intervals, RankRun, StreamWait
from ddptrace.ops import family_of
from ddptrace.rows import row
from ddptrace.schema import DeviceMark, Evidence

Exec = tuple[int, int, Evidence]

_WEAKNESS = {evidence: evidence.weakness for evidence in Evidence}


@row
@dataclass(frozen=True, slots=True)
class Communication:
    """A collective call, or a hook that communicated by other means (`call` is None). Begin, end and evidence of its
    execution are either all known or all None."""

    seq: int
    launch_at_ns: int
    issued_at_ns: int  # the host was free again
    begin_at_ns: int | None
    end_at_ns: int | None
    evidence: Evidence | None
    call: Call | None
    hook: HookCall | None  # that issued the call, or that is the communication

    @property
    def done_at_ns(self) -> int | None:
        if self.call is not None:
            return self.call.done_at_ns
        return self.hook.done_at_ns if self.hook else None

    @property
    def released_at_ns(self) -> int | None:
        """When its result could be used: a hook's future may complete after the collective it rests on."""
        if self.end_at_ns is None or self.hook is None or self.hook.done_at_ns is None:
            return self.end_at_ns
        return max(self.end_at_ns, self.hook.done_at_ns)


def is_inferred(comm: Communication) -> bool:
    """Whether the begin of its execution follows from the queue's order, and was not measured."""
    if comm.evidence is Evidence.EVENT:
        return comm.call is None or comm.call.events is None or comm.call.events.duration_ns is None
    return comm.evidence in (Evidence.CALLBACK, Evidence.HOST)


def weakest(evidences: Iterable[Evidence | None]) -> Evidence | None:
    """What all of them together rest on; None tells nothing and is left out."""
    return max((evidence for evidence in evidences if evidence is not None), key=_WEAKNESS.__getitem__, default=None)


def executions(comms: Iterable[Communication]) -> Intervals:
    """Union of all executions that are known."""
    known = ((comm.begin_at_ns, comm.end_at_ns) for comm in comms)
    return union(pairs((begin, end) for begin, end in known if begin is not None and end is not None))


def communications(rank: RankRun) -> tuple[Communication, ...]:
    """List every communication of the rank, in launch order."""
    hooks = {hook.seq: hook for hook in rank.hooks}
    execs = _execs(rank)
    found = [_of_call(call, execs.get(call.seq), hooks) for call in rank.calls]
    issuing = {call.hook for call in rank.calls}
    found += [_of_hook(hook) for hook in rank.hooks if hook.seq not in issuing]
    return tuple(sorted(found, key=lambda comm: (comm.launch_at_ns, comm.seq)))


def _of_call(call: Call, ran: Exec | None, hooks: dict[int, HookCall]) -> Communication:
    begin, end, evidence = ran or (None, None, None)
    hook = None if call.hook is None else hooks.get(call.hook)
    issued = max(call.issued_at_ns, call.launch_at_ns)
    return Communication(call.seq, call.launch_at_ns, issued, begin, end, evidence, call, hook)


def _of_hook(hook: HookCall) -> Communication:
    """The hook's whole time is the communication: nothing inside it was seen."""
    begin, end, evidence = None, None, None
    if hook.done_at_ns is not None:
        begin, end, evidence = hook.begin_at_ns, max(hook.begin_at_ns, hook.done_at_ns), Evidence.CALLBACK
    return Communication(hook.seq, hook.begin_at_ns, hook.end_at_ns, begin, end, evidence, None, hook)


def _execs(rank: RankRun) -> dict[int, Exec]:
    """Find the execution of each call for which there is evidence, by seq."""
    threads = {group.name: group.threads for group in rank.groups}
    queues: dict[str, list[Call]] = {}
    for call in sorted(rank.calls, key=lambda call: (call.launch_at_ns, call.seq)):
        queues.setdefault(call.group, []).append(call)
    backwards = _backward_ends(rank.device_events)
    return {seq: ran for group, calls in queues.items() for seq, ran in _walk(calls, threads.get(group), backwards)}


def _backward_ends(events: DeviceEvents | None) -> Intervals:
    """Of each backward on the device: when the host marked its end, and when the device came there."""
    if events is None:
        return EMPTY
    ends = events.mark == DeviceMark.BACKWARD_END
    return np.column_stack((events.placed_at_ns[ends], events.at_ns[ends]))


def _walk(calls: list[Call], threads: int | None, backwards: Intervals) -> Iterator[tuple[int, Exec]]:
    """One group's calls in launch order through its backend's queue of `threads` workers.

    launch   A B C
    worker 1   [A------)[C---)     C's start is inferred: the first worker that was free
    worker 2   [B----------)
    """
    free = [calls[0].launch_at_ns] * threads if threads else []
    over = calls[0].launch_at_ns  # the last one on the group's stream
    for call, bound in zip(calls, _latest_ends(calls, backwards), strict=True):
        on_stream = _on_stream(call, call.launch_at_ns if family_of(call.op).is_message else over, bound)
        if on_stream is not None:
            over = max(over, on_stream[1])
            yield call.seq, on_stream
            continue
        queue = free if family_of(call.op).is_queued else []
        ran = _exec(call, queue[0] if queue else call.launch_at_ns)
        if ran is None:
            continue
        if queue and ran[2] is not Evidence.HOST:  # the end of a wait does not tell when the worker was free
            heapq.heapreplace(queue, ran[1])
        yield call.seq, ran


def _on_stream(call: Call, free_at_ns: int, latest_end: int | None) -> Exec | None:
    """Execution of a call that events on a device tell of, and no profiler."""
    if call.exec is not None:
        return None
    if call.events is not None and call.events.end_at_ns is not None:
        return _by_events(call, call.events, call.events.end_at_ns, free_at_ns, latest_end)
    return _by_wait(call, call.stream_waits[0], free_at_ns) if call.stream_waits else None


def _latest_ends(calls: Sequence[Call], backwards: Intervals) -> list[int | None]:
    """Return by when each call on a stream was over: a stream that waited for it went on, the backward of its reducer
    had ended, or the next one had begun, of which the end is measured, and how long it took."""
    begins = [*(_told_begin(call) for call in calls[1:]), None]
    ends = [(wait.end_at_ns for wait in call.stream_waits) for call in calls]
    bounds = zip(begins, ends, (_backward_end(call, backwards) for call in calls), strict=True)
    return [min((at for at in (begin, *waits, end) if at is not None), default=None) for begin, waits, end in bounds]


def _told_begin(call: Call) -> int | None:
    events = call.events
    if events is None or not events.end_at_ns or not events.duration_ns or family_of(call.op).is_message:
        return None
    return events.end_at_ns - events.duration_ns


def _backward_end(call: Call, backwards: Intervals) -> int | None:
    """When the backward had ended on the device that launched a reducer's call: at its end the reducer has waited."""
    nth = int(np.searchsorted(backwards[:, 0], call.launch_at_ns))
    return int(backwards[nth, 1]) if call.on_device and call.reducer is not None and nth < len(backwards) else None


def _by_events(call: Call, events: CallEvents, told_end_ns: int, free_at_ns: int, latest_end: int | None) -> Exec:
    """Execution of a call on a device. Its begin is inferred where the backend does not tell how long it took: after
    its launch, once its inputs were ready and the stream was free."""
    end = max(told_end_ns, call.launch_at_ns)
    if events.duration_ns is not None:
        begin = max(end - events.duration_ns, call.launch_at_ns)
    else:
        begin = min(max(call.launch_at_ns, events.ready_at_ns, free_at_ns), end)
    is_measured = events.duration_ns is not None
    if latest_end is not None and (call.launch_at_ns if is_measured else begin) < latest_end < end:
        shift = end - latest_end if is_measured else 0
        begin, end = max(begin - shift, call.launch_at_ns), latest_end
    return begin, end, Evidence.EVENT


STOOD_MIN_NS: Final = 20_000
"""A stream that took less to pass a wait did not wait: two events and the wait between them take a few microseconds."""


def _by_wait(call: Call, wait: StreamWait, free_at_ns: int) -> Exec:
    """Execution of a call by a stream that waited for it. If the stream did not have to, it was over before: then its
    end is an upper bound, unless the wait followed the launch at once. Its begin is inferred, and not known where
    nothing tells when its inputs were ready."""
    stood = call.is_sync or wait.end_at_ns - wait.begin_at_ns >= STOOD_MIN_NS
    is_measured = call.events is not None and stood
    end = max(wait.end_at_ns if is_measured else wait.begin_at_ns, call.launch_at_ns)
    ready = call.launch_at_ns if call.events is None else call.events.ready_at_ns
    begin = min(max(call.launch_at_ns, ready, free_at_ns), end)
    return begin, end, Evidence.EVENT if is_measured else Evidence.HOST


def _exec(call: Call, free_at_ns: int) -> Exec | None:
    """Execution of a call that could not begin before `free_at_ns`, by the strongest evidence there is."""
    if call.exec is not None:
        return call.exec.begin_at_ns, max(call.exec.begin_at_ns, call.exec.end_at_ns), call.exec.evidence
    launch = call.launch_at_ns
    if call.done_at_ns is not None:
        end = max(call.done_at_ns, launch)
        return min(max(launch, free_at_ns), end), end, Evidence.CALLBACK
    if call.waits and not call.on_device:
        return launch, max(launch, *(end for _, end in call.waits)), Evidence.HOST
    return None


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of executions, each inside one step or outside all. Shape (parts,), by communication, then time."""

    comm: Ints  # position of the communication
    step: Ints  # position of the step, -1 outside
    begins: Ints
    ends: Ints
    hidden: Ints
    charged: Ints

    def charged_by_comm(self, count: int) -> Ints:
        totals = np.zeros(count, np.int64)
        np.add.at(totals, self.comm, self.charged)
        return totals


def shares_of(comms: Sequence[Communication], windows: Pieces, compute: Intervals) -> Shares:
    """Cut all known executions into parts, and measure each part."""
    known = np.array([i for i, comm in enumerate(comms) if comm.end_at_ns is not None], np.int64)
    begins = np.array([comm.begin_at_ns for comm in comms if comm.end_at_ns is not None], np.int64)
    ends = np.array([comm.end_at_ns for comm in comms if comm.end_at_ns is not None], np.int64)
    paying = paying_from(begins, ends, np.array([comms[i].seq for i in known], np.int64))
    source, floor, ceiling = windows.split(begins, ends)
    measure = Measure(compute)
    hidden = measure.within(floor, ceiling)
    payer = np.minimum(np.maximum(floor, paying[source]), ceiling)
    charged = ceiling - payer - measure.within(payer, ceiling)
    return Shares(known[source], windows.at(floor), floor, ceiling, hidden, charged)


def paying_from(begins: Ints, ends: Ints, seqs: Ints) -> Ints:
    """Return when each execution becomes the earliest begun of those still running; its end, if it never does."""
    order = np.lexsort((seqs, begins))
    over = np.maximum.accumulate(ends[order])
    paying = np.empty_like(begins)
    paying[order] = np.maximum(begins[order], np.append(begins[order][:1], over[:-1]))
    return paying
