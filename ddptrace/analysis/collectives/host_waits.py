"""When the host was blocked on communication. Stock DDP waits in C++ at the end of backward, where no Python sees it:

backward   [ r  r  r  launch┄┄┄┄┄┄┄┄┄┄┄┄┄ ]     r: a gradient is ready
exec                   [=== 0 ===)[== 1 ==)
tail                        [00000[1111111)     who is waited for, in launch order
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ddptrace.analysis.buckets.occurrences import Occurrence
from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.intervals import Measure, merged, pairs, subtract, total, union
from ddptrace.analysis.steps.phases import main_thread
from ddptrace.load.tables import Call, Intervals, PhaseMark, RankRpc, RankRun, RpcCall
from ddptrace.schema import Phase, RpcOp, StepEnd

Span = tuple[int, int]
Awaited = dict[int, list[Communication]]
"""Communications in launch order, by the ordinal of the backward that ends when they are over."""


@dataclass(frozen=True, slots=True)
class Waits:
    """`host`: union of all that blocked the training threads. `by_seq`: what each communication was waited for, as far
    as that can be known; one that is absent may or may not have been waited for."""

    host: Intervals
    by_seq: dict[int, tuple[Span, ...]]

    def measured(self, compute: Intervals) -> dict[int, int]:
        """Wait of each communication in ns, less what the host still computed there."""
        owner = np.array([seq for seq, spans in self.by_seq.items() for _ in spans], np.int64)
        spans = pairs(span for spans in self.by_seq.values() for span in spans)
        idle = spans[:, 1] - spans[:, 0] - Measure(compute).within(spans[:, 0], spans[:, 1])
        waits = dict.fromkeys(self.by_seq, 0)
        for seq, ns in zip(owner.tolist(), idle.tolist(), strict=True):
            waits[seq] += ns
        return waits


def host_waits(rank: RankRun, marks: Sequence[PhaseMark], awaited: Awaited, comms: Sequence[Communication]) -> Waits:
    """Explicit waits of the training threads, and stock DDP's at the end of each backward."""
    threads = training_threads(rank)
    own = {
        comm.seq: _explicit(comm.call, comm.end_at_ns)
        for comm in comms
        if comm.call is not None and (not threads or comm.call.thread in threads)
    }
    tails, shares = _tails(rank, marks, awaited)
    told = [span for spans in own.values() for span in spans]
    seqs = shares.keys() | {seq for seq, spans in own.items() if spans}
    by_seq = {seq: merged((*own.get(seq, ()), *shares.get(seq, ()))) for seq in seqs}
    return Waits(union(pairs(told + tails)), by_seq)


def _explicit(call: Call, end_at_ns: int | None) -> tuple[Span, ...]:
    """Waits that were seen; a synchronous call whose wait was not seen blocked its caller until it was over, unless it
    ran on a device: there only a stream waits."""
    if call.waits or not call.is_sync or call.is_native or end_at_ns is None or call.on_device:
        return call.waits
    return ((call.issued_at_ns, max(call.issued_at_ns, end_at_ns)),)


def training_threads(rank: RankRun) -> set[int]:
    """The main thread, and those that run backward for it; what a helper thread waits for blocks no computation. Empty
    where nothing tells which threads train."""
    main = main_thread(rank)
    engine = {call.thread for call in rank.calls if call.is_native or call.hook is not None}
    return engine if main is None else engine | {main}


def _tails(rank: RankRun, marks: Sequence[PhaseMark], awaited: Awaited) -> tuple[list[Span], dict[int, list[Span]]]:
    """The host's waits at the ends of backwards, and each communication's share of them."""
    last_ready: dict[int, int] = {}
    for ready in rank.ready:
        if len(ready.at_ns):
            last = int(ready.at_ns.max())
            last_ready[ready.backward] = max(last, last_ready.get(ready.backward, last))
    tails: list[Span] = []
    shares: dict[int, list[Span]] = {}
    for mark in marks:
        if mark.phase is Phase.BACKWARD and mark.backward in awaited:
            group = [comm for comm in awaited[mark.backward] if rank.recorded or comm.end_at_ns is not None]
            if not group:  # whether the host waited for what was only launched, nobody saw
                continue
            begin = max(
                mark.begin_at_ns,
                last_ready.get(mark.backward, mark.begin_at_ns),
                *(_host_free_at(comm) for comm in group),
            )
            tails += _tail(group, begin, mark.end_at_ns)
            shares |= _share(group, begin, mark.end_at_ns)
    return tails, shares


def awaited_in(
    rank: RankRun, comms: Sequence[Communication], backwards: Sequence[int | None], found: Sequence[Occurrence]
) -> Awaited:
    """What the host waits for in DDP at the end of each backward: its buckets, and what else its C++ sent. In a
    distributed backward nothing tells the reducer, as gradients are not accumulated there. Not what ran on a device,
    where only a stream waits."""
    carriers = {comm.seq for occurrence in found for comm in occurrence.comms}
    distributed = len(rank.reducers) > 0 and len(rank.rpc.calls) > 0
    awaited: Awaited = defaultdict(list)
    for comm, backward in zip(comms, backwards, strict=True):
        is_native = comm.call is not None and comm.call.is_native and (distributed or comm.call.reducer is not None)
        is_stream = comm.call is not None and comm.call.on_device
        if backward is not None and not is_stream and (is_native or comm.seq in carriers):
            awaited[backward].append(comm)
    return awaited


def _host_free_at(comm: Communication) -> int:
    return max(comm.issued_at_ns, comm.hook.end_at_ns) if comm.hook else comm.issued_at_ns


def _tail(group: Sequence[Communication], begin: int, backward_end: int) -> list[Span]:
    """Until the last of them is over; where that is not known, until backward returns."""
    ends = [backward_end if comm.released_at_ns is None else comm.released_at_ns for comm in group]
    end = min(max(ends), backward_end)
    return [(begin, end)] if end > begin else []


def _share(group: Sequence[Communication], begin: int, backward_end: int) -> Iterator[tuple[int, list[Span]]]:
    """Each one is waited for from where the one before it was over."""
    cursor = begin
    for comm in group:
        if comm.released_at_ns is not None:
            end = max(cursor, min(comm.released_at_ns, backward_end))
            yield comm.seq, [(cursor, end)] if end > cursor else []
            cursor = end


# Remote calls ---------------------------------------------------------------------------------------------------------


def remote_waits(rank: RankRun) -> Intervals:
    """Union of the stretches in which a training thread was blocked on remote calls; without phases, any thread. A call
    that blocks and has no end was waited for as long as the rank's records go."""
    threads = training_threads(rank)
    blocking = (call for call in rank.rpc.calls if _blocks(call, rank.rpc))
    ends = ((c.thread, c.issued_at_ns, rank.end_at_ns if c.done_at_ns is None else c.done_at_ns) for c in blocking)
    stretches = [*ends, *((wait.thread, wait.begin_at_ns, wait.end_at_ns) for wait in rank.rpc.waits)]
    mine = ((begin, end) for thread, begin, end in stretches if not threads or thread in threads)
    return union(pairs(mine))


def _blocks(call: RpcCall, rpc: RankRpc) -> bool:
    """It tells of a wait that no other record tells of."""
    return call.op in (RpcOp.TO_HERE, RpcOp.BACKWARD) or (call.op is RpcOp.RPC_SYNC and not rpc.waits)


def is_only_remote(rank: RankRun) -> bool:
    """Whether all that the rank does is to call others and to run functions for them. It calls no backward itself, and
    what it computes and updates lies within such functions: those are other ranks' steps."""
    rpc = rank.rpc
    own = any(not call.is_internal for call in rpc.calls) or any(not run.is_internal for run in rpc.runs)
    if not own or any(mark.ended_by is StepEnd.SAID for mark in rank.steps):
        return False
    if any(mark.phase is Phase.BACKWARD for mark in rank.phases):
        return False
    marked = union(pairs((mark.begin_at_ns, mark.end_at_ns) for mark in rank.phases))
    return not total(subtract(marked, union(pairs((run.begin_at_ns, run.end_at_ns) for run in rpc.runs))))
