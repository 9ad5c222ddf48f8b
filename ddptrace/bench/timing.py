"""Times several things side by side, so that a disturbance of the machine disturbs all alike; and shows times as cells
and chart lines."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.bench.experiment import Repeats
from ddptrace.bench.job import Job
from ddptrace.render.sheet import Line
from ddptrace.units import NOT_MEASURED, left_words, millis, percent

Rounds = Sequence[Sequence[int]]
"""Times in ns by round and step, each of the slowest rank."""

Around = Callable[[str, int], AbstractContextManager[object]]

ROUNDS_SURE: Final = 6
"""Number of values from which an interval holds the median 95 times in 100. Fewer values give only their range."""

COMM_HEADS: Final = ("comm ms", "hidden ms", "exposed ms", "hidden")
"""The heads of the cells that `comm_cells` returns."""
ONE_ROUND: Final = "one round does not show the noise"
NO_DIFFERENCE: Final = "not beyond the noise"
STEP_CAPTION: Final = "Step: untraced, with its interval over the rounds. Exposed communication: by a traced run."
"""Of a chart with the lines that `step_lines` returns."""


def _nothing(name: str, round_: int) -> AbstractContextManager[object]:
    return nullcontext()


def interleaved(
    job: Job, things: Mapping[str, Callable[[], None]], repeats: Repeats, around: Around = _nothing
) -> dict[str, list[list[int]]]:
    """Time each thing. Returns its times by round. Collective: every rank passes the same names in the same order.

    `around(name, round)` returns the context in which a thing is warmed up and timed in a round.
    """
    chance, times = random.Random(0), {name: list[list[int]]() for name in things}
    began_ns = time.perf_counter_ns()
    for round_ in range(repeats.rounds):
        names = list(things)
        chance.shuffle(names)
        for name in names:
            with around(name, round_):
                times[name].append(_block(job, things[name], repeats))
        left = left_words(time.perf_counter_ns() - began_ns, round_ + 1, repeats.rounds)
        job.say(f"round {round_ + 1} of {repeats.rounds}{left if round_ + 1 < repeats.rounds else ''}")
    return times


def _block(job: Job, thing: Callable[[], None], repeats: Repeats) -> list[int]:
    for _ in range(repeats.warmup):
        thing()
    times = []
    for _ in range(repeats.steps):
        job.meet()
        begin = time.perf_counter_ns()
        thing()
        job.finish()
        times.append(time.perf_counter_ns() - begin)
    return job.slowest(times)


def spread(rounds: Rounds) -> Spread:
    """Return the spread of the rounds' medians, in ns."""
    return Spread.of([statistics.median(times) for times in rounds])


def ratio(rounds: Rounds, reference: Rounds) -> Spread:
    """Return the spread of each round's median over the reference's median in the same round."""
    pairs = zip(rounds, reference, strict=True)
    return Spread.of([statistics.median(times) / statistics.median(others) for times, others in pairs])


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, its 95 % interval, and the 5 % and 95 % quantiles of single values. `count`: number of values.

    With fewer than ROUNDS_SURE values the interval is their range, which holds the median less often.
    """

    median: float
    low: float
    high: float
    q05: float
    q95: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        low, high = median_interval(ordered)
        ends = quantile(ordered, 0.05), quantile(ordered, 0.95)
        return cls(statistics.median(ordered), low, high, *ends, len(ordered))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median: the k-th value from below and from above.

    Each value lies below the true median with probability 1/2, whatever the distribution. So the number of values below
    is binomial, and k is the largest number for which fewer than k values lie on one side at most 5 times in 100.
    """
    ordered, outside, chance = sorted(values), 0, 0.0
    for below in range(len(ordered) // 2):
        chance += 2 * math.comb(len(ordered), below) / 2 ** len(ordered)
        if chance > 0.05:
            break
        outside = below
    return ordered[outside], ordered[len(ordered) - 1 - outside]


def quantile(ordered: Sequence[float], at: float) -> float:
    """Return the value at the share `at`, 0..1, of ascending values."""
    return ordered[round(at * (len(ordered) - 1))]


def comm_cells(typical: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the cells of a `TypicalStep` as JSON, or of None: it was not traced."""
    if typical is None:
        return (NOT_MEASURED,) * len(COMM_HEADS)
    parts = (millis(typical[part]) for part in ("comm_ns", "hidden_ns", "exposed_ns"))
    return *parts, percent(typical["overlap_ratio"])


def interval_head(spreads: Iterable[Spread], sure: str = "95 % interval", few: str = "range of the rounds") -> str:
    """Name the intervals in a column: few rounds give no more than their range."""
    counts = [spread.count for spread in spreads]
    if min(counts, default=ROUNDS_SURE) >= ROUNDS_SURE:
        return sure
    return few if max(counts) < ROUNDS_SURE else f"{sure}; range below {ROUNDS_SURE} rounds"


def ms_interval(found: Spread) -> str:
    return f"{millis(found.low)} .. {millis(found.high)}"


def ratio_interval(found: Spread, digits: int = 3) -> str:
    return f"{found.low:.{digits}f} .. {found.high:.{digits}f}"


def doubt(ratio: Spread) -> str:
    """Say why a ratio other than 1 proves no difference; empty if it proves one."""
    if ratio.count == 1:
        return ONE_ROUND
    return NO_DIFFERENCE if ratio.low <= 1 <= ratio.high else ""


def chart_ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def spread_line(name: str, x: Sequence[float | str], spreads: Sequence[Spread], unit: float = 1) -> Line:
    """Return the medians and intervals, divided by `unit` (1e6: from ns to ms)."""
    ends = (tuple(getattr(spread, part) / unit for spread in spreads) for part in ("median", "low", "high"))
    return Line(name, tuple(x), *ends)


def step_lines(
    x: Sequence[str], steps: Sequence[Spread], traced: Iterable[Mapping[str, Any] | None]
) -> tuple[Line, Line]:
    """Return step times, and the exposed communication of the typical traced steps, in ms."""
    exposed = tuple(chart_ms(None if typical is None else typical["exposed_ns"]) for typical in traced)
    return spread_line("step", x, steps, 1e6), Line("exposed communication", tuple(x), exposed)
