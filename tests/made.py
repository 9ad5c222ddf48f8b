"""Plausible hand-made results, for the tests of what is drawn and said. Every row keeps the tables' own promises."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ddptrace.analysis.ranks.blame import Blame
from ddptrace.analysis.result import Result
from ddptrace.analysis.savings import savings
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.device import Activity, RankRow
from ddptrace.analysis.tables.steps import PhaseRow, SavingRow, StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.findings import Finding
from ddptrace.schema import SCHEMA_VERSION, Evidence

MS = 1_000_000
ZERO_UNIX_NS = 1_790_000_000_123_456_789
PHASES = ("data", "forward", "backward", "optimizer", "other")
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Timing:
    """One step of one rank: the ends of its phases and when each bucket lived."""

    begin: int
    ends: tuple[int, ...]
    compute: tuple[Span, ...]
    lives: tuple[tuple[int, int, int, int, int], ...]  # first ready, ready, launch, exec start, exec end


def parameter_names(buckets: int) -> list[tuple[str, ...]]:
    """Buckets in launch order: the model's last parameters first."""
    parts = ("attn.qkv.weight", "attn.proj.weight", "mlp.up.weight", "mlp.down.weight")
    blocks = [tuple(f"blocks.{k}.{part}" for part in parts) for k in range(buckets - 1)]
    return [("head.weight", "norm.weight"), *reversed(blocks)][:buckets]


def intersection_ns(one: Iterable[Span], other: Iterable[Span]) -> int:
    """Overlap of two lists of disjoint intervals."""
    other = list(other)
    return sum(max(0, min(e, f) - max(b, c)) for b, e in one for c, f in other)


def make_timing(rng: random.Random, begin: int, buckets: int, transfer_ns: int) -> Timing:
    data, forward, backward, optimizer = (rng.randint(9 * n, 11 * n) * MS // 10 for n in (2, 30, 60, 8))
    t_forward, t_backward = begin + data, begin + data + forward
    t_compute_end = t_backward + backward
    lives, free = [], t_backward
    for index in range(buckets):
        first = t_backward + backward * index // buckets + rng.randint(0, MS // 2)
        ready = t_backward + backward * (index + 1) // buckets - rng.randint(0, MS // 4)
        launch = ready + rng.randint(20_000, 60_000)
        start = max(launch + rng.randint(10_000, 90_000), free)
        free = start + rng.randint(9 * transfer_ns, 11 * transfer_ns) // 10
        lives.append((first, ready, launch, start, free))
    t_backward_end = max(t_compute_end, free) + 200_000
    t_optimizer_end = t_backward_end + optimizer
    compute = []
    for low, high in ((t_forward, t_compute_end), (t_backward_end, t_optimizer_end)):
        while low < high:
            end = min(high, low + rng.randint(MS, 2 * MS))
            compute.append((low, end))
            low = end + rng.randint(5_000, 40_000)
    ends = (t_forward, t_backward, t_backward_end, t_optimizer_end, t_optimizer_end + MS // 2)
    return Timing(begin, ends, tuple(compute), tuple(lives))


def step_row(rank: int, step: int, timing: Timing) -> StepRow:
    comm = [(start, end) for *_, start, end in timing.lives]
    comm_ns, hidden_ns = sum(e - b for b, e in comm), intersection_ns(comm, timing.compute)
    compute_ns, exposed_ns = sum(e - b for b, e in timing.compute), comm_ns - hidden_ns
    wall_ns = timing.ends[-1] - timing.begin
    data, forward, backward, optimizer, other = (e - b for b, e in pairwise((timing.begin, *timing.ends)))
    return StepRow(
        rank=rank, step=step, begin_at_ns=timing.begin, end_at_ns=timing.ends[-1], wall_ns=wall_ns, window_ns=wall_ns,
        compute_ns=compute_ns, comm_ns=comm_ns, hidden_ns=hidden_ns, exposed_comm_ns=exposed_ns, exposed_memory_ns=0,
        idle_ns=wall_ns - compute_ns - exposed_ns, overlap_ratio=hidden_ns / comm_ns if comm_ns else None,
        evidence=Evidence.BACKEND if comm_ns else None, data_ns=data, forward_ns=forward, backward_ns=backward,
        optimizer_ns=optimizer, other_ns=other, wait_ns=exposed_ns, paused_ns=0, profiled=True, ended_by="optimizer",
        under_profiler=True,
    )  # fmt: skip


def phase_rows(rank: int, step: int, timing: Timing) -> list[PhaseRow]:
    begins = (timing.begin, *timing.ends)
    return [PhaseRow(rank, step, *part) for part in zip(PHASES, begins, timing.ends, strict=False)]


def carried(
    rank: int, step: int, timing: Timing, nbytes: int, seq: int, names: list[tuple[str, ...]]
) -> tuple[list[BucketRow], list[CollectiveRow]]:
    """The step's buckets and the collectives that carried them, one each."""
    buckets, collectives = [], []
    for index, (first, ready, launch, start, end) in enumerate(timing.lives):
        hidden = intersection_ns([(start, end)], timing.compute)
        comm, exposed, done = end - start, end - start - hidden, end + 15_000
        buckets.append(BucketRow(
            rank, step, 0, 0, 1, index, nbytes, first, ready, launch, start, end,
            exposed, comm, hidden, exposed, exposed, Evidence.BACKEND, names[index],
            start - launch, done, None, None, (seq + index,),
        ))  # fmt: skip
        collectives.append(CollectiveRow(
            rank, step, seq + index, 0, "allreduce_", "default", seq + index, nbytes, "float32", launch, start, end,
            done, exposed, start - launch, comm, hidden, exposed, exposed, Evidence.BACKEND, (0, 1, index),
        ))  # fmt: skip
    return buckets, collectives


def loss_row(rank: int, step: int, timing: Timing, seq: int) -> CollectiveRow:
    """A small all-reduce of the loss in the optimizer phase, seen by its end alone."""
    launch, done = timing.ends[2] + 10_000, timing.ends[2] + 400_000
    return CollectiveRow(
        rank, step, seq, 0, "allreduce_", "default", seq, 4, "float32", launch, None, None,
        done, None, None, None, None, None, None, None, None,
    )  # fmt: skip


def make_rank(rank: int, timings: list[Timing], buckets: int) -> dict[str, list[Any]]:
    """Rows of one rank by the name of their table, and its activity."""
    made: dict[str, list[Any]] = {name: [] for name in ("steps", "phases", "buckets", "collectives", "activity")}
    backend, names = [], parameter_names(buckets)
    for step, timing in enumerate(timings):
        seq = 1 + step * (buckets + 1)
        rows, calls = carried(rank, step, timing, 4_200_000, seq, names)
        made["steps"].append(step_row(rank, step, timing))
        made["phases"] += phase_rows(rank, step, timing)
        made["buckets"] += rows
        made["collectives"] += [*calls, loss_row(rank, step, timing, seq + buckets)]
        lives = enumerate(timing.lives)
        backend += [("gloo worker 1", "gloo:all_reduce", start, end, seq + k) for k, (*_, start, end) in lives]
    compute = [span for timing in timings for span in timing.compute]
    made["activity"].append(Activity(rank, np.array(compute, np.int64).reshape(-1, 2), tuple(backend)))
    return made


def make_result(
    ranks: int = 2, steps: int = 6, buckets: int = 5, seed: int = 0, slow_rank: int | None = None
) -> Result:
    """A run in which the last buckets of each step are not hidden; `slow_rank` has slower communication."""
    made = []
    for rank in range(ranks):
        rng, begin, timings = random.Random(seed * 1000 + rank), 250_000 * rank, []
        for _ in range(steps):
            timings.append(make_timing(rng, begin, buckets, (90 if rank == slow_rank else 66) * MS // max(buckets, 1)))
            begin = timings[-1].ends[-1]
        made.append(make_rank(rank, timings, buckets))
    rows = {name: [row for one in made for row in one[name]] for name in made[0]}
    calls = steps * (buckets + 1)
    rank_rows = [RankRow(k, f"node{k // 8}", 4000 + k, "cpu", True, 0, steps, calls, 1) for k in range(ranks)]
    return Result(
        SCHEMA_VERSION,
        "5f1e" * 8,
        ZERO_UNIX_NS,
        ranks,
        ranks=Table(RankRow, rank_rows),
        steps=Table(StepRow, rows["steps"]),
        phases=Table(PhaseRow, rows["phases"]),
        buckets=Table(BucketRow, rows["buckets"]),
        collectives=Table(CollectiveRow, rows["collectives"]),
        findings=Table(Finding, made_findings()),
        activity=tuple(rows["activity"]),
    )


def made_findings() -> list[Finding]:
    return [
        Finding("steps_found", "info", "rank 0", "steps were found by the optimizer's step(); nothing had to be said"),
        Finding("unclean_end", "error", "rank 1", "rank 1 did not end cleanly: its last whole step is 5"),
        Finding(
            "not_profiled", "warning", "steps 3-5", "no profiler window covers these steps: compute is coarse there"
        ),
    ]


def empty_result() -> Result:
    """A run in which nothing was seen but one rank."""
    return Result(
        SCHEMA_VERSION,
        "0" * 32,
        ZERO_UNIX_NS,
        1,
        ranks=Table(RankRow, [RankRow(0, "node0", 1, "cpu", True, 0, 0, 0, 0)]),
        findings=Table(
            Finding, [Finding("no_steps", "warning", "run", "no step was found: there is nothing to break down")]
        ),
        activity=(Activity(0, np.empty((0, 2), np.int64), ()),),
    )


def with_savings(result: Result) -> Result:
    """Fill `savings` by what the other tables say."""
    blame = Blame(suspects=tuple(result.suspects))
    return replace(result, savings=Table(SavingRow, savings(result, summarize(result), blame)))
