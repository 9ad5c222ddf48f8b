"""What is said of the ranks' clocks, to be read: which lie apart, how far, and how sure that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from html import escape
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import ClockRow
from ddptrace.render.markup import folded
from ddptrace.units import NOT_MEASURED, duration, named

ROWS_MAX: Final = 40
ROWS_OPEN: Final = 8
MOST_CLOCKS: Final = 4
SAME: Final = "same clock"
WHY: Final = {
    SAME: "the clock of rank {}",
    "fitted": "fitted to what the ranks did together, and taken off",
    "disagrees": "said to be the clock of rank {}, and proved to be another: fitted, and taken off",
    "clock pairs": "by the wall clocks alone: nothing proves how far these are off",
    "not fitted": "as recorded: no clock that runs evenly explains what was matched",
    "as recorded": "as recorded: this is known, and was not taken off",
}
HEADS: Final = (
    ("ranks", "words"), ("from", ""), ("offset", ""), ("drift", ""), ("uncertainty", ""), ("collectives", ""),
    ("how the times of these ranks are compared", "words"),
)  # fmt: skip
SUB: Final = (
    "Offset and drift against rank {}, estimated from what the ranks did together: none can end a collective before all"
    " have begun it. The uncertainty is proved by the same: no clock further away fits."
)


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock in its pieces, in time order, and the ranks that have it."""

    ranks: tuple[int, ...]
    pieces: tuple[ClockRow, ...]

    @property
    def is_own(self) -> bool:
        """Of the reference rank."""
        return self.pieces[0].why == SAME

    @property
    def uncertainty_ns(self) -> int | None:
        known = [ns for row in self.pieces for ns in (row.uncertainty_ns, row.uncertainty_end_ns)]
        return None if None in known else max(ns for ns in known if ns is not None)


def clocks(rows: Sequence[ClockRow]) -> list[Clock]:
    """Ranks of which the same is known together, in the order of the lowest of each."""
    pieces: defaultdict[int, list[ClockRow]] = defaultdict(list)
    for row in rows:
        pieces[row.rank].append(row)
    ranks: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, own in pieces.items():
        ranks[tuple(astuple(row)[1:] for row in own)].append(rank)
    return [Clock(tuple(those), tuple(pieces[those[0]])) for those in ranks.values()]


def apart(result: Result) -> list[Clock]:
    """Those that are not the reference rank's own."""
    return [clock for clock in clocks(result.clocks) if not clock.is_own]


def clocks_told(result: Result) -> Iterator[str]:
    """For the terminal, a sentence for each clock; none where all ranks have one."""
    found = apart(result)
    yield from map(clock_words, found[:MOST_CLOCKS])
    if len(found) > MOST_CLOCKS:
        yield f"… and {len(found) - MOST_CLOCKS} more in the report"


def clock_words(clock: Clock) -> str:
    """As in "ranks 2 and 3 are 50.0 ms ahead of rank 0 and 100 ppm faster, ± 217 µs: fitted to …"."""
    first, verb = clock.pieces[0], "is" if len(clock.ranks) == 1 else "are"
    who, why = named("rank", clock.ranks), WHY[first.why].format(first.reference)
    if not first.offset_ns and not first.drift_ratio:
        return f"{who}: {why}"
    side = "ahead of" if first.offset_ns >= 0 else "behind"
    sure = "" if clock.uncertainty_ns is None else f", ± {duration(clock.uncertainty_ns)}"
    off = f"{duration(abs(first.offset_ns))} {side} rank {first.reference}{pace_words(first)}"
    return f"{who} {verb} {off}{sure}: {why}"


def pace_words(row: ClockRow) -> str:
    ppm = 1e6 * row.drift_ratio
    return "" if not ppm else f" and {abs(ppm):.3g} ppm {'faster' if ppm > 0 else 'slower'}"


def clock_table(result: Result) -> str:
    """A row for each piece of each clock; nothing where all ranks have one."""
    found = clocks(result.clocks)
    if all(clock.is_own for clock in found):
        return ""
    cells = [piece_cells(clock, row) for clock in found for row in clock.pieces]
    return folded(HEADS, cells[:ROWS_MAX], ROWS_OPEN, "pieces")


def clock_sub(result: Result) -> str:
    return SUB.format(result.clocks[0].reference) if len(result.clocks) else ""


def piece_cells(clock: Clock, row: ClockRow) -> list[str]:
    ends = dict.fromkeys(map(duration, (row.uncertainty_ns, row.uncertainty_end_ns)))
    ppm = f"{1e6 * row.drift_ratio:+.3g} ppm" if row.drift_ratio else NOT_MEASURED
    return [
        escape(named("rank", clock.ranks).removeprefix("ranks ").removeprefix("rank ")),
        duration(row.begin_at_ns),
        duration(row.offset_ns),
        ppm,
        escape(" – ".join(ends)),
        f"{row.collectives:,}" if row.collectives else NOT_MEASURED,
        escape(WHY[row.why].format(row.reference)),
    ]


def comparable(result: Result) -> Iterator[str]:
    """How far instants of different ranks can be trusted against each other, where their clocks lie apart."""
    found = apart(result)
    fitted = [clock for clock in found if clock.pieces[0].shifted and clock.uncertainty_ns is not None]
    for clock in found:
        if clock.uncertainty_ns is None:
            yield f"Compare no instants of {named('rank', clock.ranks)} with those of others: {clock_words(clock)}."
    if fitted:
        worst = max(clock.uncertainty_ns or 0 for clock in fitted)
        yield (
            "Instants of ranks with different clocks are right against each other within the clocks' uncertainty, at"
            f" most {duration(worst)} against rank {fitted[0].pieces[0].reference}."
        )
    left = [clock for clock in found if clock.pieces[0].why == "as recorded"]
    if left:
        yield "Instants are those of each rank's own clock, and these lie apart: compare instants of one clock only."
