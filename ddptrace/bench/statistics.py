"""Spread and ratios of timings on a machine where other things go on too."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, the 95 % interval of the median, and where single values lie (5 % and 95 % quantile)."""

    median: float
    low: float
    high: float
    q05: float
    q95: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        low, high = median_interval(ordered)
        return cls(statistics.median(ordered), low, high, quantile(ordered, 0.05), quantile(ordered, 0.95))


def median_interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """The 95 % interval of the median, by resampling with a fixed seed."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(draws))
    return quantile(medians, 0.025), quantile(medians, 0.975)


def quantile(ordered: Sequence[float], at: float) -> float:
    """Of ascending values, the one at this share of the way, 0..1."""
    return ordered[round(at * (len(ordered) - 1))]
