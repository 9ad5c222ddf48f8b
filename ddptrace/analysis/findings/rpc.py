"""What remote calls say of a run: who only serves, and what the step waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import RpcFunction, calls_in, function_word, own_calls, rpc_functions
from ddptrace.analysis.rpc.waits import BACKWARD, UNKNOWN, Target
from ddptrace.analysis.summary import typical_steps
from ddptrace.analysis.tables.rpc import RpcRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.wording import ms, named, percent
from ddptrace.findings import ONLY_REMOTE, WAITING_FOR_REMOTE_CALLS, Finding

WAITING_MIN_RATIO: Final = 0.02
"""A wait for remote calls below this share of the step is not worth a change."""

OF_BACKWARD: Final = (
    "the distributed backward: for what other workers compute in it and for gradients on the wire. Fewer and smaller"
    " tensors that cross workers in forward make it shorter."
)


def rpc_findings(ranks: Sequence[RankFacts], result: Result) -> Iterator[Finding]:
    yield from _only_remote(sorted(serving(ranks, result)), result)
    yield from _waiting(ranks, result)


def serving(ranks: Sequence[RankFacts], result: Result) -> set[int]:
    """The ranks that have no steps since they do remote work alone. One whose callers ask for torch's own functions
    alone sees nothing of that itself: it is known by them, and by doing no more than waiting in barriers."""
    called = {row.callee_rank for row in result.rpcs if not row.internal}
    busy = {row.rank for row in result.collectives if row.op != "barrier"}
    still = {rank.rank for rank in ranks if rank.unmarked and rank.last_step is None}
    return {rank.rank for rank in ranks if rank.only_remote} | (still & called - busy)


def _only_remote(ranks: Sequence[int], result: Result) -> Iterator[Finding]:
    if ranks:
        served = sum(row.callee_rank in ranks and _was_served(row) and not row.internal for row in result.rpcs)
        called = sum(row.rank in ranks for row in own_calls(result.rpcs))
        has = "has" if len(ranks) == 1 else "have"
        yield ONLY_REMOTE(
            named("rank", ranks),
            f"{named('Rank', ranks)} {has} no steps of {'its' if len(ranks) == 1 else 'their'} own: what ran there ran"
            f" for others ({served:,} remote calls served, {called:,} made).",
        )


def _was_served(row: RpcRow) -> bool:
    """It was seen to run, or, where it ran without Python, its result was."""
    return row.run_ns is not None or (row.done_at_ns is not None and not row.failed)


def _waiting(ranks: Sequence[RankFacts], result: Result) -> Iterator[Finding]:
    """`rpc_wait` is a part of idle: while the host waited, nothing else ran."""
    steps, _ = typical_steps(result.steps)
    waited, whole = sum(row.rpc_wait_ns or 0 for row in steps), sum(row.window_ns for row in steps)
    if not whole or waited < WAITING_MIN_RATIO * whole:
        return
    told = _most(_waited_for(ranks, steps), result, steps)
    yield WAITING_FOR_REMOTE_CALLS(
        "run",
        f"{percent(waited / whole)} of the step the host waits for remote calls and nothing else runs"
        f" ({ms(waited / len(steps))}, mean of {len(steps):,} rank-steps).{told}",
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
    """What was waited for longest; nothing where no call tells it."""
    (target, ns), *_ = waited.most_common(1) or [(UNKNOWN, 0)]
    most = (
        f" Most of that, {ms(ns / len(steps))}, is for"
        if 2 * ns > waited.total()
        else (f" The largest part, {ms(ns / len(steps))}, is for")
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
        f" {ms(one.call_ns or 0)} each (median)"
    )
    if one.gives_future:
        return f"{what}, until the future that the function gives is done: look at what that waits for."
    if one.run_ns is None or one.rest_ns is None:
        return f"{what}: issue them with rpc_async before work that does not need them."
    if one.run_ns >= one.rest_ns:
        return (
            f"{what}, of which the function ran {ms(one.run_ns)}: issue them with rpc_async before work that does not"
            " need them, or give their worker less to do."
        )
    return (
        f"{what}, of which the function ran only {ms(one.run_ns)}: the rest is the wire and the queue at the callee, so"
        " fewer and smaller calls would help, or rpc_async before work that does not need them."
    )
