"""Why a collective began on the device long after its launch: what ran there meanwhile.

launch ┤                                                 ├ exec ┤
others    ├─ all-reduce ─┤
compute          ├── gemm ──┤        ├ gemm ┤   ├─ gemm ─┤
queue  |-------------------------------------------------|
free                     |-------------------------------|
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import EMPTY, Measure, subtract, union
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.schema import Evidence

ON_DEVICE: Final = (Evidence.DEVICE, Evidence.EVENT)
"""Evidence that tells when a collective ran on a device."""


@dataclass(frozen=True, slots=True)
class DeviceWait:
    """One collective on one rank, from its launch to its begin on the device."""

    queue_ns: int  # from launch to begin
    others_ns: int  # meanwhile another collective of the rank ran
    compute_ns: int  # meanwhile none did, and the rank computed
    free_ns: int  # the last part of the queue, in which no other collective ran
    ran_ns: int  # the collective itself ran


def device_waits(result: Result) -> dict[tuple[int, int], DeviceWait]:
    """By rank and `seq`, of every collective whose launch and execution on a device are recorded."""
    compute = {one.rank: one.compute for one in result.activity}
    found: dict[tuple[int, int], DeviceWait] = {}
    for rank, rows in _by_rank(result.collectives).items():
        launch, begin, end = np.array([_instants(row) for row in rows], np.int64).T
        before = np.append(launch[:1], np.maximum.accumulate(end)[:-1])  # when all that began earlier were over
        free_from = np.minimum(np.maximum(launch, before), begin)
        others = union(np.column_stack((begin, end)))
        alone = Measure(subtract(compute.get(rank, EMPTY), others)).within(launch, begin)
        columns = begin - launch, Measure(others).within(launch, begin), alone, begin - free_from, end - begin
        for row, *numbers in zip(rows, *(column.tolist() for column in columns), strict=True):
            if row.launch_recorded:
                found[rank, row.seq] = DeviceWait(*numbers)
    return found


def _instants(row: CollectiveRow) -> tuple[int, int, int]:
    """Launch, begin and end."""
    begin = row.exec_start_at_ns or 0
    return min(row.launch_at_ns, begin), begin, row.exec_end_at_ns or begin


def _by_rank(rows: Iterable[CollectiveRow]) -> dict[int, list[CollectiveRow]]:
    """Those that ran on a device, in order of their begin."""
    found: defaultdict[int, list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        if row.evidence in ON_DEVICE and row.part == 0 and row.exec_start_at_ns is not None:
            found[row.rank].append(row)
    for mine in found.values():
        mine.sort(key=lambda row: (row.exec_start_at_ns or 0, row.seq))
    return found
