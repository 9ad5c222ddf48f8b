"""Synchronising less often: one update every n micro-batches, what it saves, and how a small transformer learns with
it.

micro-batch    0    1    2    3    4    5    6    7
n = 1          u    u    u    u    u    u    u    u      u: gradients synchronised, optimizer steps
n = 4                         u                   u      between them gradients add up on the rank

A sample costs less, since n times as many samples share the same bytes; and it teaches less, since there is one update
instead of n. Both are measured: the time of a sample, and the loss after the same samples of real text.
"""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ddptrace.bench import traced
from ddptrace.bench.experiment import Experiment, Measured, Section, TimedOptions, each_job, merged_setup
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.strategies import REDUCERS, Strategy
from ddptrace.bench.timing import (
    COMM_HEADS,
    Spread,
    comm_cells,
    doubt,
    interleaved,
    interval_head,
    ratio,
    ratio_interval,
    spread,
    spread_line,
)
from ddptrace.bench.workloads import Gpt, nbytes
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Chart, Grid, Line
from ddptrace.units import NOT_MEASURED, counted, duration, millis, size

CAP_MB: Final = 1
POINTS: Final = 16
"""Points of the loss curve; there may be a few more."""
CONTEXT: Final = 64
MICRO_BATCH: Final = 4
HELD_OUT: Final = 32
"""Number of windows of text that no rank trains on."""
LEARNING_RATE: Final = 1e-3

NOTE: Final = (
    "ms a sample: of each rank, untraced, median over the rounds; n micro-batches of equal size make an update. loss: "
    "mean cross-entropy in nats on held-out text, after the same samples and with the same learning "
    "rate for every n. comm, hidden and exposed: of one update, in a traced run."
)


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
    losses = learning_curves(job, strategy, windows, options.counts, points, every)
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


def standard_library() -> Tensor:
    """Return the source of Python's standard library as uint8: real text that every machine has."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


class Windows:
    """Pieces of a text by number, shuffled equally on every rank. A target is the next byte."""

    def __init__(self, text: Tensor, device: torch.device) -> None:
        self._text, self._device = text, device
        pieces = (len(text) - 1) // CONTEXT
        self._order = torch.randperm(pieces, generator=torch.Generator().manual_seed(0))

    def held_out(self) -> tuple[Tensor, Tensor]:
        return self._batch(range(HELD_OUT))

    def micro_batch(self, number: int, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
        """Return this rank's micro-batch of this number. Each rank gets another part of the text."""
        first = (number * ranks + rank) * MICRO_BATCH
        return self._batch(range(first + HELD_OUT, first + HELD_OUT + MICRO_BATCH))

    def _batch(self, places: range) -> tuple[Tensor, Tensor]:
        begins = [CONTEXT * int(self._order[self._wrapped(at)]) for at in places]
        pieces = torch.stack([self._text[begin : begin + CONTEXT + 1] for begin in begins]).long().to(self._device)
        return pieces[:, :-1], pieces[:, 1:]

    def _wrapped(self, at: int) -> int:
        """Begin again after the last window, but never with a held-out one."""
        others = len(self._order) - HELD_OUT
        return HELD_OUT + (at - HELD_OUT) % others if at >= HELD_OUT else at


class Accumulating:
    """One model, updated once every `count` micro-batches."""

    def __init__(self, job: Job, strategy: Strategy, windows: Windows, count: int) -> None:
        torch.manual_seed(0)
        self.model = strategy.wrap(Gpt(layers=4, width=192, heads=6, context=CONTEXT).to(job.device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self._job, self._windows, self._count = job, windows, count
        self._next = 0

    def update(self) -> None:
        """Run `count` micro-batches, and average their gradients over them and over the ranks."""
        for place in range(self._count):
            batch = self._windows.micro_batch(self._next, self._job.rank, self._job.ranks)
            with self._apart(place):
                (self.model(*batch) / self._count).backward()
            self._next += 1
        self.optimizer.step()
        self.optimizer.zero_grad()

    def updates(self, micro_batches: int) -> None:
        """Run as many updates as these micro-batches make. `micro_batches`: a multiple of `count`."""
        for _ in range(micro_batches // self._count):
            self.update()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Return the mean cross-entropy in nats. It is equal on every rank, like the parameters."""
        return float(self.model.module(*self._windows.held_out()))  # type: ignore[operator] # the wrapped model

    def _apart(self, place: int) -> AbstractContextManager[Any]:
        last = place == self._count - 1
        return nullcontext() if last else self.model.no_sync()  # type: ignore[operator] # both wrappers have it


def learning_curves(
    job: Job, strategy: Strategy, windows: Windows, counts: Sequence[int], points: int, every: int
) -> dict[str, list[float]]:
    """Train with each n. Returns the held-out losses by n: at first, and then `points` times after `every`
    micro-batches of each rank."""
    found = {}
    for count in counts:
        learner = Accumulating(job, strategy, windows, count)
        losses = [learner.held_out_loss()]
        for _ in range(points):
            learner.updates(every)
            losses.append(learner.held_out_loss())
        found[str(count)] = losses
        job.say(f"trained with {counted(count, 'micro-batch', 'micro-batches')} an update: loss {losses[-1]:.3f}")
    return found


EXPERIMENT: Final = Experiment("no-sync", Options, measure, title, each_job(section), setup)
