"""What copies cost: the host held in those of pageable memory, and the device with nothing but copies to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.device.copies import is_in_copy
from ddptrace.analysis.device.digest import telling_steps
from ddptrace.analysis.device.idle import within
from ddptrace.analysis.device.rows import LAUNCH_BOUND_RATIO
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.device import CopyRow
from ddptrace.findings import BLOCKING_COPIES, EXPOSED_COPIES, Finding
from ddptrace.units import counted, duration, named, percent, rate, size

EXPOSED_MIN_RATIO: Final = 0.05
"""Of a step's window; copies that take more of it with no kernel beside them are worth a change."""
LARGE_NBYTES: Final = 1_000_000
"""Of one copy, on average: below, its rate tells how long a copy takes to begin, and nothing of the bandwidth."""
NS_PER_S: Final = 1e9
TO_HOST: Final = "DtoH"
READ_ADVICE: Final = (
    "a copy to pageable memory waits for all work queued before it: read results back less often, into pinned memory"
    " with non_blocking=True"
)
PIN_ADVICE: Final = "pin the memory (pin_memory=True) and copy with non_blocking=True"
PREFETCH_ADVICE: Final = "copy the next batch on a separate stream while this one is computed"
DEVICE_ADVICE: Final = "look for what copies within the device's memory (contiguous, clone, cat), and for fills"


@dataclass(frozen=True, slots=True)
class _Steps:
    """The typical steps, or the windows whole, of some ranks."""

    keys: frozenset[tuple[int, int | None]]  # rank and step
    windows_ns: int  # their lengths together
    where: str
    each: str  # "a step" or "a window"
    count: int  # of them

    def of(self, rows: Collection[CopyRow]) -> list[CopyRow]:
        return [row for row in rows if (row.rank, row.step) in self.keys]

    def mean(self, ns: int) -> str:
        return duration(ns / self.count)


def blocking_copies(result: Result) -> Finding | None:
    """The host is held by copies of pageable memory while the device is idle for long; None where it is not."""
    steps = _steps(result)
    rows = [row for row in steps.of(result.copies) if row.pageable]
    idle_ns, blocked_ns = sum(row.blocked_idle_ns for row in rows), sum(row.blocked_ns for row in rows)
    if not steps.windows_ns or idle_ns <= LAUNCH_BOUND_RATIO * steps.windows_ns:
        return None
    return BLOCKING_COPIES(
        _ranks(steps),
        f"{steps.where} the host is blocked for {steps.mean(blocked_ns)} of {steps.mean(steps.windows_ns)} {steps.each}"
        f" in {_call(result, steps)} of pageable memory ({_moved(_blocking(rows), steps)}), and the device is idle for"
        f" {steps.mean(idle_ns)} of that: {_pageable_advice(rows)}.",
    )


def exposed_copies(result: Result) -> Iterator[Finding]:
    """Copies run for a part of the window that matters with no kernel beside them."""
    steps = _steps(result)
    rows = [row for row in steps.of(result.copies) if row.exposed_ns]
    exposed_ns = sum(row.exposed_ns for row in rows)
    if not steps.windows_ns or exposed_ns <= EXPOSED_MIN_RATIO * steps.windows_ns:
        return
    by_name = Counter[str]()
    for row in rows:
        by_name[row.name] += row.exposed_ns
    [(name, largest_ns)] = by_name.most_common(1)
    mine = [row for row in rows if row.name == name]
    yield EXPOSED_COPIES(
        _ranks(steps),
        f"{steps.where} copies run with no kernel beside them for {percent(exposed_ns / steps.windows_ns)} of the time"
        f" ({steps.mean(exposed_ns)} {steps.each}), {percent(largest_ns / exposed_ns)} of it {name}"
        f" ({_moved(mine, steps)}): {_exposed_advice(mine[0])}.",
    )


def _steps(result: Result) -> _Steps:
    """The typical steps whose device time is known; the windows whole where there are none."""
    keys = frozenset((rank, step) for rank, steps in telling_steps(result).items() for step in steps)
    if keys:
        windows_ns = sum(row.window_ns for row in result.launches if (row.rank, row.step) in keys)
        where = f"In {counted(len(keys), 'typical step')} on {named('rank', sorted({rank for rank, _ in keys}))}"
        return _Steps(keys, windows_ns, where, "a step", len(keys))
    windows = [row for row in result.windows if row.on_device and row.window_ns]
    ranks, windows_ns = {row.rank for row in windows}, sum(row.window_ns for row in windows)
    where = f"On {named('rank', sorted(ranks))}" if ranks else ""
    return _Steps(frozenset((rank, None) for rank in ranks), windows_ns, where, "a window", len(windows))


def _ranks(steps: _Steps) -> str:
    return named("rank", sorted({rank for rank, _ in steps.keys}))


def _call(result: Result, steps: _Steps) -> str:
    """As in "cudaMemcpyAsync in aten::to"."""
    held = Counter[tuple[str, str]]()
    for row in result.idle:
        if (row.rank, row.step) in steps.keys and is_in_copy(row):
            held[row.name, row.operator] += row.idle_ns
    name, operator = next((key for key, _ in held.most_common(1)), ("copies", ""))
    return within(name, operator)


def _moved(rows: Sequence[CopyRow], steps: _Steps) -> str:
    """As in "6 copies a step, 1.72 kB, at 11.3 GB/s"."""
    count, copy_ns = steps.count, sum(row.copy_ns for row in rows)
    events = round(sum(row.events for row in rows) / count)
    sizes = [row.nbytes for row in rows if row.events]
    nbytes = sum(size for size in sizes if size is not None)
    told = [f"{counted(max(events, 1), 'copy', 'copies')} {steps.each}"]
    if None not in sizes and sizes:
        told.append(size(round(nbytes / count)))
        if copy_ns and nbytes >= LARGE_NBYTES * sum(row.events for row in rows):
            told.append(f"at {rate(nbytes / copy_ns * NS_PER_S)}")
    return ", ".join(told)


def _blocking(rows: Sequence[CopyRow]) -> list[CopyRow]:
    """Those of the direction in which the host is blocked longer."""
    reads = _blocks_in_reads(rows)
    return [row for row in rows if (TO_HOST in row.name) == reads]


def _blocks_in_reads(rows: Sequence[CopyRow]) -> bool:
    return 2 * sum(row.blocked_ns for row in rows if TO_HOST in row.name) > sum(row.blocked_ns for row in rows)


def _pageable_advice(rows: Sequence[CopyRow]) -> str:
    return READ_ADVICE if _blocks_in_reads(rows) else PIN_ADVICE


def _exposed_advice(row: CopyRow) -> str:
    if row.pageable:
        return PIN_ADVICE
    return PREFETCH_ADVICE if "HtoD" in row.name or TO_HOST in row.name else DEVICE_ADVICE
