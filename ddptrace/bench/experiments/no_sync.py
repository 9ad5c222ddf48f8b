"""Synchronising less often: n micro-batches for each update; `no_sync` keeps back the gradients of n-1 of them.

A sample costs less, since n times as many samples share the same bytes; and it teaches less, since there is one update
instead of n. Both are measured: the time of a sample, and the loss after the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.bench import traced
from ddptrace.bench.cells import COMM_HEADS, comm_cells, doubt, interval_head, ratio_interval, spread_line
from ddptrace.bench.experiment import Experiment, Measured, Section, TimedOptions, each_job, merged_setup
from ddptrace.bench.experiments.no_sync_curve import MICRO_BATCH, Accumulating, Windows, curves, standard_library
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.strategies import REDUCERS
from ddptrace.bench.timing import Spread, interleaved, ratio, spread
from ddptrace.bench.workloads import nbytes
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Chart, Grid, Line
from ddptrace.units import NOT_MEASURED, counted, duration, millis, size

CAP_MB: Final = 1
POINTS: Final = 16
"""Points of the loss curve; there may be a few more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TimedOptions):
    """`counts`: micro-batches for each update, 1 among them. `micro_batches`: of each rank, for the loss curve."""

    reducer: str = "ddp"
    counts: tuple[int, ...] = (1, 2, 4, 8)
    micro_batches: int = 256

    def __post_init__(self) -> None:
        if 1 not in self.counts:
            raise DdptraceError("all counts of micro-batches are compared to 1: include it, as in 1,2,4,8")
        if self.micro_batches < self.block:
            raise DdptraceError(
                f"{self.micro_batches} micro-batches are no whole updates of every count "
                f"({', '.join(map(str, self.counts))}): train on at least {self.block} (--micro-batches)"
            )

    @property
    def block(self) -> int:
        """The least number of micro-batches that makes whole updates for every count."""
        return math.lcm(*self.counts)


def measure(job: Job, options: Options) -> Measured:
    """Time `block` micro-batches of each count, trace an update of each, and train for the losses. Collective."""
    strategy = REDUCERS[options.reducer](CAP_MB)
    windows, block = Windows(standard_library(), job.device), options.block
    learners = {str(count): Accumulating(job, strategy, windows, count) for count in options.counts}
    things = {name: _updates(learner, block) for name, learner in learners.items()}
    times = interleaved(job, things, options.repeats)
    runs = traced.analyzed(job, {f"n-{name}": learner.update for name, learner in learners.items()})
    every = max(1, options.micro_batches // (POINTS * block)) * block
    points = options.micro_batches // every
    losses = curves(job, strategy, windows, options.counts, points, every)
    return {
        "setup": setup_of(job),
        "nbytes": nbytes(learners["1"].model),
        "ranks": job.ranks,
        "times_ns": times,
        "samples_a_time": block * MICRO_BATCH,
        "traced": traced.typical_steps(runs),
        "losses": losses,
        "samples_a_point": every * MICRO_BATCH * job.ranks,
        "micro_batches": points * every,
    }


def _updates(learner: Accumulating, micro_batches: int) -> Callable[[], None]:
    return lambda: learner.updates(micro_batches)


def title(options: Options, jobs: Sequence[Measured]) -> str:
    return f"One synchronisation for n micro-batches: {options.reducer}, {size(jobs[0]['nbytes'])} of gradients"


def setup(options: Options, jobs: Sequence[Measured]) -> Sequence[tuple[str, str]]:
    return (*merged_setup(options, jobs), ("trained on", _trained(options.micro_batches, jobs[0]["micro_batches"])))


def _trained(asked: int, micro_batches: int) -> str:
    """Say how many micro-batches were trained on. The curve's points are evenly spaced, where every n ends an
    update."""
    words = f"{counted(micro_batches, 'micro-batch', 'micro-batches')} a rank"
    return words if asked == micro_batches else f"{words} of {asked:,} asked for, where every n ends an update"


@dataclass(frozen=True, slots=True)
class Way:
    """`count` micro-batches for each update. `time`: of a sample, in ns. `ratio`: to count 1, within a round. `losses`:
    before training and after equal numbers of samples, in nats. `typical`: of a traced update, `TypicalStep` as
    JSON."""

    count: int
    time: Spread
    ratio: Spread
    losses: tuple[float, ...]
    typical: Mapping[str, Any]

    @property
    def interval(self) -> str:
        return ratio_interval(self.ratio, 2)


def section(options: Options, job: Measured) -> Section:
    ways, of_ranks = _ways(job), counted(job["ranks"], "rank")
    grid = Grid(f"Micro-batches for each update, {of_ranks}", _heads(ways), tuple(map(_row, ways)), NOTE)
    charts = _charts(ways, job["samples_a_point"], of_ranks)
    return Section(words(ways, job["samples_a_point"], job["ranks"]), (grid,), charts)


def _ways(job: Measured) -> list[Way]:
    """Return a row for each number of micro-batches, ascending."""
    times, samples = job["times_ns"], job["samples_a_time"]
    return [
        Way(
            int(n),
            spread([[ns / samples for ns in round_] for round_ in times[n]]),
            ratio(times[n], times["1"]),
            tuple(job["losses"][n]),
            job["traced"][f"n-{n}"],
        )
        for n in sorted(times, key=int)
    ]


def _heads(ways: list[Way]) -> tuple[str, ...]:
    interval = interval_head(way.ratio for way in ways)
    return "n", "ms a sample", "ratio to 1", interval, "loss at the end", *COMM_HEADS, "exposed ms a micro-batch"


NOTE: Final = (
    "ms a sample: of each rank, untraced, median over the rounds; n micro-batches of equal size make an update. loss: "
    "mean cross-entropy in nats on held-out text, after the same samples and with the same learning "
    "rate for every n. comm, hidden and exposed: of one update, in a traced run."
)


def _row(way: Way) -> tuple[str, ...]:
    exposed = way.typical["exposed_ns"]
    against = ("1.00", NOT_MEASURED) if way.count == 1 else (f"{way.ratio.median:.2f}", way.interval)
    return (
        str(way.count),
        millis(way.time.median),
        *against,
        f"{way.losses[-1]:.3f}",
        *comm_cells(way.typical),
        millis(None if exposed is None else exposed / way.count),
    )


def _charts(ways: list[Way], samples: int, of_ranks: str) -> tuple[Chart, Chart]:
    bars = spread_line("time of a sample", [str(way.count) for way in ways], [way.time for way in ways], 1e6)
    curves = tuple(
        Line(f"n = {way.count}", tuple(samples * at for at in range(len(way.losses))), way.losses) for way in ways
    )
    return (
        Chart(
            f"Loss over samples, {of_ranks}",
            "samples of all ranks",
            "nats",
            curves,
            caption="Held-out text; the same samples in the same order and the same learning rate for every n.",
        ),
        Chart(
            f"Time of a sample, {of_ranks}",
            "micro-batches for each update",
            "ms",
            (bars,),
            "bars",
            caption="Of each rank, median over the rounds and its interval.",
        ),
    )


def words(ways: Sequence[Way], samples: int, ranks: int) -> list[str]:
    """Return the sentences. `ways`: ascending, beginning with count 1. `samples`: of all ranks, between two points of
    the curves."""
    first, others = ways[0], ways[1:]
    end = (len(first.losses) - 1) * samples
    words = [
        f"With {counted(ranks, 'rank')} a sample costs {millis(first.time.median)} ms if every micro-batch is "
        f"synchronised{_won(others)}."
    ]
    at_others = "".join(f", {way.losses[-1]:.3f} at {way.count}" for way in others)
    words.append(
        f"After the same {end:,} samples, with the same learning rate, the held-out loss is {first.losses[-1]:.3f} "
        f"nats at n = 1{at_others} (from {first.losses[0]:.3f}; one seed, so small differences mean nothing)."
    )
    return words + [_weighed(first, way, samples, ranks) for way in others[-1:]]


def _won(others: Sequence[Way]) -> str:
    parts = [f"{way.ratio.median:.2f} times that at n = {way.count} ({way.interval}{_doubt(way)})" for way in others]
    return f"; {', '.join(parts)}" if parts else ""


def _doubt(way: Way) -> str:
    found = doubt(way.ratio) or ("so it costs more" if way.ratio.low > 1 else "")
    return f", {found}" if found else ""


def _weighed(first: Way, way: Way, samples: int, ranks: int) -> str:
    """Compare the times to the same loss, which the curve of n = 1 reached between two of its points."""
    loss, points = way.losses[-1], len(way.losses) - 1
    at = next((at for at, of_first in enumerate(first.losses) if of_first <= loss), None)
    if at is None:
        return f"n = 1 never reached {loss:.3f}: in these trainings fewer updates cost no loss."
    before, each = max(0, at - 1), samples / ranks  # a rank's samples from point to point
    earliest, latest = (duration(point * each * first.time.median) for point in (before, at))
    mine = duration(points * each * way.time.median)
    return (
        f"n = 1 reached {loss:.3f} nats between {before * samples:,} and {at * samples:,} samples, {earliest} to "
        f"{latest} at its time of a sample; n = {way.count} takes {mine}: "
        f"{_verdict(before / points, at / points, way)}. One training of each shows nothing of other seeds, and a "
        "higher learning rate for larger n was not tried."
    )


def _verdict(least: float, most: float, way: Way) -> str:
    """Say which is less. n = 1 needs between `least` and `most` of `way`'s samples for the same loss, and share ÷ ratio
    of its time. A verdict holds for both shares and for the whole interval of the ratio."""
    if way.ratio.count == 1:
        return "more rounds would show which is less"
    if most < way.ratio.low:
        return "synchronising less often loses more than it wins"
    if least > way.ratio.high:
        return "it wins more than it loses"
    return "the curve's points and the noise do not show which is less"


EXPERIMENT: Final = Experiment("no-sync", Options, measure, title, each_job(section), setup)
