"""Collectives over sizes and numbers of ranks: time, bandwidth, what a start costs, and what a trace says beside it.

A call is timed in a batch of calls one after another, as nccl-tests does, and a batch's time is the slowest rank's.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.analysis.collectives.execution import weakest
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.bench import traced
from ddptrace.bench.experiment import Experiment, Measured, Repeats, TimedOptions, known
from ddptrace.bench.experiments.collectives_ops import (
    CELL_BUDGET_NS,
    OPS,
    Call,
    Op,
    batch,
    claims,
    divisible,
    parse_sizes,
    prepared,
    refusal,
    repeats_for,
    shortage,
)
from ddptrace.bench.experiments.collectives_sheet import sections, title
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.timing import interleaved
from ddptrace.errors import DdptraceError
from ddptrace.schema import Evidence
from ddptrace.units import counted, size

TRACED_STEPS: Final = 6
TRACED_CALLS: Final = 10
"""Calls of each size in a traced run, with those before and after the window."""
SEEN: Final = (Evidence.BACKEND, Evidence.DEVICE)
"""Evidence that shows when a collective itself ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TimedOptions):
    """`sizes`: "4kB", "1MB", "1GB"; a bare number counts MB."""

    ranks: tuple[int, ...] = (2, 4, 6)
    ops: tuple[str, ...] = tuple(OPS)
    sizes: tuple[str, ...] = ("1MB", "4MB", "16MB", "64MB", "256MB", "1000MB")

    def __post_init__(self) -> None:
        parse_sizes(self.sizes)
        known("collective", self.ops, OPS)
        if min(self.ranks) < 2:
            raise DdptraceError("a collective needs at least 2 ranks; give --ranks 2 or more")


def measure(job: Job, options: Options) -> Measured:
    """Measure a cell for each op and size that fits, and say why each other one was skipped. Collective."""
    if job.ranks < 2:
        raise DdptraceError("a collective needs at least 2 ranks, and this job has 1; start more")
    cells, skipped = [], list[str]()
    for name in dict.fromkeys(options.ops):
        done, left_out = _of_op(job, name, options)
        cells += done
        skipped += left_out
    return {"setup": setup_of(job), "ranks": job.ranks, "cells": cells, "skipped": skipped}


def _of_op(job: Job, name: str, options: Options) -> tuple[list[dict[str, Any]], list[str]]:
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
    claimed = claims(job, op.need_ratio(job.rank, job.ranks))
    short = {nbytes: shortage(nbytes, claimed) for nbytes in sizes}
    skipped = [
        f"{name} of {size(nbytes)} over {counted(job.ranks, 'rank')} is skipped: "
        f"it needs {size(lack[0])} of memory, and {size(lack[1])} are available."
        for nbytes, lack in short.items()
        if lack is not None
    ]
    return [nbytes for nbytes, lack in short.items() if lack is None], skipped


def _call_ns(job: Job, call: Call) -> int:
    """Time one call after a warm-up call, to plan by. Returns the same number on every rank."""
    call()
    job.meet()
    begin = time.perf_counter_ns()
    call()
    job.finish()
    return job.slowest([time.perf_counter_ns() - begin])[0]


def _timed(
    job: Job, calls: Mapping[int, Call], call_ns: Mapping[int, int], asked: Repeats
) -> dict[int, list[list[int]]]:
    """Return times of batches, by size, round and step. Sizes with equal repeats take turns."""
    alike: dict[Repeats, dict[str, Callable[[], None]]] = defaultdict(dict)
    for nbytes, call in calls.items():
        count = batch(call_ns[nbytes])
        alike[repeats_for(count * call_ns[nbytes], asked)][str(nbytes)] = _repeated(call, count)
    times = [interleaved(job, things, repeats) for repeats, things in alike.items()]
    return {int(nbytes): rounds for of_size in times for nbytes, rounds in of_size.items()}


def _repeated(call: Call, count: int) -> Callable[[], None]:
    def thing() -> None:
        for _ in range(count):
            call()

    return thing


def _exec_ns(job: Job, name: str, calls: Mapping[int, Call], call_ns: Mapping[int, int]) -> dict[int, tuple[int, str]]:
    """Return execution times of a traced run and their evidence by size, on rank 0, for sizes that the time budget
    allows."""
    sizes = [nbytes for nbytes in calls if TRACED_CALLS * call_ns[nbytes] <= CELL_BUDGET_NS]
    if not sizes:
        return {}

    def step() -> None:
        for nbytes in sizes:
            job.meet()
            calls[nbytes]()
            job.finish()

    run = traced.record(job, f"{name}-{job.ranks}-ranks", step, TRACED_STEPS)
    return by_size(traced.analysis(run).collectives, OPS[name].traced, sizes) if job.rank == 0 else {}


def by_size(rows: Iterable[CollectiveRow], ops: Sequence[str], sizes: Sequence[int]) -> dict[int, tuple[int, str]]:
    """Return, by size, the execution time on the slowest rank, the median over the steps, and its evidence.

    The k-th call of a step has the k-th size: bytes do not tell, since a rank may hold only a part. Steps that are not
    wholly in the window do not count.
    """
    steps: dict[tuple[int, int], list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        if row.op in ops and row.step is not None and row.comm_ns is not None and row.evidence in SEEN:
            steps[row.rank, row.step].append(row)
    found: dict[int, dict[int, list[CollectiveRow]]] = defaultdict(lambda: defaultdict(list))
    for (_, step), mine in steps.items():
        if len(mine) == len(sizes):
            for nbytes, row in zip(sizes, sorted(mine, key=lambda row: row.seq), strict=True):
                found[nbytes][step].append(row)
    return {nbytes: _of_size(by_step) for nbytes, by_step in found.items()}


def _of_size(by_step: dict[int, list[CollectiveRow]]) -> tuple[int, str]:
    slowest = [max(row.comm_ns or 0 for row in rows) for rows in by_step.values()]
    evidence = weakest(row.evidence for rows in by_step.values() for row in rows)
    return round(statistics.median(slowest)), "" if evidence is None else evidence.value


EXPERIMENT: Final = Experiment("collectives", Options, measure, title, sections)
