"""Remote calls: ranks that only serve, and what the step waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import RpcFunction, calls_in, function_word, own_calls, rpc_functions
from ddptrace.analysis.rpc.rows import BACKWARD, UNKNOWN, Target
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.rpc import RpcRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.findings import ONLY_REMOTE, WAITING_FOR_REMOTE_CALLS, Finding
from ddptrace.units import duration, named, percent

WAITING_MIN_RATIO: Final = 0.02
"""A wait for remote calls below this share of the step is not worth a change."""

OF_BACKWARD: Final = (
    "the distributed backward: other workers compute in it, and gradients are sent. Send fewer and smaller tensors"
    " between workers in forward to make it shorter."
)


def rpc_findings(ranks: Sequence[RankFacts], result: Result) -> Iterator[Finding]:
    yield from _only_remote(sorted(serving(ranks, result)), result)
    yield from _waiting(ranks, result)


def serving(ranks: Sequence[RankFacts], result: Result) -> set[int]:
    """The ranks that have no steps because they only do remote work. A rank whose callers call only torch's functions
    records nothing of that: its callers show it, and so does that it waits in barriers and does nothing else."""
    called = {row.callee_rank for row in result.rpcs if not row.internal}
    busy = {row.rank for row in result.collectives if row.op != "barrier"}
    still = {rank.rank for rank in ranks if rank.unmarked and rank.last_step is None}
    return {rank.rank for rank in ranks if rank.only_remote} | (still & called - busy)


def _only_remote(ranks: Sequence[int], result: Result) -> Iterator[Finding]:
    if ranks:
        served = sum(row.callee_rank in ranks and _was_served(row) and not row.internal for row in result.rpcs)
        called = sum(row.rank in ranks for row in own_calls(result.rpcs))
        has, works = ("has", "works") if len(ranks) == 1 else ("have", "work")
        yield ONLY_REMOTE(
            named("rank", ranks),
            f"{named('Rank', ranks)} {has} no steps and only {works} for others ({served:,} remote calls served,"
            f" {called:,} made).",
        )


def _was_served(row: RpcRow) -> bool:
    """Whether it was recorded on its callee; a call that ran without Python only shows its result."""
    return row.run_ns is not None or (row.done_at_ns is not None and not row.failed)


def _waiting(ranks: Sequence[RankFacts], result: Result) -> Iterator[Finding]:
    """`rpc_wait` is a part of idle: while the host waited, nothing else ran."""
    steps, _ = measured_steps(result.steps)
    waited, whole = sum(row.rpc_wait_ns or 0 for row in steps), sum(row.window_ns for row in steps)
    if not whole or waited < WAITING_MIN_RATIO * whole:
        return
    told = _most(_waited_for(ranks, steps), result, steps)
    yield WAITING_FOR_REMOTE_CALLS(
        "run",
        f"For {percent(waited / whole)} of the step the host waits for remote calls and nothing else runs"
        f" ({duration(waited / len(steps))}, mean of {len(steps):,} rank-steps).{told}",
    )


def _waited_for(ranks: Sequence[RankFacts], steps: Sequence[StepRow]) -> Counter[Target]:
    """In ns, over these steps together."""
    wanted = {(row.rank, row.step) for row in steps}
    found: Counter[Target] = Counter()
    for rank in ranks:
        for waited in rank.waited:
            found[waited.target] += waited.ns if (rank.rank, waited.step) in wanted else 0
    return found


def _most(waited: Counter[Target], result: Result, steps: Sequence[StepRow]) -> str:
    """What the host waited for longest; empty if no call shows it."""
    (target, ns), *_ = waited.most_common(1) or [(UNKNOWN, 0)]
    most = (
        f" Most of that, {duration(ns / len(steps))}, is for"
        if 2 * ns > waited.total()
        else (f" The largest part, {duration(ns / len(steps))}, is for")
    )
    if target == BACKWARD:
        return f"{most} {OF_BACKWARD}"
    calls = rpc_functions(calls_in(result.rpcs, ((row.rank, row.step) for row in steps)))
    function = next((one for one in calls if (one.function, one.callee) == target), None)
    return "" if function is None else f"{most} {_longest(function, len(steps))}"


def _longest(one: RpcFunction, steps: int) -> str:
    often = f"{one.calls / steps:.3g}"
    what = (
        f"{function_word(one.function)} at {one.callee or '?'}: {often} call{'' if often == '1' else 's'} a step,"
        f" {duration(one.call_ns or 0)} each (median)"
    )
    if one.gives_future:
        return f"{what}, until the future that the function returns is done: look at what that future waits for."
    if one.run_ns is None or one.rest_ns is None:
        return f"{what}: issue them with rpc_async before work that does not need them."
    if one.run_ns >= one.rest_ns:
        return (
            f"{what}, of which the function ran {duration(one.run_ns)}: issue them with rpc_async before work that does"
            " not need them, or give their worker less to do."
        )
    return (
        f"{what}, of which the function ran only {duration(one.run_ns)}: the rest is the network and the callee's"
        " queue. Make fewer and smaller calls, or issue them with rpc_async before work that does not need them."
    )
