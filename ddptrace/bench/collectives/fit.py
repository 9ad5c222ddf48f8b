"""Time over size as a start and a rate: t(n) = start + n / rate, by least squares on the relative error.

The relative error, since a deviation of 10 µs means much at 4 kB and nothing at 1 GB.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.collectives.transfers import SIZES_MIN, SPAN_MIN, line
from ddptrace.bench.statistics import quantile

ROUNDS_MIN: Final = 3
DRAWS: Final = 500
Line = tuple[float, float]
"""Start in ns, slope in ns per byte."""
Triple = tuple[float | None, float | None, float | None]
"""A value and its interval, None where it is not known."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Intervals are 95 %, by resampling the rounds; `rms_ratio` and `worst_ratio` tell how far the line lies from the
    medians, which no resampling shows."""

    start_ns: float
    start_low_ns: float
    start_high_ns: float
    rate: float | None  # bytes per second once started; these three None where the time does not surely grow with size
    rate_low: float | None
    rate_high: float | None
    half_nbytes: float | None  # so large a message takes as long to start as to move; None as above
    half_low_nbytes: float | None
    half_high_nbytes: float | None
    rms_ratio: float
    worst_ratio: float
    least_nbytes: int
    most_nbytes: int
    least_ns: float  # median at the smallest size

    @property
    def start_is_seen(self) -> bool:
        """At the smallest size the start stands out of the fit's own error, and its interval is off zero."""
        return self.start_low_ns > 0 and self.start_ns / self.least_ns > 2 * self.rms_ratio


def fit(rounds: Mapping[int, Sequence[float]]) -> Fit | None:
    """Of the rounds' times in ns by size in bytes; None where sizes or rounds are too few or too close."""
    sizes = sorted(rounds)
    if len(sizes) < SIZES_MIN or sizes[-1] < SPAN_MIN * sizes[0] or min(map(len, rounds.values())) < ROUNDS_MIN:
        return None
    medians = [statistics.median(rounds[size]) for size in sizes]
    start, slope = line(sizes, medians)
    drawn = _drawn([rounds[size] for size in sizes], sizes)
    errors = [(start + slope * size) / time - 1 for size, time in zip(sizes, medians, strict=True)]
    return Fit(
        start, *_interval([one[0] for one in drawn]), *_rates(slope, drawn), *_halves((start, slope), drawn),
        statistics.mean(error**2 for error in errors) ** 0.5, max(map(abs, errors)), sizes[0], sizes[-1], medians[0],
    )  # fmt: skip


def _rates(slope: float, drawn: Sequence[Line]) -> Triple:
    least, most = _interval([slope for _, slope in drawn])
    return (1e9 / slope, 1e9 / most, 1e9 / least) if least and slope else (None, None, None)


def _halves(found: Line, drawn: Sequence[Line]) -> Triple:
    """Of the draws that have a slope, which are all but a few where the rate is known."""
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
