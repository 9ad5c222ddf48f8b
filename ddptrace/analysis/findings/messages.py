"""Messages of which the two ends tell different things: what a rank sent another, and what that one received of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.traffic import TrafficRow
from ddptrace.analysis.traffic.peers import ANY_SOURCE, RECEIVE, SEND, Ends, Sum, both_ends
from ddptrace.load.tables import Finding

INCOMPLETE: Final = frozenset((
    "process-died", "rank-empty", "surface-failed", "records-dropped", "records-damaged", "records-torn",
    "records-let-go", "steps-not-recorded", "collective-failed", "names-lost", "description-lost",
    "descriptions-let-go",
))  # fmt: skip
"""Findings that say that records are missing, or that something failed, after which one end goes no further: then the
two ends differ for that reason."""
MOST_PAIRS: Final = 3
NOTHING: Final = Sum(0, 0)

Pair = tuple[Ends, Sum, Sum]


def message_findings(result: Result, said: Iterable[Finding]) -> Iterator[Finding]:
    """Of the whole run, since the two ranks need not be in the same step. `said`: what other findings there are."""
    if any(finding.code in INCOMPLETE for finding in said):
        return
    differing = list(_differing(result.traffic, {row.rank for row in result.ranks}))
    cut_short = [pair for pair in differing if pair[1].messages == pair[2].messages]
    missing = [pair for pair in differing if pair not in cut_short]
    if cut_short:
        yield Finding("messages-differ", "warning", "run", (
            f"Messages were received into tensors of another size than theirs: {_named(cut_short)}. What is larger than"
            " its message keeps old values in the rest, where the backend does not fail: give both sides one size."
        ))  # fmt: skip
    if missing:
        yield Finding("messages-differ", "info", "run", (
            f"Not all messages were recorded at both ends: {_named(missing)}. One of the two traces begins later or"
            " ends earlier, or some of them went beneath the process group."
        ))  # fmt: skip


def _differing(rows: Sequence[TrafficRow], ranks: AbstractSet[int]) -> Iterator[Pair]:
    """Between `ranks`, which left records, where the one names all that it sends to, the other all that it receives
    from."""
    hidden = [row for row in rows if row.peer is None]
    sources = ranks - {row.rank for row in hidden if row.op == SEND}
    destinations = ranks - {row.rank for row in hidden if row.op in (RECEIVE, ANY_SOURCE)}
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
