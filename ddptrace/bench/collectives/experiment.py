"""Collectives over sizes and numbers of ranks: time, bandwidth, what a start costs, and what a trace says beside it.

A call is timed in a batch of calls one after another, as nccl-tests does, and a batch's time is the slowest rank's.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ddptrace.bench.asked import known
from ddptrace.bench.collectives.plan import CELL_BUDGET_NS, batch, parse_sizes, repeats_for
from ddptrace.bench.collectives.sheet import sheet_of
from ddptrace.bench.setup import setup_of
from ddptrace.bench.timing import Repeats, interleaved
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Sheet
from ddptrace.render.words import counted, size

if TYPE_CHECKING:
    from ddptrace.bench.collectives.ops import Call, Op
    from ddptrace.bench.job import Job

NAMES: Final = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce", "gather", "scatter", "send_recv",
)  # fmt: skip
TRACED_STEPS: Final = 6
TRACED_CALLS: Final = 10
"""Of each size in a traced run, those before and after the window included."""


@dataclass(frozen=True, slots=True)
class Options:
    """`sizes`: "4kB", "1MB", "1GB"; a bare number counts MB."""

    ranks: tuple[int, ...] = (2, 4, 6)
    backend: str | None = None
    ops: tuple[str, ...] = NAMES
    sizes: tuple[str, ...] = ("1MB", "4MB", "16MB", "64MB", "256MB", "1000MB")
    repeats: Repeats = field(default_factory=Repeats)

    def __post_init__(self) -> None:
        parse_sizes(self.sizes)
        known("collective", self.ops, NAMES)
        if min(self.ranks) < 2:
            raise DdptraceError("a collective needs at least 2 ranks; give --ranks 2 or more")


def measure(job: Job, options: Options) -> dict[str, Any]:
    """Cells, one for each op and size that was measured, and a sentence for each that was not. Collective."""
    if job.ranks < 2:
        raise DdptraceError("a collective needs at least 2 ranks, and this job has 1; start more")
    cells, skipped = [], list[str]()
    for name in dict.fromkeys(options.ops):
        done, left_out = _of_op(job, name, options)
        cells += done
        skipped += left_out
    return {"setup": setup_of(job), "ranks": job.ranks, "cells": cells, "skipped": skipped}


def _of_op(job: Job, name: str, options: Options) -> tuple[list[dict[str, Any]], list[str]]:
    from ddptrace.bench.collectives.ops import OPS, divisible, prepared, refusal

    sizes = dict.fromkeys(divisible(nbytes, job.ranks) for nbytes in parse_sizes(options.sizes))
    fitting, skipped = _fitting(job, name, OPS[name], list(sizes))
    if not fitting:
        return [], skipped
    calls = prepared(job, OPS[name], fitting)
    refused = refusal(job, calls[fitting[0]])
    if refused is not None:
        return [], [*skipped, f"{name} over {counted(job.ranks, 'rank')} is skipped: {job.backend} refuses: {refused}."]
    call_ns = {nbytes: _call_ns(job, call) for nbytes, call in calls.items()}
    job.say(f"{name} over {counted(job.ranks, 'rank')}, {', '.join(map(size, fitting))}")
    times = _timed(job, calls, call_ns, options.repeats)
    exec_ns = _exec_ns(job, name, calls, call_ns)
    return [
        {"op": name, "nbytes": nbytes, "calls": batch(call_ns[nbytes]), "times_ns": times[nbytes]}
        | {"exec_ns": exec_ns.get(nbytes, (None, ""))[0], "evidence": exec_ns.get(nbytes, (None, ""))[1]}
        for nbytes in fitting
    ], skipped


def _fitting(job: Job, name: str, op: Op, sizes: list[int]) -> tuple[list[int], list[str]]:
    from ddptrace.bench.collectives.memory import claims, shortage

    claimed = claims(job, op.need_ratio(job.rank, job.ranks))
    short = {nbytes: shortage(nbytes, claimed) for nbytes in sizes}
    skipped = [
        f"{name} of {size(nbytes)} over {counted(job.ranks, 'rank')} is skipped: "
        f"it needs {size(lack[0])} of memory in one place, where {size(lack[1])} are available."
        for nbytes, lack in short.items() if lack is not None
    ]  # fmt: skip
    return [nbytes for nbytes, lack in short.items() if lack is None], skipped


def _call_ns(job: Job, call: Call) -> int:
    """Of one call after one that warmed up, to plan by: the same number on every rank."""
    call()
    job.meet()
    begin = time.perf_counter_ns()
    call()
    job.finish()
    return job.slowest([time.perf_counter_ns() - begin])[0]


def _timed(
    job: Job, calls: Mapping[int, Call], call_ns: Mapping[int, int], asked: Repeats
) -> dict[int, list[list[int]]]:
    """Times of batches, by size, round and step. Sizes that are repeated alike take turns."""
    alike: dict[Repeats, dict[str, Callable[[], None]]] = defaultdict(dict)
    for nbytes, call in calls.items():
        count = batch(call_ns[nbytes])
        alike[repeats_for(count * call_ns[nbytes], asked)][str(nbytes)] = _repeated(call, count)
    times = [interleaved(job, things, repeats) for repeats, things in alike.items()]
    return {int(nbytes): rounds for one in times for nbytes, rounds in one.items()}


def _repeated(call: Call, count: int) -> Callable[[], None]:
    def thing() -> None:
        for _ in range(count):
            call()

    return thing


def _exec_ns(job: Job, name: str, calls: Mapping[int, Call], call_ns: Mapping[int, int]) -> dict[int, tuple[int, str]]:
    """By size, what a traced run says, and its evidence; only of sizes that the time budget allows, on rank 0."""
    from ddptrace.bench.collectives.traced import exec_times
    from ddptrace.bench.traced import record

    sizes = [nbytes for nbytes in calls if TRACED_CALLS * call_ns[nbytes] <= CELL_BUDGET_NS]
    if not sizes:
        return {}

    def step() -> None:
        for nbytes in sizes:
            job.meet()
            calls[nbytes]()
            job.finish()

    run = record(job, f"{name}-{job.ranks}-ranks", step, TRACED_STEPS)
    return exec_times(run, name, sizes) if job.rank == 0 else {}


def sheet(options: Options, measured: list[dict[str, Any]]) -> Sheet:
    return sheet_of(measured)
