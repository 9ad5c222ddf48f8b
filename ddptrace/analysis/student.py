"""Student's t distribution with a whole number of degrees of freedom, by a finite series in the angle whose tangent is
t / sqrt(freedom): exact, not an approximation (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import numpy as np

HALVINGS: Final = 60
"""Of a right angle: what is left is less than a float can tell."""


@cache
def student_quantile(freedom: int, share: float) -> float:
    """Return the t below which a share of the distribution lies: `share` is 0.5 or more, `freedom` is 1 or more."""
    low, high = 0.0, math.pi / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(freedom, middle) < 2 * share - 1 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(freedom: int, angle: float) -> float:
    """Return the share of the distribution between -t and t."""
    is_odd = freedom % 2
    sine, cosine = math.sin(angle), math.cos(angle)
    steps = np.arange(1, freedom // 2)
    ratios = cosine**2 * (2 * steps / (2 * steps + 1) if is_odd else (2 * steps - 1) / (2 * steps))
    whole = 1 + float(np.cumprod(ratios).sum())
    if not is_odd:
        return sine * whole
    return 2 / math.pi * (angle + (sine * cosine * whole if freedom > 1 else 0.0))
