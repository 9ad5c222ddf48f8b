"""Weak scaling: every worker brings its own batch, so ideally a step takes as long with n workers as with one.

efficiency = samples/s of n workers ÷ (n × samples/s of 1 worker) = step time of 1 worker ÷ step time of n workers
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.bench import traced
from ddptrace.bench.experiment import Experiment, Measured, Section, TimedOptions
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.strategies import bucketed, stock_ddp
from ddptrace.bench.timing import (
    COMM_HEADS,
    Spread,
    chart_ms,
    comm_cells,
    interleaved,
    interval_head,
    ms_interval,
    spread,
)
from ddptrace.bench.workloads import Trainee, nbytes, workload
from ddptrace.engine import cores
from ddptrace.render.sheet import Chart, Grid, Line
from ddptrace.units import counted, millis, percent, size, three_figures

STRATEGIES: Final = ("ddp", "bucketed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TimedOptions):
    """`cap_mb`: of the buckets of both reducers, in MiB."""

    ranks: tuple[int, ...] = (1, 2, 4)
    workload: str = "gpt"
    cap_mb: float = 25

    def __post_init__(self) -> None:
        workload(self.workload)


def measure(job: Job, options: Options) -> Measured:
    """Time and trace both reducers, and count the computing threads for each core. Collective."""
    job.say(counted(job.ranks, "worker"))
    work, both = workload(options.workload), (stock_ddp(options.cap_mb), bucketed(options.cap_mb))
    trainees = {strategy.name: Trainee(job, work, strategy) for strategy in both}
    steps = {name: trainee.step for name, trainee in trainees.items()}
    times = interleaved(job, steps, options.repeats)
    results = traced.analyzed(job, steps, lambda name: f"{name}-{job.ranks}-workers")
    return {
        "setup": setup_of(job),
        "workers": job.ranks,
        "batch_size": work.batch_size,
        "nbytes": nbytes(trainees["ddp"].model),
        "threads_per_core": _threads_per_core(job),
        "times_ns": times,
        "traced": traced.typical_steps(results),
    }


def _threads_per_core(job: Job) -> float | None:
    """Return the computing threads for each core, on the host with the most; None if GPUs compute. Collective."""
    mine = (socket.gethostname(), cores(), int(os.environ.get("OMP_NUM_THREADS", "1")))
    places: list[Any] = job.gather(mine)
    threads = Counter[str]()
    for host, _, count in places:
        threads[host] += count
    return None if job.device.type == "cuda" else max(threads[host] / count for host, count, _ in places)


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """One reducer with one number of workers. `time`: of a step, in ns; `alone`: that of one worker, None if it was not
    measured. `typical`: `TypicalStep` as JSON. `threads_per_core`: see `_threads_per_core`."""

    workers: int
    batch_size: int
    time: Spread
    alone: Spread | None
    typical: Mapping[str, Any]
    threads_per_core: float | None

    @property
    def samples_per_s(self) -> float:
        return self.workers * self.batch_size / (self.time.median / 1e9)

    @property
    def efficiency(self) -> tuple[float, float, float] | None:
        """Least, from the medians, most. None if one worker was not measured."""
        if self.alone is None:
            return None
        if self.workers == 1:
            return 1.0, 1.0, 1.0
        alone, time = self.alone, self.time
        return alone.low / time.high, alone.median / time.median, alone.high / time.low


def points_of(jobs: Sequence[Mapping[str, Any]], strategy: str) -> list[ScalePoint]:
    """Return the points of a strategy by the number of workers, ascending."""
    times = {job["workers"]: spread(job["times_ns"][strategy]) for job in jobs}
    return sorted(
        (
            ScalePoint(
                job["workers"],
                job["batch_size"],
                times[job["workers"]],
                times.get(1),
                job["traced"][strategy],
                job["threads_per_core"],
            )
            for job in jobs
        ),
        key=lambda point: point.workers,
    )


def title(options: Options, jobs: Sequence[Measured]) -> str:
    gradients, batch = size(jobs[0]["nbytes"]), jobs[0]["batch_size"]
    return f"Weak scaling: {options.workload}, {gradients} of gradients, {batch} samples a worker"


def sections(options: Options, jobs: Sequence[Measured]) -> Iterator[Section]:
    """Yield one section that compares all numbers of workers."""
    points = {name: points_of(jobs, name) for name in STRATEGIES}
    times = [point.time for of_one in points.values() for point in of_one]
    heads = ("reducer", "workers", "step ms", interval_head(times), "samples/s", "efficiency", "its range", *COMM_HEADS)
    rows = tuple(_row(name, point) for name in STRATEGIES for point in points[name])
    yield Section(words(points), (Grid("Workers", heads, rows, NOTE),), _charts(points))


NOTE: Final = (
    "step: median over the rounds, untraced, of the slowest worker. efficiency: step time of 1 worker ÷ that of n; its "
    "range: from the ends of both intervals. The numbers of workers are measured one after another, so other load on "
    "the machine affects the efficiency. comm, hidden and exposed: the typical step of a traced run."
)

RATES: Final = "From the median untraced step. If nothing were lost: the first point times the number of workers."


def _row(name: str, point: ScalePoint) -> tuple[str, ...]:
    time = point.time
    least, efficiency, most = point.efficiency or (None, None, None)
    return (
        name,
        str(point.workers),
        millis(time.median),
        ms_interval(time),
        three_figures(point.samples_per_s),
        percent(efficiency),
        f"{percent(least)} .. {percent(most)}",
        *comm_cells(point.typical),
    )


def _charts(points: dict[str, list[ScalePoint]]) -> tuple[Chart, ...]:
    rates = [
        Line(name, _workers(of_strategy), tuple(point.samples_per_s for point in of_strategy))
        for name, of_strategy in points.items()
    ]
    least = points["ddp"][0]
    workers = _workers(points["ddp"])
    lossless = tuple(least.samples_per_s / least.workers * n for n in workers)
    return (
        Chart(
            "Samples per second over workers",
            "workers",
            "samples/s",
            (*rates, Line("ddp, if nothing were lost", workers, lossless)),
            caption=RATES,
        ),
        *(_parts(name, of_strategy) for name, of_strategy in points.items()),
    )


def _parts(name: str, points: list[ScalePoint]) -> Chart:
    """Chart the parts of a traced step, by workers."""
    x = tuple(str(point.workers) for point in points)
    rest = tuple(chart_ms(_without(point.typical["window_ns"], point.typical["exposed_ns"])) for point in points)
    exposed = tuple(chart_ms(point.typical["exposed_ns"]) for point in points)
    lines = (Line("all else", x, rest), Line("exposed communication", x, exposed))
    caption = "The typical step of a traced run. All else: computation, copies and idle time."
    return Chart(f"What a step is made of: {name}", "workers", "ms", lines, "stack", caption=caption)


def _without(window_ns: int | None, exposed_ns: int | None) -> int | None:
    return None if window_ns is None else window_ns - (exposed_ns or 0)


def _workers(points: list[ScalePoint]) -> tuple[int, ...]:
    return tuple(point.workers for point in points)


def words(points: Mapping[str, Sequence[ScalePoint]]) -> tuple[str, ...]:
    """Return the sentences: what the most workers gain, where the rest goes, and which numbers have too few cores."""
    several = [(name, of_strategy[-1], of_strategy[0]) for name, of_strategy in points.items()]
    sentences = [_won(name, most) for name, most, _ in several]
    sentences += [_went(name, most, least) for name, most, least in several if most is not least]
    sentences += [_crowded(point) for point in next(iter(points.values())) if point.workers > 1]
    return tuple(sentence for sentence in sentences if sentence)


def _won(name: str, most: ScalePoint) -> str:
    rate = f"{name} trains {three_figures(most.samples_per_s)} samples/s with {counted(most.workers, 'worker')}"
    if most.efficiency is None or most.alone is None:
        return f"{rate}; 1 worker was not measured, so there is no efficiency."
    if most.workers == 1:
        return f"{rate}; more were not measured, so there is nothing to scale."
    low, middle, high = most.efficiency
    times = most.workers * middle
    share = f"an efficiency of {percent(middle)} ({percent(low)} .. {percent(high)})"
    verdict = "" if high < 1 else "; a loss is not beyond the noise" if low <= 1 else ""
    return f"{rate}, {times:.2f} times as many as with 1: {share}{verdict}."


def _went(name: str, most: ScalePoint, least: ScalePoint) -> str:
    """Say what the traced step with the most workers has more of."""
    ends = [(point.typical["window_ns"], point.typical["exposed_ns"]) for point in (most, least)]
    (longer, waited), (shorter, waited_before) = ends
    if longer is None or shorter is None or waited is None:
        return ""
    more, of_waiting = longer - shorter, waited - (waited_before or 0)
    against = f"{name}'s traced step takes {millis(longer)} ms with {counted(most.workers, 'worker')}"
    against += f" and {millis(shorter)} ms with {least.workers}"
    if more <= 0:
        return f"{against}, although {millis(waited)} ms of it are exposed communication."
    if of_waiting >= more:
        return f"{against}: {millis(of_waiting)} ms more exposed communication is all of the difference."
    rest = "longer computation and idle time"
    return f"{against}: {millis(of_waiting)} ms of the difference are exposed communication, the rest {rest}."


def _crowded(point: ScalePoint) -> str:
    threads = point.threads_per_core
    if threads is None or threads < 1:
        return ""
    if threads == 1:
        return f"With {point.workers} workers every core computes: no core is left for the backend's threads."
    bound = percent(1 / threads)
    words = f"With {point.workers} workers {threads:.3g} computing threads share each core"
    return f"{words}: this machine's cores alone limit the efficiency to about {bound}, whatever the reducer does."


EXPERIMENT: Final = Experiment("scale", Options, measure, title, sections)
