"""Numbers as people read them, with their units. A text rounds a number itself only where it wants other digits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

NOT_MEASURED: Final = "-"
NAMED: Final = 5
"""At most this many steps or ranks are named one by one; the rest are counted."""


def duration(ns: float | None) -> str:
    """A time in the unit that fits it, three figures: `812 µs`, `31.2 ms`, `4.21 s`."""
    if ns is None:
        return NOT_MEASURED
    for unit, unit_ns in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= 0.9995 * unit_ns:
            return f"{three_figures(ns / unit_ns)} {unit}"
    return f"{ns:.0f} ns"


def long_time(ns: int) -> str:
    """A time that may be years: `412 days`."""
    days = ns / 86_400e9
    return duration(ns) if days < 2 else f"{days:,.0f} days"


def millis(ns: float | None) -> str:
    """A time in ms whatever its size, for columns that are compared."""
    return NOT_MEASURED if ns is None else f"{ns / 1e6:,.2f}" if abs(ns) < 9.995e6 else f"{ns / 1e6:,.1f}"


def size(nbytes: int | None) -> str:
    """Bytes in decimal units: `4 B`, `38.4 kB`, `4.20 MB`."""
    if nbytes is None:
        return NOT_MEASURED
    for unit, unit_nbytes in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * unit_nbytes:
            return f"{three_figures(nbytes / unit_nbytes)} {unit}"
    return f"{nbytes} B"


def size_range(least: int | None, most: int | None) -> str:
    """`448 B – 1.58 MB`, or one size where they read the same."""
    ends = dict.fromkeys((size(least), size(most)))
    return " – ".join(ends)


def rate(bytes_per_s: float | None) -> str:
    """A bandwidth in the unit that fits it: `12.3 GB/s`."""
    return NOT_MEASURED if bytes_per_s is None else f"{size(round(bytes_per_s))}/s"


def three_figures(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def percent(ratio: float | None) -> str:
    """Whole percent; what is not quite none or all is not called so."""
    if ratio is None:
        return NOT_MEASURED
    whole = f"{100 * ratio:.0f} %"
    if whole == "-0 %":
        return "0 %"
    return "< 1 %" if whole == "0 %" and ratio > 0 else "> 99 %" if whole == "100 %" and ratio < 1 else whole


def signed(ns: float) -> str:
    return _sign(ns) + duration(abs(ns))


def signed_millis(ns: float) -> str:
    """As a column shows it; what reads 0.00 has no sign."""
    told = millis(abs(ns))
    return told if float(told.replace(",", "")) == 0 else _sign(ns) + told


def signed_percent(ratio: float) -> str:
    """Whole percent; a change of less than half a percent has no sign, and what is not quite all reads 99."""
    told = percent(abs(ratio))
    return told if abs(ratio) < 0.005 else _sign(ratio) + told.removeprefix("> ")


def signed_tenths(ratio: float) -> str:
    """Percent with one decimal: `−1.4 %`."""
    tenths = round(1000 * ratio)
    return f"{_sign(tenths) if tenths else ''}{abs(tenths) / 10:.1f} %"


def _sign(value: float) -> str:
    return "−" if value < 0 else "+"


def counted(n: int, one: str, many: str | None = None) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def calls_words(calls: float | None) -> str:
    """A mean of counts, `3` or `0.62`."""
    if calls is None:
        return NOT_MEASURED
    return f"{calls:,.0f}" if calls >= 100 or calls == round(calls) else f"{calls:.2g}"


def left_words(spent_ns: int, done: int, count: int) -> str:
    """As in ", about 40 s left": of `count` equal parts `done` took `spent_ns`. Empty before the first is done."""
    return f", about {duration(spent_ns * (count - done) / done)} left" if done else ""


def instant(unix_ns: int) -> str:
    """The date, or where a clock tells one that no calendar has, the number."""
    try:
        return datetime.fromtimestamp(unix_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{unix_ns} ns since 1970"


def named(what: str, numbers: Iterable[int]) -> str:
    """As in "step 3", "steps 3, 4 and 5", "ranks 0, 2, 4, 6, 8 and 12 more", "ranks 8 to 15 and 24"."""
    runs = _runs(numbers)
    count = sum(map(len, runs))
    names = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    if len(names) == 1:
        return f"{what}{'s' * (count > 1)} {names[0]}"
    shown = names[:NAMED] if len(names) > NAMED + 1 else names[:-1]
    rest = f"{sum(map(len, runs[NAMED:]))} more" if len(names) > NAMED + 1 else names[-1]
    return f"{what}s {', '.join(shown)} and {rest}"


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """Those that follow each other together, where they are so many that their ends say it better."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [part for run in runs for part in ([run] if len(run) >= NAMED else [[number] for number in run])]
