"""What a rank's remote calls mean for its own time: when it was blocked on them, and whether it does anything else."""

from __future__ import annotations

from ddptrace.analysis.collectives.host_waits import training_threads
from ddptrace.analysis.intervals import pairs, subtract, total, union
from ddptrace.load.tables import Intervals, RankRpc, RankRun, RpcCall
from ddptrace.schema import Phase, RpcOp, StepEnd


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
