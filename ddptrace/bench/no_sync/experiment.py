"""Synchronising less often: n micro-batches for each update, the gradients of n-1 of them kept back by `no_sync`.

A sample costs less, since the same bytes travel for n times as many samples; and it teaches less, since there is one
update where there were n. Both are measured: the time of a sample, and the loss after the same samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ddptrace.bench.cells import COMM_HEADS, comm_cells, interval_head, spread_line
from ddptrace.bench.no_sync.words import Way, words
from ddptrace.bench.setup import merged, setup_of
from ddptrace.bench.timing import Repeats, interleaved, ratio, spread
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Chart, Grid, Line, Sheet
from ddptrace.render.words import NOT_MEASURED, counted, millis, size

if TYPE_CHECKING:
    from ddptrace.bench.job import Job

CAP_MB: Final = 1
POINTS: Final = 16
"""Of the loss curve, or a few more."""


@dataclass(frozen=True, slots=True)
class Options:
    """`counts`: micro-batches for each update, 1 among them. `micro_batches`: of each rank, for the loss curve."""

    ranks: tuple[int, ...] = (2,)
    backend: str | None = None
    reducer: str = "ddp"
    counts: tuple[int, ...] = (1, 2, 4, 8)
    micro_batches: int = 256
    repeats: Repeats = field(default_factory=Repeats)

    def __post_init__(self) -> None:
        if 1 not in self.counts:
            raise DdptraceError("numbers of micro-batches are compared to 1: have it among them, as in 1,2,4,8")
        if self.micro_batches < self.block:
            raise DdptraceError(
                f"{self.micro_batches} micro-batches make no whole updates of {', '.join(map(str, self.counts))} each: "
                f"train on at least {self.block} (--micro-batches)"
            )

    @property
    def block(self) -> int:
        """Micro-batches that are whole updates for every count."""
        return math.lcm(*self.counts)


def measure(job: Job, options: Options) -> dict[str, Any]:
    """By count: times of `block` micro-batches, held-out losses, what a traced update says. Collective."""
    from ddptrace.bench import traced
    from ddptrace.bench.no_sync.curve import MICRO_BATCH, Accumulating, Windows, curves, standard_library
    from ddptrace.bench.strategies import REDUCERS
    from ddptrace.bench.workloads import nbytes

    strategy = REDUCERS[options.reducer](CAP_MB)
    windows, block = Windows(standard_library(), job.device), options.block
    learners = {str(count): Accumulating(job, strategy, windows, count) for count in options.counts}
    things = {name: _updates(learner, block) for name, learner in learners.items()}
    times = interleaved(job, things, options.repeats)
    true = traced.truths(traced.analyzed(job, {f"n-{name}": learner.update for name, learner in learners.items()}))
    every = max(1, options.micro_batches // (POINTS * block)) * block
    points = options.micro_batches // every
    losses = curves(job, strategy, windows, options.counts, points, every)
    return {
        "setup": setup_of(job), "nbytes": nbytes(learners["1"].model), "ranks": job.ranks, "times_ns": times,
        "samples_a_time": block * MICRO_BATCH, "traced": true, "losses": losses,
        "samples_a_point": every * MICRO_BATCH * job.ranks, "micro_batches": points * every,
    }  # fmt: skip


def _updates(learner: Any, micro_batches: int) -> Any:
    return lambda: learner.updates(micro_batches)


def sheet(options: Options, measured: list[dict[str, Any]]) -> Sheet:
    """Sentences, a table and two charts for each job."""
    title = f"One synchronisation for n micro-batches: {options.reducer}, {size(measured[0]['nbytes'])} of gradients"
    said, grids, charts = list[str](), list[Grid](), list[Chart]()
    for one in measured:
        ways, of_ranks = _ways(one), counted(one["ranks"], "rank")
        said += words(ways, one["samples_a_point"], one["ranks"])
        grids.append(Grid(f"Micro-batches for each update, {of_ranks}", _heads(ways), tuple(map(_row, ways)), NOTE))
        charts += _charts(ways, one["samples_a_point"], of_ranks)
    setup = (*merged(measured), ("trained on", _trained(options.micro_batches, measured[0]["micro_batches"])))
    return Sheet("no-sync", title, setup, tuple(said), tuple(grids), tuple(charts))


def _trained(asked: int, micro_batches: int) -> str:
    """The curve's points lie where every n ends an update, equally far from each other."""
    told = f"{counted(micro_batches, 'micro-batch', 'micro-batches')} a rank"
    return told if asked == micro_batches else f"{told} of {asked:,} asked for, where every n ends an update"


def _ways(one: dict[str, Any]) -> list[Way]:
    """By the number of micro-batches, ascending."""
    times, samples = one["times_ns"], one["samples_a_time"]
    return [
        Way(
            int(n), spread([[ns / samples for ns in round_] for round_ in times[n]]), ratio(times[n], times["1"]),
            tuple(one["losses"][n]), one["traced"][f"n-{n}"],
        )
        for n in sorted(times, key=int)
    ]  # fmt: skip


def _heads(ways: list[Way]) -> tuple[str, ...]:
    interval = interval_head(way.ratio for way in ways)
    return "n", "ms a sample", "ratio to 1", interval, "loss at the end", *COMM_HEADS, "exposed ms a micro-batch"


NOTE: Final = (
    "ms a sample: of each rank, untraced, median over the rounds; n micro-batches of one size make an update. loss: "
    "mean cross-entropy in nats of text that was not trained on, after the same samples and with the same learning "
    "rate for every n. comm, hidden and exposed: of one update, in a traced run."
)


def _row(way: Way) -> tuple[str, ...]:
    exposed = way.truth["exposed_ns"]
    against = ("1.00", NOT_MEASURED) if way.count == 1 else (f"{way.ratio.median:.2f}", way.interval)
    return (
        str(way.count), millis(way.time.median), *against, f"{way.losses[-1]:.3f}", *comm_cells(way.truth),
        millis(None if exposed is None else exposed / way.count),
    )  # fmt: skip


def _charts(ways: list[Way], samples: int, of_ranks: str) -> tuple[Chart, Chart]:
    bars = spread_line("time of a sample", [str(way.count) for way in ways], [way.time for way in ways], 1e6)
    curves = tuple(
        Line(f"n = {way.count}", tuple(samples * at for at in range(len(way.losses))), way.losses) for way in ways
    )
    return (
        Chart(f"Loss over samples, {of_ranks}", "samples of all ranks", "nats", curves,
              caption="Held-out text; the same samples in the same order and the same learning rate for every n."),
        Chart(f"Time of a sample, {of_ranks}", "micro-batches for each update", "ms", (bars,), "bars",
              caption="Of each rank, median over the rounds and its interval."),
    )  # fmt: skip
