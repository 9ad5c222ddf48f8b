"""Strategies of data parallelism beside stock DDP: step time, communication time as a stopwatch in the program sees it,
and the true one from a trace.

A cell is one model at one bucket cap. In it all strategies run interleaved, and stock DDP runs a second time as null
control: how far its ratio to the first lies from 1 is noise. Caps mean nothing to naive, flat and overlap, which are
measured in each cell again, to stand beside the stock DDP of that cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ddptrace.bench.asked import caps, known
from ddptrace.bench.ddp.cell import DDP, NULL, Cell
from ddptrace.bench.setup import merged, setup_of
from ddptrace.bench.timing import Repeats, interleaved
from ddptrace.bench.workloads import nbytes, workload
from ddptrace.render.sheet import Sheet
from ddptrace.render.words import counted

if TYPE_CHECKING:
    from ddptrace.bench.job import Job
    from ddptrace.bench.training import Strategy

STRATEGIES: Final = ("naive", "flat", "overlap", "bucketed", DDP)
WATCHED_ROUNDS: Final = 3
"""At most: steps with a stopwatch in them tell of shares, not of small differences."""


@dataclass(frozen=True, slots=True)
class Options:
    """`models`: workloads. `caps_mb`: in MiB. `strategies`: some of STRATEGIES; stock DDP is always measured, twice."""

    ranks: tuple[int, ...] = (2,)
    backend: str | None = None
    models: tuple[str, ...] = ("gpt", "mlp")
    caps_mb: tuple[str, ...] = ("25",)
    strategies: tuple[str, ...] = STRATEGIES
    repeats: Repeats = field(default_factory=Repeats)

    def __post_init__(self) -> None:
        for model in self.models:
            workload(model)
        caps(self.caps_mb)
        known("strategy", self.strategies, STRATEGIES)


def measure(job: Job, options: Options) -> dict[str, Any]:
    """What was measured in each cell. Collective."""
    names = tuple(name for name in STRATEGIES if name in {*options.strategies, DDP})
    return {"setup": setup_of(job), "cells": list(_cells(job, options, names))}


def _cells(job: Job, options: Options, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """One after the other: only one cell's models are in memory."""
    from ddptrace.bench.ddp.watch import unused_memory_back, watch

    few = Repeats(min(options.repeats.rounds, WATCHED_ROUNDS), options.repeats.steps, options.repeats.warmup)
    for model in dict.fromkeys(options.models):
        work = workload(model)
        made = work.make()
        count, size = len(list(made.parameters())), nbytes(made)
        del made
        for cap, mib in caps(options.caps_mb).items():
            job.say(f"{model}, cap {cap} MiB, {counted(job.ranks, 'rank')}")
            times, traced = _timed_and_traced(job, model, names, (cap, mib), options.repeats)
            unused_memory_back()
            job.say("the same with a stopwatch around the calls")
            seen = watch(job, work, names, mib, few)
            unused_memory_back()
            yield asdict(Cell(model, cap, job.backend, job.ranks, count, size, work.batch_size, times, seen, traced))


def _timed_and_traced(
    job: Job, model: str, names: tuple[str, ...], cap: tuple[str, float], repeats: Repeats
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Times of all strategies and the null control, by round; and what a traced run says of each but the latter."""
    from ddptrace.bench.ddp import truth
    from ddptrace.bench.training import Trainee

    by_name = _strategies(cap[1])
    things = {name: Trainee(job, workload(model), by_name[name]).step for name in (*names, NULL)}
    times = interleaved(job, things, repeats)
    job.say("the same traced")
    steps = {name: things[name] for name in names}
    return times, truth.of_each(job, steps, lambda name: f"{model}-cap{cap[0]}-{job.ranks}ranks-{name}")


def _strategies(cap_mb: float) -> dict[str, Strategy]:
    from ddptrace.bench.strategies import bucketed, flat, naive, overlap, stock_ddp

    all_of_them = (naive(), flat(), overlap(), bucketed(cap_mb), stock_ddp(cap_mb), stock_ddp(cap_mb, NULL))
    return {strategy.name: strategy for strategy in all_of_them}


def sheet(options: Options, measured: list[dict[str, Any]]) -> Sheet:
    from ddptrace.bench.ddp.grids import charts, ratios_grid, steps_grid
    from ddptrace.bench.ddp.verdict import verdict
    from ddptrace.bench.ddp.words import host_words

    cells = [Cell(**one) for job in measured for one in job["cells"]]
    title = f"Data-parallel strategies beside stock DDP: {', '.join(dict.fromkeys(cell.model for cell in cells))}"
    grids = (steps_grid(cells, options.repeats), ratios_grid(cells))
    return Sheet("ddp", title, merged(measured), (*verdict(cells), *host_words(cells)), grids, charts(cells))
