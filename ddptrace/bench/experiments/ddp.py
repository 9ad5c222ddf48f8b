"""Strategies of data parallelism beside stock DDP: step time, and communication time by a stopwatch and by a trace.

A cell is one model at one bucket cap. In it all strategies run interleaved, and stock DDP runs a second time as null
control: the distance of its ratio from 1 is noise. Naive, flat and overlap have no cap; each cell measures them again,
beside its own stock DDP.

The stopwatch stands around the calls of a program. It sees

    naive, flat    the synchronous all-reduces
    overlap        the asynchronous ones, which return at once, and the waits for them
    bucketed       the asynchronous ones alone, from launching to launched as a `BucketObserver` reports them
    ddp            the asynchronous ones alone, in a communication hook; DDP waits for them in C++

Measured on separate instances: a hook in Python makes a step of stock DDP some percent longer.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from statistics import mean
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ddptrace.analysis.result import Result
from ddptrace.bench import strategies, traced
from ddptrace.bench.experiment import Experiment, Measured, Repeats, Section, TimedOptions, caps, known
from ddptrace.bench.experiments.ddp_sheet import DDP, NULL, Cell, charts, compared, explained, ratios_grid, steps_grid
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.strategies import Strategy, bucketed, flat, naive, overlap, stock_ddp
from ddptrace.bench.timing import interleaved
from ddptrace.bench.workloads import Trainee, Workload, nbytes, workload
from ddptrace.units import counted

STRATEGIES: Final = ("naive", "flat", "overlap", "bucketed", DDP)
WATCHED_ROUNDS: Final = 3
"""At most: steps with a stopwatch show shares, not small differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TimedOptions):
    """`models`: workloads. `caps_mb`: in MiB. `strategies`: some of STRATEGIES; stock DDP is always measured, twice."""

    models: tuple[str, ...] = ("gpt", "mlp")
    caps_mb: tuple[str, ...] = ("25",)
    strategies: tuple[str, ...] = STRATEGIES

    def __post_init__(self) -> None:
        for model in self.models:
            workload(model)
        caps(self.caps_mb)
        known("strategy", self.strategies, STRATEGIES)


def measure(job: Job, options: Options) -> Measured:
    """Measure each cell. Collective."""
    names = tuple(name for name in STRATEGIES if name in {*options.strategies, DDP})
    return {"setup": setup_of(job), "cells": list(_cells(job, options, names))}


def _cells(job: Job, options: Options, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Measure one cell after the other, so that only one cell's models are in memory."""
    few = Repeats(min(options.repeats.rounds, WATCHED_ROUNDS), options.repeats.steps, options.repeats.warmup)
    for model in dict.fromkeys(options.models):
        work = workload(model)
        made = work.make()
        count, size = len(list(made.parameters())), nbytes(made)
        del made
        for cap, mib in caps(options.caps_mb).items():
            job.say(f"{model}, cap {cap} MiB, {counted(job.ranks, 'rank')}")
            times, typical = _timed_and_traced(job, model, names, (cap, mib), options.repeats)
            give_memory_back()
            job.say("the same with a stopwatch around the calls")
            seen = watch(job, work, names, mib, few)
            give_memory_back()
            yield asdict(Cell(model, cap, job.backend, job.ranks, count, size, work.batch_size, times, seen, typical))


def _timed_and_traced(
    job: Job, model: str, names: tuple[str, ...], cap: tuple[str, float], repeats: Repeats
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the times of all strategies and of the null control, by round; and what a traced run of each but the
    null control shows."""
    by_name = _strategies(cap[1])
    things = {name: Trainee(job, workload(model), by_name[name]).step for name in (*names, NULL)}
    times = interleaved(job, things, repeats)
    job.say("the same traced")
    steps = {name: things[name] for name in names}
    return times, _traced(job, steps, lambda name: f"{model}-cap{cap[0]}-{job.ranks}ranks-{name}")


def _strategies(cap_mb: float) -> dict[str, Strategy]:
    all_of_them = (naive(), flat(), overlap(), bucketed(cap_mb), stock_ddp(cap_mb), stock_ddp(cap_mb, NULL))
    return {strategy.name: strategy for strategy in all_of_them}


def _traced(
    job: Job, steps: Mapping[str, Callable[[], None]], called: Callable[[str], str]
) -> dict[str, dict[str, Any]]:
    """Return each strategy's typical step and `transfer_ns`, on rank 0 alone. `called`: the name of its run.
    Collective."""
    results = traced.analyzed(job, steps, called)
    return {name: asdict(traced.typical_step(run)) | {"transfer_ns": transfer_ns(run)} for name, run in results.items()}


def transfer_ns(result: Result) -> int | None:
    """Return the mean over profiled steps of the sum of their collectives' shortest executions over the ranks: those
    on the rank that came last, which waited for nobody. None if ranks cannot be compared in all collectives."""
    steps = {(row.rank, row.step) for row in result.steps if row.profiled and row.step}
    first = min((rank for rank, _ in steps), default=None)
    mine = {row.match for row in result.collectives if row.rank == first and (row.rank, row.step) in steps}
    if not mine or None in mine:
        return None
    count = sum(rank == first for rank, _ in steps)
    return round(sum(result.matches[match].transfer_ns for match in mine if match is not None) / count)


def title(options: Options, jobs: Sequence[Measured]) -> str:
    models = dict.fromkeys(cell.model for cell in _all_cells(jobs))
    return f"Data-parallel strategies beside stock DDP: {', '.join(models)}"


def sections(options: Options, jobs: Sequence[Measured]) -> Iterator[Section]:
    """Yield one section that compares all cells of all jobs."""
    cells = _all_cells(jobs)
    grids = (steps_grid(cells, options.repeats), ratios_grid(cells))
    yield Section((*compared(cells), *explained(cells)), grids, charts(cells))


def _all_cells(jobs: Sequence[Measured]) -> list[Cell]:
    return [Cell(**cell) for job in jobs for cell in job["cells"]]


EXPERIMENT: Final = Experiment("ddp", Options, measure, title, sections)


class Stopwatch:
    """Adds up the time that its host thread spends in communication calls. `ns`: since the step began."""

    def __init__(self) -> None:
        self.ns = 0

    def timed(self, call: Callable[..., Any], *args: Any, **how: Any) -> Any:
        begin = time.perf_counter_ns()
        answer = call(*args, **how)
        self.ns += time.perf_counter_ns() - begin
        return answer

    def all_reduce(self, tensor: Tensor, *, async_op: bool = False) -> Any:
        work = self.timed(dist.all_reduce, tensor, async_op=async_op)
        return TimedWork(work, self) if async_op else work

    def hook(self, bucket: Any) -> Future[Tensor]:
        """Do as stock DDP without a hook: divide, send."""
        tensor = bucket.buffer().div_(dist.get_world_size())
        work = self.timed(dist.all_reduce, tensor, async_op=True)
        future: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future


class TimedWork:
    """A collective that was issued."""

    def __init__(self, work: Any, stopwatch: Stopwatch) -> None:
        self._work, self._stopwatch = work, stopwatch

    def wait(self) -> None:
        self._stopwatch.timed(self._work.wait)


class Launches:
    """A `BucketObserver` that times from launching to launched."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch, self._begin = stopwatch, 0

    def bucket_launching(self, bucket: int, nbytes: int) -> None:
        self._begin = time.perf_counter_ns()

    def bucket_launched(self, bucket: int, sent: object) -> None:
        self._stopwatch.ns += time.perf_counter_ns() - self._begin

    def _passes(self, *_: object) -> None: ...

    reducer_made = layout_made = backward_begins = backward_ends = gradient_ready = _passes
    hook_begins = hook_ends = wait_begins = bucket_done = _passes


def watched(name: str, cap_mb: float, stopwatch: Stopwatch) -> Strategy:
    """Return the strategy of this name with a stopwatch in it."""
    if name == "bucketed":
        return strategies.bucketed(cap_mb, observer=Launches(stopwatch))
    if name == "ddp":
        return Strategy("ddp", lambda module: _hooked(module, strategies.stock_ddp(cap_mb), stopwatch))
    by_hand = {"naive": strategies.naive, "flat": strategies.flat, "overlap": strategies.overlap}
    return by_hand[name](stopwatch.all_reduce)


def _hooked(module: nn.Module, ddp: Strategy, stopwatch: Stopwatch) -> nn.Module:
    wrapped = ddp.wrap(module)
    assert isinstance(wrapped, DistributedDataParallel)
    wrapped.register_comm_hook(None, lambda state, bucket: stopwatch.hook(bucket))
    return wrapped


class Watched:
    """Steps of one strategy, and the stopwatch's time in each, warm-up included."""

    def __init__(self, job: Job, work: Workload, name: str, cap_mb: float) -> None:
        self._stopwatch = Stopwatch()
        self._trainee = Trainee(job, work, watched(name, cap_mb, self._stopwatch))
        self.comm_ns: list[int] = []

    def step(self) -> None:
        self._stopwatch.ns = 0
        self._trainee.step()
        self.comm_ns.append(self._stopwatch.ns)


def watch(job: Job, work: Workload, names: tuple[str, ...], cap_mb: float, repeats: Repeats) -> dict[str, Any]:
    """Return, by strategy, `step_ns` of the slowest rank and `comm_ns`, the mean over ranks, of each timed step.
    Collective."""
    things = {name: Watched(job, work, name, cap_mb) for name in names}
    times = interleaved(job, {name: thing.step for name, thing in things.items()}, repeats)
    return {
        name: {"step_ns": list(chain(*times[name])), "comm_ns": _over_ranks(job, _timed(thing.comm_ns, repeats))}
        for name, thing in things.items()
    }


def _over_ranks(job: Job, mine_ns: list[int]) -> list[int]:
    """Return the mean, like the trace's numbers: the slowest rank's would count all waiting for others."""
    return [round(mean(of_ranks)) for of_ranks in zip(*cast("list[list[int]]", job.gather(mine_ns)), strict=True)]


def _timed(comm_ns: list[int], repeats: Repeats) -> list[int]:
    """Drop the warm-up at the beginning of each round."""
    per_round = repeats.warmup + repeats.steps
    return [ns for at, ns in enumerate(comm_ns) if at % per_round >= repeats.warmup]


def give_memory_back() -> None:
    """Free the trainees of one cell before the next cell builds its own. Hooks hold some of them in cycles."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
