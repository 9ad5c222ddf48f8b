"""Clocks of different ranks that do not agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

from ddptrace.analysis.tables.ranks import ClockRow
from ddptrace.findings import CLOCK_BENT, CLOCK_BY_PAIRS, CLOCK_DISAGREES, CLOCK_NOT_FITTED, Finding
from ddptrace.units import duration, named

NOT_FITTED: Final = "not fitted"


def clock_findings(clocks: Sequence[ClockRow]) -> Iterator[Finding]:
    """First clocks that should be the same, then clocks that cannot be compared."""
    yield from _disagreeing([row for row in clocks if row.why == "disagrees"])
    yield from _not_fitted([row for row in clocks if row.why == NOT_FITTED])
    yield from _by_pairs([row for row in clocks if row.why == "clock pairs" and not row.shifted])
    yield from _bent(clocks)


def _disagreeing(rows: Sequence[ClockRow]) -> Iterator[Finding]:
    if rows:
        ranks, worst = _ranks(rows), max(abs(row.offset_ns) for row in rows)
        yield CLOCK_DISAGREES(
            named("rank", ranks),
            f"{_capital(named('rank', ranks))} ran on the same machine as others, but collectives prove that"
            f" {_their(ranks)} clock differs by up to {duration(worst)}. Times were shifted to the clock of rank"
            f" {rows[0].reference}; --no-align shows them as recorded.",
        )


def _not_fitted(rows: Sequence[ClockRow]) -> Iterator[Finding]:
    if rows:
        ranks = _ranks(rows)
        yield CLOCK_NOT_FITTED(
            named("rank", ranks),
            f"No clock with a constant rate explains when {named('rank', ranks)} took part in collectives with rank"
            f" {rows[0].reference}, so times are compared as recorded. Either the matched collectives do not belong"
            " together, or a clock was set during the run.",
        )


def _by_pairs(rows: Sequence[ClockRow]) -> Iterator[Finding]:
    if rows:
        ranks = _ranks(rows)
        yield CLOCK_BY_PAIRS(
            named("rank", ranks),
            f"No collective shows how far the clocks of {named('rank', ranks)} and rank {rows[0].reference} are apart,"
            " so only their wall clocks are compared, which may differ by milliseconds.",
        )


def _bent(clocks: Sequence[ClockRow]) -> Iterator[Finding]:
    """A clock that is fitted in several pieces changed its rate."""
    fitted = [row for row in clocks if row.why in ("fitted", "disagrees")]
    pieces = {rank: [row for row in fitted if row.rank == rank] for rank in _ranks(fitted)}
    bent = {rank: rows for rank, rows in pieces.items() if len(rows) > 1}
    if bent:
        most = max(map(len, bent.values()))
        yield CLOCK_BENT(
            named("rank", bent),
            f"The clock of {named('rank', bent)} changed its rate against that of rank {fitted[0].reference}: it was"
            f" fitted in up to {most} pieces.",
        )


def _ranks(rows: Sequence[ClockRow]) -> list[int]:
    return sorted(set(map(attrgetter("rank"), rows)))


def _their(ranks: Sequence[int]) -> str:
    return "its" if len(ranks) == 1 else "their"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
