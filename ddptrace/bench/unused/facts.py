"""What a traced run shows of find_unused_parameters: the bitmap's all-reduce, and the buckets."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from ddptrace.analysis.result import Result

ENTRY_NBYTES = 4
"""Of a bitmap: both reducers send an int32 for each parameter."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`bitmaps`: in the profiled steps of all ranks together. `bitmap_ns`: of one, from begin to end, the mean; None
    where none was seen. `buckets`: the parameters of each on rank 0, in the order of sending."""

    bitmaps: int
    bitmap_ns: float | None
    buckets: tuple[tuple[str, ...], ...]


def facts(result: Result, parameters: int) -> Facts:
    """`parameters`: how many the model has."""
    profiled = {(row.rank, row.step) for row in result.steps if row.profiled}
    bitmaps = [
        row
        for row in result.collectives
        if row.bucket is None and not row.part and (row.rank, row.step) in profiled
        and row.nbytes == ENTRY_NBYTES * parameters and "int" in row.dtype
    ]  # fmt: skip
    times = [row.comm_ns for row in bitmaps if row.comm_ns is not None]
    buckets = {row.index: row.parameters for row in result.buckets if row.rank == 0}
    ordered = tuple(names for _, names in sorted(buckets.items()))
    return Facts(len(bitmaps), statistics.fmean(times) if times else None, ordered)
