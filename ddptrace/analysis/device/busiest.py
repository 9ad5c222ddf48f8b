"""What devices spent their time on, in short, for a reader: by category and kernel, and how much of the peak it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.device.categories import Category
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.device import KernelRow

MULTIPLYING: Final = frozenset((Category.MATRIX, Category.ATTENTION, Category.CONVOLUTION))
"""Categories that hold nearly all FLOPs of a model."""
KNOWN_MIN_RATIO: Final = 0.5
"""Of the time of some kernels: where the FLOPs of less are known, a speed or a utilization would mislead."""
NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class KernelDigest:
    """Kernels of one category, or of one name and category: means over the ranks whose devices worked."""

    category: str
    name: str  # empty for the whole category
    events: float
    total_ns: int
    mean_ns: float
    ratio: float  # of all device work, as a sum of durations
    flops_per_s: float | None  # of those whose FLOPs are known, where that is most of them
    peak_ratio: float | None  # of the device's stated peak


def categories(result: Result) -> list[KernelDigest]:
    """The longest first."""
    return _digests(result.kernels, by_name=False)


def kernels(result: Result) -> list[KernelDigest]:
    """The longest first."""
    return _digests(result.kernels, by_name=True)


def _digests(rows: Sequence[KernelRow], by_name: bool) -> list[KernelDigest]:
    groups: defaultdict[tuple[str, str], list[KernelRow]] = defaultdict(list)
    for row in rows:
        groups[row.category, row.name if by_name else ""].append(row)
    whole_ns, ranks = sum(row.total_ns for row in rows), len({row.rank for row in rows})
    found = [_digest(key, mine, whole_ns, ranks) for key, mine in groups.items()]
    return sorted(found, key=lambda one: (-one.total_ns, one.category, one.name))


def _digest(key: tuple[str, str], rows: Sequence[KernelRow], whole_ns: int, ranks: int) -> KernelDigest:
    events, total_ns = (sum(getattr(row, column) for row in rows) for column in ("events", "total_ns"))
    flops, counted_ns = sum(row.flops or 0 for row in rows), sum(row.counted_ns for row in rows)
    is_known = flops > 0 and counted_ns >= KNOWN_MIN_RATIO * total_ns
    is_told = is_known and all(row.ideal_ns is not None for row in rows if row.flops)
    ideal_ns = sum(row.ideal_ns or 0 for row in rows)
    return KernelDigest(
        *key,
        events / ranks,
        round(total_ns / ranks),
        total_ns / events,
        total_ns / whole_ns if whole_ns else 0.0,
        flops / counted_ns * NS_PER_S if is_known else None,
        ideal_ns / counted_ns if is_told else None,
    )


@dataclass(frozen=True, slots=True)
class Utilization:
    """How much of what the devices could compute they did compute (MFU), over the profiled time of all ranks."""

    ratio: float  # of the stated peak, in the types of number that the kernels multiply
    flops: int
    known_ratio: float  # of the time of `MULTIPLYING`: that whose FLOPs and peak are known
    devices: tuple[str, ...]


def utilization(result: Result) -> Utilization | None:
    """None where a device's peak is unknown, or too few FLOPs are known."""
    spans = {row.rank: row.all.span_ns for row in result.ranks if row.all is not None}
    rows = [row for row in result.kernels if row.rank in spans and row.category in MULTIPLYING]
    told = [row for row in rows if row.flops is not None and (not row.flops or row.ideal_ns is not None)]
    whole_ns, known_ns = sum(row.total_ns for row in rows), sum(row.counted_ns for row in told)
    time_ns = sum(span_ns * _devices(result, rank) for rank, span_ns in spans.items())
    ideal_ns = sum(row.ideal_ns or 0 for row in told)
    if not ideal_ns or not time_ns or known_ns < KNOWN_MIN_RATIO * whole_ns:
        return None
    devices = tuple(dict.fromkeys(row.device for row in result.ranks if row.rank in spans))
    return Utilization(ideal_ns / time_ns, sum(row.flops or 0 for row in told), known_ns / whole_ns, devices)


def _devices(result: Result, rank: int) -> int:
    """How many devices a rank worked on."""
    return len({row.stream.partition(":")[0] for row in result.streams if row.rank == rank}) or 1
