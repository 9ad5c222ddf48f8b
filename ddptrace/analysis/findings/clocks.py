"""What is said of clocks that lie apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

from ddptrace.analysis.tables.ranks import ClockRow
from ddptrace.analysis.wording import ms, named
from ddptrace.findings import CLOCK_BENT, CLOCK_BY_PAIRS, CLOCK_DISAGREES, CLOCK_NOT_FITTED, Finding

NOT_FITTED: Final = "not fitted"


def clock_findings(clocks: Sequence[ClockRow]) -> Iterator[Finding]:
    """From clocks that should have been one to those that could not be compared."""
    yield from _disagreeing([row for row in clocks if row.why == "disagrees"])
    yield from _not_fitted([row for row in clocks if row.why == NOT_FITTED])
    yield from _by_pairs([row for row in clocks if row.why == "clock pairs" and not row.shifted])
    yield from _bent(clocks)


def _disagreeing(rows: Sequence[ClockRow]) -> Iterator[Finding]:
    if rows:
        ranks, worst = _ranks(rows), max(abs(row.offset_ns) for row in rows)
        yield CLOCK_DISAGREES(
            named("rank", ranks),
            f"{_capital(named('rank', ranks))} ran on one machine with others, yet collectives prove that"
            f" {_their(ranks)} clock is another one: up to {ms(worst)} apart. Its times were brought on rank"
            f" {rows[0].reference}'s clock; --no-align shows them as they were recorded.",
        )


def _not_fitted(rows: Sequence[ClockRow]) -> Iterator[Finding]:
    if rows:
        ranks = _ranks(rows)
        yield CLOCK_NOT_FITTED(
            named("rank", ranks),
            f"No clock that runs evenly explains when {named('rank', ranks)} took part in what was done together with"
            f" rank {rows[0].reference}, so times are compared as they were recorded: either what was matched does not"
            " belong together, or a clock was set while the run went on.",
        )


def _by_pairs(rows: Sequence[ClockRow]) -> Iterator[Finding]:
    if rows:
        ranks = _ranks(rows)
        yield CLOCK_BY_PAIRS(
            named("rank", ranks),
            f"Nothing that {named('rank', ranks)} did together with rank {rows[0].reference} tells how far their clocks"
            " lie apart, so they are compared by their wall clocks alone, which may be off by milliseconds.",
        )


def _bent(clocks: Sequence[ClockRow]) -> Iterator[Finding]:
    """A clock in several pieces changed its pace."""
    fitted = [row for row in clocks if row.why in ("fitted", "disagrees")]
    pieces = {rank: [row for row in fitted if row.rank == rank] for rank in _ranks(fitted)}
    bent = {rank: rows for rank, rows in pieces.items() if len(rows) > 1}
    if bent:
        most = max(map(len, bent.values()))
        yield CLOCK_BENT(
            named("rank", bent),
            f"The clock of {named('rank', bent)} did not run evenly against that of rank {fitted[0].reference}: it was"
            f" followed in up to {most} pieces.",
        )


def _ranks(rows: Sequence[ClockRow]) -> list[int]:
    return sorted(set(map(attrgetter("rank"), rows)))


def _their(ranks: Sequence[int]) -> str:
    return "its" if len(ranks) == 1 else "their"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
