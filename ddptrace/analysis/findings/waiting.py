"""Finds collectives that begin on the device long after their launch, and tells what ran there meanwhile.

launch ┤                                                 ├ exec ┤
others    ├─ all-reduce ─┤
compute          ├── gemm ──┤        ├ gemm ┤   ├─ gemm ─┤
queue  |-------------------------------------------------|
free                     |-------------------------------|
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import EMPTY, Measure, subtract, union
from ddptrace.analysis.ranks.digest import WAITING_MIN_RATIO, matched_time
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketKey, Summary, measured_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.findings import WAITED_ON_DEVICE, Finding
from ddptrace.schema import Evidence
from ddptrace.units import duration, size

EXPOSED_MIN_RATIO: Final = 0.02
"""Of the step, that the collective must expose: nobody waits for one that is hidden."""
QUEUE_MIN_RATIO: Final = 0.1
"""Of the step."""
NEITHER_MIN_RATIO: Final = 0.1
"""Of the wait, in which the device neither computed nor communicated: else the host was ahead of a busy device."""
AHEAD_MIN_RATIO: Final = 0.1
"""Of its own time: if no other collective ran for so long before it, none of them held it."""
MOST_RATIO: Final = 0.5
"""Of the wait, in which other collectives ran."""
Kind = tuple[BucketKey | None, str, str, int | None]
"""Bucket, op, group, bytes."""


@dataclass(frozen=True, slots=True)
class MeanWait:
    """Means over calls."""

    queue_ns: float
    others_ns: float
    compute_ns: float
    free_ns: float
    ran_ns: float

    @property
    def neither_ns(self) -> float:
        """The device neither communicated nor computed."""
        return self.queue_ns - self.others_ns - self.compute_ns

    @property
    def is_free(self) -> bool:
        """For the most of it, up to its begin, nothing communicated."""
        return self.free_ns >= MOST_RATIO * self.queue_ns

    @property
    def is_busy(self) -> bool:
        """The device computed or communicated nearly all the time."""
        return self.neither_ns < NEITHER_MIN_RATIO * self.queue_ns

    @property
    def is_behind_others(self) -> bool:
        """It waited for other communication: most of the time, or last on a device that was busy."""
        is_last = self.is_busy and self.free_ns < AHEAD_MIN_RATIO * self.ran_ns
        return is_last or self.others_ns >= MOST_RATIO * self.queue_ns

    @property
    def is_host_ahead(self) -> bool:
        """The device was busy up to its begin, at last with computing alone: with what its tensors come from. So no
        queue held it; the host had launched it long before its turn."""
        return self.is_busy and self.free_ns >= AHEAD_MIN_RATIO * self.ran_ns


def mean_wait(rows: Sequence[CollectiveRow], waits: Mapping[tuple[int, int], DeviceWait]) -> MeanWait | None:
    """None where nothing is known of any of them."""
    known = [waits[row.rank, row.seq] for row in rows if row.part == 0 and (row.rank, row.seq) in waits]
    if not known:
        return None
    columns = ((one.queue_ns, one.others_ns, one.compute_ns, one.free_ns, one.ran_ns) for one in known)
    return MeanWait(*map(fmean, zip(*columns, strict=True)))


def waiting_findings(result: Result, summary: Summary) -> Iterator[Finding]:
    """The collectives that expose most, if they wait long on the device, and not for ranks that come late."""
    matched = matched_time(result)
    if matched is not None and matched.waiting_ratio >= WAITING_MIN_RATIO:
        return
    steps = {(row.rank, row.step) for row in measured_steps(result.steps)[0]}
    alike: defaultdict[Kind, list[CollectiveRow]] = defaultdict(list)
    for row in result.collectives:
        if (row.rank, row.step) in steps:
            alike[row.bucket, row.op, row.group, None if row.bucket else row.nbytes].append(row)
    if not alike or not summary.window_ns:
        return
    rows = max(alike.values(), key=_exposed_ns)
    wait = mean_wait(rows, device_waits(result))
    exposed = _exposed_ns(rows) / len(steps)
    if wait is None or exposed < EXPOSED_MIN_RATIO * summary.window_ns or wait.queue_ns < wait.ran_ns:
        return
    if wait.queue_ns >= QUEUE_MIN_RATIO * summary.window_ns and wait.neither_ns >= NEITHER_MIN_RATIO * wait.queue_ns:
        yield WAITED_ON_DEVICE(_where(rows[0]), f"{_name(rows[0])} {_wait_words(wait)}")


def _exposed_ns(rows: Sequence[CollectiveRow]) -> int:
    return sum(row.exposed_charged_ns or 0 for row in rows)


def _where(row: CollectiveRow) -> str:
    if row.bucket is None:
        return f"group {row.group}" if row.group else "run"
    return "reducer {}, layout {}, bucket {}".format(*row.bucket)


def _name(row: CollectiveRow) -> str:
    if row.bucket is not None:
        return f"Bucket {row.bucket[2]}"
    return f"{row.op.rstrip('_')}{f' of {size(row.nbytes)}' if row.nbytes else ''}"


def _wait_words(wait: MeanWait) -> str:
    """What goes on after its name."""
    last = f" No other collective runs in the last {duration(wait.free_ns)} of that." if wait.is_free else ""
    return (
        f"begins on the device {duration(wait.queue_ns)} after its launch, and runs for {duration(wait.ran_ns)}"
        f" (means). While it waits, other collectives run for {duration(wait.others_ns)}, the device computes for"
        f" {duration(wait.compute_ns)}, and does neither for {duration(wait.neither_ns)}.{last}"
    )


# What ran while each collective waited --------------------------------------------------------------------------------


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
