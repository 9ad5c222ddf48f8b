"""Weak scaling: every worker brings its own batch, so with n workers a step ought to take as long as with one.

efficiency = samples/s of n workers ÷ (n × samples/s of 1 worker) = step time of 1 worker ÷ step time of n workers
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ddptrace.bench.cells import COMM_HEADS, chart_ms, comm_cells, interval_head, ms_interval
from ddptrace.bench.scale.points import Point, points_of, words
from ddptrace.bench.setup import merged, setup_of
from ddptrace.bench.timing import Repeats, interleaved
from ddptrace.bench.workloads import nbytes, workload
from ddptrace.engine import cores
from ddptrace.render.sheet import Chart, Grid, Line, Sheet
from ddptrace.render.words import counted, millis, percent, size, three_figures

if TYPE_CHECKING:
    from ddptrace.bench.job import Job

STRATEGIES: Final = ("ddp", "bucketed")


@dataclass(frozen=True, slots=True)
class Options:
    """`cap_mb`: of the buckets of both reducers, in MiB."""

    ranks: tuple[int, ...] = (1, 2, 4)
    backend: str | None = None
    workload: str = "gpt"
    cap_mb: float = 25
    repeats: Repeats = field(default_factory=Repeats)

    def __post_init__(self) -> None:
        workload(self.workload)


def measure(job: Job, options: Options) -> dict[str, Any]:
    """Times by strategy and round, what a traced run of each says, and whether each rank has cores of its own.
    Collective."""
    from ddptrace.bench import traced
    from ddptrace.bench.strategies import bucketed, stock_ddp
    from ddptrace.bench.training import Trainee

    job.say(counted(job.ranks, "worker"))
    work, both = workload(options.workload), (stock_ddp(options.cap_mb), bucketed(options.cap_mb))
    trainees = {strategy.name: Trainee(job, work, strategy) for strategy in both}
    steps = {name: trainee.step for name, trainee in trainees.items()}
    times = interleaved(job, steps, options.repeats)
    results = traced.analyzed(job, steps, lambda name: f"{name}-{job.ranks}-workers")
    return {
        "setup": setup_of(job), "workers": job.ranks, "batch_size": work.batch_size,
        "nbytes": nbytes(trainees["ddp"].model), "threads_per_core": _threads_per_core(job), "times_ns": times,
        "traced": traced.truths(results),
    }  # fmt: skip


def _threads_per_core(job: Job) -> float | None:
    """Threads that compute for each core they may use, on the host where they are most; None where a GPU computes."""
    mine = (socket.gethostname(), cores(), int(os.environ.get("OMP_NUM_THREADS", "1")))
    places: list[Any] = job.gather(mine)
    threads = Counter[str]()
    for host, _, count in places:
        threads[host] += count
    return None if job.device.type == "cuda" else max(threads[host] / count for host, count, _ in places)


def sheet(options: Options, measured: list[dict[str, Any]]) -> Sheet:
    """One row for each strategy and number of workers."""
    points = {name: points_of(measured, name) for name in STRATEGIES}
    batch, times = measured[0]["batch_size"], [point.time for of_one in points.values() for point in of_one]
    title = f"Weak scaling: {options.workload}, {size(measured[0]['nbytes'])} of gradients, {batch} samples a worker"
    rows = tuple(_row(name, point) for name in STRATEGIES for point in points[name])
    heads = ("reducer", "workers", "step ms", interval_head(times), "samples/s", "efficiency", "its range", *COMM_HEADS)
    grid = Grid("Workers", heads, rows, NOTE)
    return Sheet("scale", title, merged(measured), words(points), (grid,), _charts(points))


NOTE: Final = (
    "step: median over the rounds, untraced, of the slowest worker. efficiency: step time of 1 worker ÷ that of n; its "
    "range: from the ends of both intervals. The numbers of workers were measured one after another: what else "
    "the machine did meanwhile is in the efficiency. comm, hidden and exposed: the typical step of a traced run."
)

RATES: Final = (
    "From the median step, untraced. If nothing were lost: as many times the first point as there are workers."
)


def _row(name: str, point: Point) -> tuple[str, ...]:
    time, true = point.time, point.truth
    least, efficiency, most = point.efficiency or (None, None, None)
    return (
        name, str(point.workers), millis(time.median), ms_interval(time), three_figures(point.samples_per_s),
        percent(efficiency), f"{percent(least)} .. {percent(most)}", *comm_cells(true),
    )  # fmt: skip


def _charts(points: dict[str, list[Point]]) -> tuple[Chart, ...]:
    rates = [
        Line(name, _workers(of_strategy), tuple(point.samples_per_s for point in of_strategy))
        for name, of_strategy in points.items()
    ]
    least = points["ddp"][0]
    workers = _workers(points["ddp"])
    lossless = tuple(least.samples_per_s / least.workers * n for n in workers)
    return (
        Chart("Samples per second over workers", "workers", "samples/s",
              (*rates, Line("ddp, if nothing were lost", workers, lossless)), caption=RATES),
        *(_parts(name, of_strategy) for name, of_strategy in points.items()),
    )  # fmt: skip


def _parts(name: str, points: list[Point]) -> Chart:
    """What a traced step is made of, by workers."""
    x = tuple(str(point.workers) for point in points)
    rest = tuple(chart_ms(_without(point.truth["window_ns"], point.truth["exposed_ns"])) for point in points)
    exposed = tuple(chart_ms(point.truth["exposed_ns"]) for point in points)
    lines = (Line("all else", x, rest), Line("exposed communication", x, exposed))
    caption = "The typical step of a traced run. All else: computation, what is copied, and idle time."
    return Chart(f"What a step is made of: {name}", "workers", "ms", lines, "stack", caption=caption)


def _without(window_ns: int | None, exposed_ns: int | None) -> int | None:
    return None if window_ns is None else window_ns - (exposed_ns or 0)


def _workers(points: list[Point]) -> tuple[int, ...]:
    return tuple(point.workers for point in points)
