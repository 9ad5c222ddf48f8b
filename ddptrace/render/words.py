"""Units and words for a reader: the one place that turns nanoseconds, bytes and codes into text."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from ddptrace.analysis.summary import BucketSummary
from ddptrace.analysis.tables import BucketRow
from ddptrace.load.tables import Finding
from ddptrace.schema import Evidence

NOT_MEASURED: Final = "-"

EVIDENCE: Final = {
    Evidence.DEVICE: "kernels on the device, linked by correlation id",
    Evidence.BACKEND: "the backend's own ranges in a profiler window",
    Evidence.CALLBACK: "ends measured, starts inferred from the queue's order: approximate",
    Evidence.HOST: "seen from the host only, launch to end of wait: an upper bound",
}
PARTS: Final = {
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "exposed_memory": "exposed memory copies",
    "idle": "idle",
}
SEVERITIES: Final = ("error", "warning", "info")


def duration(ns: float | None) -> str:
    """A time in the unit that fits it, three figures: `812 µs`, `31.2 ms`, `4.21 s`."""
    if ns is None:
        return NOT_MEASURED
    for unit, unit_ns in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= 0.9995 * unit_ns:
            return f"{three_figures(ns / unit_ns)} {unit}"
    return f"{ns:.0f} ns"


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


def three_figures(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def percent(ratio: float | None) -> str:
    """Whole percent; what is not quite none or all is not called so."""
    if ratio is None:
        return NOT_MEASURED
    return "< 1 %" if 0 < ratio < 0.005 else "> 99 %" if 0.995 <= ratio < 1 else f"{100 * ratio:.0f} %"


def counted(n: int, one: str, many: str | None = None) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def instant(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def bucket_name(row: BucketRow, several_reducers: bool) -> str:
    return named_bucket(row.reducer if several_reducers else None, row.index, row.nbytes)


@functools.lru_cache(4096)
def named_bucket(reducer: int | None, index: int, nbytes: int) -> str:
    return ("" if reducer is None else f"reducer {reducer} ") + f"bucket {index} · {size(nbytes)}"


def bucket_numbers(buckets: Sequence[BucketSummary]) -> list[str]:
    """Each bucket's index, and of its reducer and layout what is needed to tell it from the others."""
    reducers, layouts = ({getattr(bucket, part) for bucket in buckets} for part in ("reducer", "layout"))
    return [
        (f"reducer {bucket.reducer} · " if len(reducers) > 1 else "")
        + str(bucket.index)
        + (f" · layout {bucket.layout}" if len(layouts) > 1 else "")
        for bucket in buckets
    ]


def some_of(names: Sequence[str], most: int = 8) -> str:
    """The first names and how many more there are: a bucket can hold hundreds."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" … and {rest} more" if rest > 0 else "")


def printable(name: str) -> str:
    """A name from a trace without anything that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def gravest_first(findings: Sequence[Finding]) -> list[Finding]:
    """Errors, then warnings, then the rest, each in their order."""
    grave = {severity: place for place, severity in enumerate(SEVERITIES)}
    return sorted(findings, key=lambda finding: grave.get(finding.severity, len(grave)))
