"""Time over size as a start and a rate: t(n) = start + n / rate, by least squares on the relative error; and in words.

The relative error, since a deviation of 10 µs means much at 4 kB and nothing at 1 GB.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.collectives.transfers import SIZES_MIN, SPAN_MIN, line
from ddptrace.bench.timing import quantile
from ddptrace.units import counted, duration, percent, rate, size

ROUNDS_MIN: Final = 3
DRAWS: Final = 500
WRONG_MIN_RATIO: Final = 0.25
"""A line whose mean error exceeds this describes nothing."""
CALLED: Final = {
    "all_reduce": "An all-reduce",
    "all_gather": "An all-gather",
    "reduce_scatter": "A reduce-scatter",
    "broadcast": "A broadcast",
    "all_to_all": "An all-to-all",
    "reduce": "A reduce",
    "gather": "A gather",
    "scatter": "A scatter",
    "send_recv": "A send to a neighbour",
}
Line = tuple[float, float]
"""Start in ns, slope in ns per byte."""
Triple = tuple[float | None, float | None, float | None]
"""A value and the ends of its interval. None: not known."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted line. Intervals are 95 %, by resampling the rounds. `rms_ratio` and `worst_ratio`: how far the medians
    lie from the line, which resampling does not show."""

    start_ns: float
    start_low_ns: float
    start_high_ns: float
    rate: float | None  # bytes per second once started; all three None if the time does not surely grow with size
    rate_low: float | None
    rate_high: float | None
    half_nbytes: float | None  # a message of this size takes as long to start as to move; None as above
    half_low_nbytes: float | None
    half_high_nbytes: float | None
    rms_ratio: float
    worst_ratio: float
    least_nbytes: int
    most_nbytes: int
    least_ns: float  # median at the smallest size

    @property
    def start_is_seen(self) -> bool:
        """Whether the start at the smallest size exceeds the fit's error, and its interval excludes zero."""
        return self.start_low_ns > 0 and self.start_ns / self.least_ns > 2 * self.rms_ratio


def fit(rounds: Mapping[int, Sequence[float]]) -> Fit | None:
    """Fit the rounds' times in ns, by size in bytes. Returns None if sizes or rounds are too few or too close."""
    sizes = sorted(rounds)
    if len(sizes) < SIZES_MIN or sizes[-1] < SPAN_MIN * sizes[0] or min(map(len, rounds.values())) < ROUNDS_MIN:
        return None
    medians = [statistics.median(rounds[size]) for size in sizes]
    start, slope = line(sizes, medians)
    drawn = _drawn([rounds[size] for size in sizes], sizes)
    errors = [(start + slope * size) / time - 1 for size, time in zip(sizes, medians, strict=True)]
    return Fit(
        start,
        *_interval([start for start, _ in drawn]),
        *_rates(slope, drawn),
        *_halves((start, slope), drawn),
        statistics.mean(error**2 for error in errors) ** 0.5,
        max(map(abs, errors)),
        sizes[0],
        sizes[-1],
        medians[0],
    )


def _rates(slope: float, drawn: Sequence[Line]) -> Triple:
    least, most = _interval([slope for _, slope in drawn])
    return (1e9 / slope, 1e9 / most, 1e9 / least) if least and slope else (None, None, None)


def _halves(found: Line, drawn: Sequence[Line]) -> Triple:
    """Use the draws that have a slope: nearly all of them, if the rate is known."""
    if _rates(found[1], drawn)[0] is None:
        return None, None, None
    return found[0] / found[1], *_interval([start / slope for start, slope in drawn if slope])


def _interval(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return quantile(ordered, 0.025), quantile(ordered, 0.975)


def _drawn(rounds: Sequence[Sequence[float]], sizes: Sequence[int]) -> list[Line]:
    chance = random.Random(0)
    return [
        line(sizes, [statistics.median(chance.choices(times, k=len(times))) for times in rounds]) for _ in range(DRAWS)
    ]


def fit_words(fits: Mapping[str, Mapping[int, Fit | None]]) -> list[str]:
    """Return a sentence on each op with a fit for some number of ranks, and one on all other ops."""
    without = [op for op, of_op in fits.items() if not any(of_op.values())]
    sentences = [op_words(op, of_op) for op, of_op in fits.items() if op not in without]
    if without:
        wanted = f"{SIZES_MIN} sizes or more, {SPAN_MIN} times apart, in {ROUNDS_MIN} rounds or more"
        sentences.append(f"Start and rate are not fitted for {', '.join(without)}: a fit needs {wanted}.")
    return sentences


def op_words(op: str, fits: Mapping[int, Fit | None]) -> str:
    """Return one sentence on an op, with a part for each number of ranks."""
    parts = [f"over {counted(ranks, 'rank')} {_part(fitted)}" for ranks, fitted in fits.items()]
    return f"{CALLED[op]} {'; '.join(parts)}."


def _part(fitted: Fit | None) -> str:
    if fitted is None:
        return "has too few measurements for a fit"
    off = f"mean error of the fit {percent(fitted.rms_ratio)}, largest {percent(fitted.worst_ratio)}"
    if fitted.rms_ratio > WRONG_MIN_RATIO:
        return f"does not follow one start and one rate ({off})"
    if fitted.rate is None:
        sizes = f"from {size(fitted.least_nbytes)} to {size(fitted.most_nbytes)}"
        return f"does not surely take longer with a larger size, {sizes}, so it has no rate ({off})"
    moves = f"moves {rate(fitted.rate)} ({rate(fitted.rate_low)} to {rate(fitted.rate_high)})"
    if not fitted.start_is_seen:
        return f"{moves}, and its start is too short to measure with sizes from {size(fitted.least_nbytes)} up ({off})"
    start = f"{duration(fitted.start_ns)} ({duration(fitted.start_low_ns)} to {duration(fitted.start_high_ns)})"
    return f"starts in about {start} and then {moves}; {_half(fitted)} ({off})"


def _half(fitted: Fit) -> str:
    """Say up to which size the start dominates, but nothing beyond the measured sizes."""
    half, low, high = fitted.half_nbytes or 0, fitted.half_low_nbytes or 0, fitted.half_high_nbytes or 0
    if fitted.least_nbytes <= half <= fitted.most_nbytes:
        interval = f"{size(round(low))} to {size(round(high))}"
        return f"up to about {size(round(half))} ({interval}) the start takes more than half of the time"
    sure = high < fitted.least_nbytes or low > fitted.most_nbytes
    side = "less" if half < fitted.least_nbytes else "more"
    return f"at every measured size the start takes {'' if sure else 'about half or '}{side} than half of the time"
