"""How long messages of each size take to move, by op and group, and the line through them: start + bytes / rate.

Of a matched collective it is the shortest execution over its ranks, which holds no waiting for a peer. Of what no other
rank's file shows it is the whole execution, waiting and all: that is drawn, and no line put through it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketSummary
from ddptrace.ops import FACTORS
from ddptrace.schema import Evidence

FEW_NBYTES: Final = 1 << 16
"""This much takes half a millisecond at 1 Gbit/s: if it takes longer, the rest is latency or waiting."""
SIZES_MIN: Final = 3
SPAN_MIN: Final = 16
"""The largest size is at least so many times the smallest, or start and rate cannot be told apart."""
OFF_MAX_RATIO: Final = 0.3
"""From a line that lies further from its points than this, nothing can be read."""
MEASURED: Final = (Evidence.DEVICE, Evidence.BACKEND)

Kind = tuple[str, str, int]
"""Op, group and number of ranks."""


@dataclass(frozen=True, slots=True)
class SizeTime:
    """Messages of one size: their median time, and what the shortest tenth and the longest tenth of them bound."""

    nbytes: int
    count: int
    median_ns: float
    low_ns: int
    high_ns: int


@dataclass(frozen=True, slots=True)
class TransferLine:
    """start + bytes * slope. `off_ratio`: how far it lies from the medians, root of the mean square."""

    start_ns: float
    ns_per_byte: float
    off_ratio: float
    start_is_seen: bool  # at the smallest size it stands out of the line's own error
    rate_is_seen: bool  # likewise the bytes, at the largest

    @property
    def bytes_per_s(self) -> float:
        return 1e9 / self.ns_per_byte


@dataclass(frozen=True, slots=True)
class Transfers:
    """One op in one group, its sizes in order. `alone`: whole executions of ranks that were not matched. `line`: None
    where the data allow none."""

    op: str
    group: str
    ranks: int
    measured: bool  # False: begins were inferred from the queue's order
    alone: bool
    sizes: tuple[SizeTime, ...]
    line: TransferLine | None

    @property
    def bus_bytes_per_s(self) -> float | None:
        """As nccl-tests define it; None where the op is not theirs or the rate is not seen."""
        factor = FACTORS.get(self.op)
        seen = self.line is not None and self.line.rate_is_seen
        return self.line.bytes_per_s * factor(self.ranks) if seen and self.line and factor else None


def transfers(result: Result) -> list[Transfers]:
    """Those that moved most bytes first. Of each kind the measured ones, or without any, those whose begins were
    inferred."""
    matched = _matched(result)
    found = matched or {(kind, True): times for kind, times in _alone(result).items()}
    kinds = {kind: (kind, True) in found for kind, _ in found}
    told = [_transfers(kind, measured, not matched, found[kind, measured]) for kind, measured in kinds.items()]
    return sorted(told, key=lambda one: (-sum(size.nbytes * size.count for size in one.sizes), one.op, one.group))


def _matched(result: Result) -> dict[tuple[Kind, bool], dict[int, list[int]]]:
    """Times by kind and whether they were measured, then by size."""
    inferred = {row.match for row in result.collectives if row.evidence not in MEASURED}
    found: dict[tuple[Kind, bool], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in result.matches:
        if row.nbytes and row.transfer_ns > 0:
            kind = row.op, row.group, len(row.ranks)
            found[kind, row.match not in inferred][row.nbytes].append(row.transfer_ns)
    return found


def _alone(result: Result) -> dict[Kind, dict[int, list[int]]]:
    found: dict[Kind, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in result.collectives:
        begin, end = row.exec_start_at_ns, row.exec_end_at_ns
        if row.evidence in MEASURED and row.part == 0 and row.nbytes and begin is not None and end is not None:
            found[row.op, row.group, row.group_size or 1][row.nbytes].append(end - begin)
    return found


def _transfers(kind: Kind, measured: bool, alone: bool, times: Mapping[int, list[int]]) -> Transfers:
    sizes = tuple(_size_time(nbytes, sorted(times[nbytes])) for nbytes in sorted(times))
    return Transfers(*kind, measured, alone, sizes, _line_of(sizes) if measured and not alone else None)


def _size_time(nbytes: int, times: Sequence[int]) -> SizeTime:
    tenth = len(times) // 10
    return SizeTime(nbytes, len(times), median(times), times[tenth], times[-1 - tenth])


def _line_of(sizes: Sequence[SizeTime]) -> TransferLine | None:
    if len(sizes) < SIZES_MIN or sizes[-1].nbytes < SPAN_MIN * sizes[0].nbytes:
        return None
    start, slope = line([point.nbytes for point in sizes], [size.median_ns for size in sizes])
    off = fmean(((start + slope * point.nbytes) / point.median_ns - 1) ** 2 for point in sizes) ** 0.5
    if off > OFF_MAX_RATIO:
        return None
    moved = slope * sizes[-1].nbytes / sizes[-1].median_ns
    return TransferLine(start, slope, off, start / sizes[0].median_ns > 2 * off, moved > 2 * off)


def line(sizes: Iterable[int], times: Sequence[float]) -> tuple[float, float]:
    """Start in ns and slope in ns per byte that minimise the sum of ((start + slope * size) / time - 1)², neither below
    zero: a deviation of 10 µs means much at 4 kB and nothing at 1 GB."""
    ones = [1 / time for time in times]
    ratios = [size / time for size, time in zip(sizes, times, strict=True)]
    oo, rr = sum(one * one for one in ones), sum(ratio * ratio for ratio in ratios)
    both = sum(one * ratio for one, ratio in zip(ones, ratios, strict=True))
    o, r = sum(ones), sum(ratios)
    whole = oo * rr - both * both
    start, slope = (o * rr - r * both) / whole, (r * oo - o * both) / whole
    if start < 0:
        return 0.0, r / rr
    return (o / oo, 0.0) if slope < 0 else (start, slope)


# Whether the bytes of a bucket take its time --------------------------------------------------------------------------


BYTES_MIN_RATIO: Final = 0.5
"""If a bucket's bytes, at the run's own bandwidth, take at least this share of its time, the bytes are the cause."""


def is_in_its_bytes(worst: BucketSummary, result: Result) -> bool:
    """Whether its bytes can be what takes the time, at the bandwidth that collectives as large or larger had."""
    if worst.nbytes is None or worst.comm_ns is None:
        return True
    larger = [
        row.algbw_bytes_per_s
        for row in result.collectives
        if row.tells_arrival and row.algbw_bytes_per_s and (row.nbytes or 0) > worst.nbytes
    ]
    if larger:
        return worst.nbytes * 1e9 / median(larger) >= BYTES_MIN_RATIO * worst.comm_ns
    return worst.nbytes > FEW_NBYTES
