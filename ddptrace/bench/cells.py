"""Cells, column heads and chart lines that several sheets share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ddptrace.bench.timing import ROUNDS_SURE, Spread
from ddptrace.render.sheet import Line
from ddptrace.units import NOT_MEASURED, millis, percent

COMM_HEADS: Final = ("comm ms", "hidden ms", "exposed ms", "hidden")
"""The heads of the cells that `comm_cells` returns."""
ONE_ROUND: Final = "one round does not show the noise"
NO_DIFFERENCE: Final = "not beyond the noise"


def comm_cells(typical: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the cells of a `TypicalStep` as JSON, or of None: it was not traced."""
    if typical is None:
        return (NOT_MEASURED,) * len(COMM_HEADS)
    parts = (millis(typical[part]) for part in ("comm_ns", "hidden_ns", "exposed_ns"))
    return *parts, percent(typical["overlap_ratio"])


def interval_head(spreads: Iterable[Spread], sure: str = "95 % interval", few: str = "range of the rounds") -> str:
    """Name the intervals in a column: few rounds give no more than their range."""
    counts = [spread.count for spread in spreads]
    if min(counts, default=ROUNDS_SURE) >= ROUNDS_SURE:
        return sure
    return few if max(counts) < ROUNDS_SURE else f"{sure}; range below {ROUNDS_SURE} rounds"


def ms_interval(found: Spread) -> str:
    return f"{millis(found.low)} .. {millis(found.high)}"


def ratio_interval(found: Spread, digits: int = 3) -> str:
    return f"{found.low:.{digits}f} .. {found.high:.{digits}f}"


def doubt(ratio: Spread) -> str:
    """Say why a ratio other than 1 proves no difference; empty if it proves one."""
    if ratio.count == 1:
        return ONE_ROUND
    return NO_DIFFERENCE if ratio.low <= 1 <= ratio.high else ""


def chart_ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def spread_line(name: str, x: Sequence[float | str], spreads: Sequence[Spread], unit: float = 1) -> Line:
    """Return the medians and intervals, divided by `unit` (1e6: from ns to ms)."""
    ends = (tuple(getattr(spread, part) / unit for spread in spreads) for part in ("median", "low", "high"))
    return Line(name, tuple(x), *ends)


STEP_CAPTION: Final = "Step: untraced, with its interval over the rounds. Exposed communication: by a traced run."


def step_lines(
    x: Sequence[str], steps: Sequence[Spread], traced: Iterable[Mapping[str, Any] | None]
) -> tuple[Line, Line]:
    """Return step times, and the exposed communication of the typical traced steps, in ms."""
    exposed = tuple(chart_ms(None if typical is None else typical["exposed_ns"]) for typical in traced)
    return spread_line("step", x, steps, 1e6), Line("exposed communication", tuple(x), exposed)
