"""Finds what ranks send too much or too often: gradients, uneven messages and remote calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import RpcFunction, calls_in, function_word, own_calls, rpc_functions
from ddptrace.analysis.rpc.rows import BACKWARD, UNKNOWN, Target
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.traffic import GradientTrafficRow, RpcRow, TrafficRow
from ddptrace.analysis.traffic.peers import Ends, Sum, both_ends
from ddptrace.findings import (
    MESSAGES_DIFFER,
    ONLY_REMOTE,
    SYNCHRONISED_EARLY,
    SYNCHRONISED_NEVER,
    SYNCHRONISED_OFTEN,
    WAITING_FOR_REMOTE_CALLS,
    Finding,
    Severity,
)
from ddptrace.ops import RECEIVE, SEND, family_of
from ddptrace.units import duration, named, percent, size

DRIFT: Final = "If the update uses them, the models of the ranks drift apart"


def traffic_findings(rows: Iterable[GradientTrafficRow]) -> list[Finding]:
    """Only steps with one update after all of their backwards are judged: they need one synchronised backward, and it
    must be the last."""
    by_reducer: defaultdict[tuple[int, str], list[GradientTrafficRow]] = defaultdict(list)
    for row in rows:
        if row.one_update:
            by_reducer[row.reducer, row.name].append(row)
    several = len({reducer for reducer, _ in by_reducer}) > 1
    return [finding for mine in by_reducer.values() for finding in _of_reducer(mine, several)]


def _of_reducer(rows: Sequence[GradientTrafficRow], several: bool) -> Iterator[Finding]:
    """`several`: there are other reducers, and the update may be theirs, so it may not need these gradients."""
    grave: Severity = "info" if several else "warning"
    often = [row for row in rows if row.synchronised > 1]
    never = [row for row in rows if not row.synchronised]
    early = [row for row in rows if row.synchronised and not row.last_synchronised]
    where, name = f"reducer {rows[0].reducer}", rows[0].name
    if often:
        yield SYNCHRONISED_OFTEN(where, _often(name, often, len(rows)))
    if never:
        yield SYNCHRONISED_NEVER(
            where,
            f"{name} got gradients in {_steps(never)} and sent none before the update ({len(never)} of {len(rows)}"
            f" rank-steps): every backward was inside no_sync(). {DRIFT}: run the last backward before each update"
            " outside of no_sync().",
            grave,
        )
    if early:
        yield SYNCHRONISED_EARLY(
            where,
            f"{name} sent gradients in {_steps(early)}, but not in the last backward before the update ({len(early)} of"
            f" {len(rows)} rank-steps), so the gradients of that backward stayed on their rank. {DRIFT}: put no_sync()"
            " around all backwards but the last.",
            grave,
        )


def _often(name: str, often: Sequence[GradientTrafficRow], judged: int) -> str:
    times = sorted({row.synchronised for row in often})
    counted = f"{times[0]}" if len(times) == 1 else f"{times[0]} to {times[-1]}"
    known = [row.nbytes for row in often if row.nbytes is not None]
    once = [row.nbytes // row.synchronised for row in often if row.nbytes is not None]
    bytes_ = f", {size(max(known))} on a rank instead of {size(max(once))}" if known else ""
    return (
        f"{name} sent its gradients {counted} times per update in {_steps(often)} ({len(often)} of {judged}"
        f" rank-steps){bytes_}. If these backwards accumulate gradients, put all but the last inside no_sync(): the sum"
        " is the same."
    )


def _steps(rows: Iterable[GradientTrafficRow]) -> str:
    return named("step", sorted({row.step for row in rows}))


# Messages whose two ends differ ---------------------------------------------------------------------------------------


MOST_PAIRS: Final = 3
NOTHING: Final = Sum(0, 0)
Pair = tuple[Ends, Sum, Sum]


def message_findings(result: Result) -> Iterator[Finding]:
    """Of the whole run, since the two ranks need not be in the same step; not of profiler files alone, which need not
    begin with the same message."""
    if not result.recorded:
        return
    differing = list(_differing(result.traffic, {row.rank for row in result.ranks}))
    cut_short = [pair for pair in differing if pair[1].messages == pair[2].messages]
    missing = [pair for pair in differing if pair not in cut_short]
    if cut_short:
        yield MESSAGES_DIFFER(
            "run",
            f"Messages were received into tensors of another size: {_named(cut_short)}. If the backend does not fail, a"
            " tensor that is larger than its message keeps old values in the rest. Give both sides the same size.",
        )
    if missing:
        yield MESSAGES_DIFFER(
            "run",
            f"Not all messages were recorded at both ends: {_named(missing)}. One of the two traces begins later or"
            " ends earlier, or some messages bypassed the process group.",
            "info",
        )


def _differing(rows: Sequence[TrafficRow], ranks: AbstractSet[int]) -> Iterator[Pair]:
    """Pairs of `ranks` with records, of which one names all ranks that it sends to, the other all that it receives
    from."""
    hidden = [row for row in rows if row.peer is None]
    sources = ranks - {row.rank for row in hidden if family_of(row.op) is SEND}
    destinations = ranks - {row.rank for row in hidden if family_of(row.op) is RECEIVE}
    sent, received = both_ends(rows)
    for ends in sorted({*sent, *received}):
        one, other = sent.get(ends, NOTHING), received.get(ends, NOTHING)
        if one != other and ends[0] in sources and ends[1] in destinations:
            yield ends, one, other


def _named(pairs: Sequence[Pair]) -> str:
    told = (
        f"rank {source} → rank {destination}, {_sum(sent, 'sent')}, {_sum(received, 'received')}"
        for (source, destination), sent, received in pairs[:MOST_PAIRS]
    )
    rest = f"; and {len(pairs) - MOST_PAIRS} more pairs" if len(pairs) > MOST_PAIRS else ""
    return "; ".join(told) + rest


def _sum(of: Sum, what: str) -> str:
    return f"{of.messages:,.0f} {what} ({of.nbytes:,.0f} bytes)"


# Remote calls ---------------------------------------------------------------------------------------------------------


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
    told = _largest_words(_waited_for(ranks, steps), result, steps)
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


def _largest_words(waited: Counter[Target], result: Result, steps: Sequence[StepRow]) -> str:
    """What the host waited for longest; empty if no call shows it. `steps`: those that are counted."""
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
    return "" if function is None else f"{most} {_function_words(function, len(steps))}"


def _function_words(one: RpcFunction, steps: int) -> str:
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
