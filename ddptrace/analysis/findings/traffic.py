"""Traffic: gradients sent more or less often than an update needs, and messages that differ at their two ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.traffic import GradientTrafficRow, TrafficRow
from ddptrace.analysis.traffic.peers import Ends, Sum, both_ends
from ddptrace.findings import (
    MESSAGES_DIFFER,
    SYNCHRONISED_EARLY,
    SYNCHRONISED_NEVER,
    SYNCHRONISED_OFTEN,
    Finding,
    Severity,
)
from ddptrace.ops import RECEIVE, SEND, family_of
from ddptrace.units import named, size

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


# Messages whose two ends differ -----------------------------------------------------------------


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
