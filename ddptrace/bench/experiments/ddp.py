"""Strategies of data parallelism beside stock DDP: step time, and communication time by a stopwatch and by a trace.

A cell is one model at one bucket cap. In it all strategies run interleaved, and stock DDP runs a second time as null
control: the distance of its ratio from 1 is noise. Naive, flat and overlap have no cap; each cell measures them again,
beside its own stock DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ddptrace.analysis.result import Result
from ddptrace.bench import traced
from ddptrace.bench.experiment import Experiment, Measured, Repeats, Section, TimedOptions, caps, known
from ddptrace.bench.experiments.ddp_cell import DDP, NULL, Cell
from ddptrace.bench.experiments.ddp_stopwatch import give_memory_back, watch
from ddptrace.bench.experiments.ddp_tables import charts, ratios_grid, steps_grid
from ddptrace.bench.experiments.ddp_words import compared, explained
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.strategies import Strategy, bucketed, flat, naive, overlap, stock_ddp
from ddptrace.bench.timing import interleaved
from ddptrace.bench.workloads import Trainee, nbytes, workload
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
