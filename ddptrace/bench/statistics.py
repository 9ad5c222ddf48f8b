"""Spread and ratios of timings on a machine where other things go on too."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ROUNDS_SURE: Final = 6
"""From so many values on, an interval of the median holds it 95 times in 100; fewer can only give their range."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, the 95 % interval of the median, and where single values lie (5 % and 95 % quantile).

    Of fewer than ROUNDS_SURE values the interval is their range, which holds the median less often. `count`: of values.
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
    """The 95 % interval of the median: between the k-th value from below and from above.

    Each value lies below the true median with chance 1/2, whatever the distribution: k is the largest for which fewer
    than k values lie on one side, as a coin would have it, at most 5 times in 100.
    """
    ordered, outside, chance = sorted(values), 0, 0.0
    for below in range(len(ordered) // 2):
        chance += 2 * math.comb(len(ordered), below) / 2 ** len(ordered)
        if chance > 0.05:
            break
        outside = below
    return ordered[outside], ordered[len(ordered) - 1 - outside]


def quantile(ordered: Sequence[float], at: float) -> float:
    """Of ascending values, the one at this share of the way, 0..1."""
    return ordered[round(at * (len(ordered) - 1))]
