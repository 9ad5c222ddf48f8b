"""One reducer with one number of workers, as it was measured; and what is to be said of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddptrace.bench.statistics import Spread
from ddptrace.bench.timing import spread
from ddptrace.render.words import counted, millis, percent, three_figures


@dataclass(frozen=True, slots=True)
class Point:
    """`time`: of a step, in ns, and `alone` that of one worker, None where it was not measured. `truth`: of a traced
    run. `threads_per_core`: threads that compute for each core they may use; None where a GPU computes."""

    workers: int
    batch_size: int
    time: Spread
    alone: Spread | None
    truth: Mapping[str, Any]
    threads_per_core: float | None

    @property
    def samples_per_s(self) -> float:
        return self.workers * self.batch_size / (self.time.median / 1e9)

    @property
    def efficiency(self) -> tuple[float, float, float] | None:
        """Least, from the medians, most."""
        if self.alone is None:
            return None
        if self.workers == 1:
            return 1.0, 1.0, 1.0
        alone, time = self.alone, self.time
        return alone.low / time.high, alone.median / time.median, alone.high / time.low


def points_of(jobs: Sequence[Mapping[str, Any]], strategy: str) -> list[Point]:
    """By the number of workers, ascending."""
    times = {job["workers"]: spread(job["times_ns"][strategy]) for job in jobs}
    return sorted(
        (
            Point(
                job["workers"], job["batch_size"], times[job["workers"]], times.get(1), job["traced"][strategy],
                job["threads_per_core"],
            )
            for job in jobs
        ),
        key=lambda point: point.workers,
    )  # fmt: skip


def words(points: Mapping[str, Sequence[Point]]) -> tuple[str, ...]:
    """What is won by the most workers, where the rest went, and which numbers tell of too few cores."""
    several = [(name, of_strategy[-1], of_strategy[0]) for name, of_strategy in points.items()]
    said = [_won(name, most) for name, most, _ in several]
    said += [_went(name, most, least) for name, most, least in several if most is not least]
    said += [_crowded(point) for point in next(iter(points.values())) if point.workers > 1]
    return tuple(sentence for sentence in said if sentence)


def _won(name: str, most: Point) -> str:
    rate = f"{name} trains {three_figures(most.samples_per_s)} samples/s with {counted(most.workers, 'worker')}"
    if most.efficiency is None or most.alone is None:
        return f"{rate}; 1 worker was not measured beside, so there is no efficiency."
    if most.workers == 1:
        return f"{rate}; more were not measured, so there is nothing to scale."
    low, middle, high = most.efficiency
    times = most.workers * middle
    share = f"an efficiency of {percent(middle)} ({percent(low)} .. {percent(high)})"
    verdict = "" if high < 1 else "; a loss is not beyond the noise" if low <= 1 else ""
    return f"{rate}, {times:.2f} times as many as with 1: {share}{verdict}."


def _went(name: str, most: Point, least: Point) -> str:
    """Of the traced steps: what the one with more workers has more of."""
    ends = [(point.truth["window_ns"], point.truth["exposed_ns"]) for point in (most, least)]
    (longer, waited), (shorter, waited_before) = ends
    if longer is None or shorter is None or waited is None:
        return ""
    more, of_waiting = longer - shorter, waited - (waited_before or 0)
    against = f"{name}'s traced step takes {millis(longer)} ms with {counted(most.workers, 'worker')}"
    against += f" and {millis(shorter)} ms with {least.workers}"
    if more <= 0:
        return f"{against}, although {millis(waited)} ms of it are exposed communication."
    if of_waiting >= more:
        return f"{against}: exposed communication, {millis(of_waiting)} ms more of it, is all of the difference."
    rest = "longer computation and idle time"
    return f"{against}: {millis(of_waiting)} ms of the difference are exposed communication, the rest {rest}."


def _crowded(point: Point) -> str:
    threads = point.threads_per_core
    if threads is None or threads < 1:
        return ""
    if threads == 1:
        return f"With {point.workers} workers every core computes: the backend's threads have no core of their own."
    bound = percent(1 / threads)
    told = f"With {point.workers} workers there are {threads:.3g} threads that compute for each core"
    return f"{told}: the efficiency tells of this machine, whose cores alone allow about {bound}, not of the reducer."
