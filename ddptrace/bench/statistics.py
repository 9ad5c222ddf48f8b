"""The spread of timings on a machine that also does other things."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ROUNDS_SURE: Final = 6
"""Number of values from which an interval holds the median 95 times in 100. Fewer values give only their range."""


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
