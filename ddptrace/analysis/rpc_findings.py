"""What remote calls say of a run: who only serves, and what the step waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.facts import RankFacts
from ddptrace.analysis.rpc_functions import RpcFunction, calls_in, function_word, own_calls, rpc_functions
from ddptrace.analysis.summary import typical_steps
from ddptrace.analysis.tables import Result
from ddptrace.analysis.wording import ms, named, percent
from ddptrace.load.tables import Finding

WAITING_MIN_RATIO: Final = 0.02
"""A wait for remote calls below this share of the step is not worth a change."""


def rpc_findings(ranks: Sequence[RankFacts], result: Result) -> Iterator[Finding]:
    yield from _only_remote([rank.rank for rank in ranks if rank.only_remote], result)
    yield from _waiting(result)


def _only_remote(ranks: Sequence[int], result: Result) -> Iterator[Finding]:
    if ranks:
        served = sum(row.callee_rank in ranks and row.run_ns is not None and not row.internal for row in result.rpcs)
        called = sum(row.rank in ranks for row in own_calls(result.rpcs))
        has = "has" if len(ranks) == 1 else "have"
        yield Finding("only-remote", "info", named("rank", ranks), (
            f"{named('Rank', ranks)} {has} no steps of {'its' if len(ranks) == 1 else 'their'} own: what ran there ran"
            f" for others ({served:,} remote calls served, {called:,} made)."
        ))  # fmt: skip


def _waiting(result: Result) -> Iterator[Finding]:
    """`rpc_wait` is a part of idle: while the host waited, nothing else ran."""
    steps, _ = typical_steps(result.steps)
    waited, whole = sum(row.rpc_wait_ns or 0 for row in steps), sum(row.window_ns for row in steps)
    if not whole or waited < WAITING_MIN_RATIO * whole:
        return
    longest = next(iter(rpc_functions(calls_in(result, ((row.rank, row.step) for row in steps)))), None)
    told = "" if longest is None else f" {_longest(longest, len(steps))}"
    yield Finding("waiting-for-remote-calls", "warning", "run", (
        f"{percent(waited / whole)} of the step the host waits for remote calls and nothing else runs"
        f" ({ms(waited / len(steps))}, mean of {len(steps):,} rank-steps).{told}"
    ))  # fmt: skip


def _longest(one: RpcFunction, steps: int) -> str:
    often = f"{one.calls / steps:.3g}"
    what = (
        f"The longest are those of {function_word(one.function)} at {one.callee or '?'}: {often}"
        f" call{'' if often == '1' else 's'} a step, {ms(one.call_ns or 0)} each"
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
