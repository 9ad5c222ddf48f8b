"""All lines that lie below some points and above others.

         o                 o    above: no line may pass over them
o ───────────────────── o
     x ──────────── x           below: nor under these
x                       x
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STEEPEST: Final = 1e-3
"""No clock is further from another one's pace."""

MOST_POINTS: Final = 4096
"""Of more, those that bind in each stretch of time: leaving some out allows more lines, never fewer."""

ROUNDING_NS: Final = 0.5


Drifts = tuple[float, float]
"""The least and the most that there can be."""


def corners(above: Floats, below: Floats, drifts: Drifts = (-STEEPEST, STEEPEST)) -> Floats:
    """Corners of the set of lines y = offset + drift x t that pass no point of `above` and stay over all of `below`,
    both of shape (n, 2) as t, y; shape (k, 2) as offset, drift. None where no line does."""
    high = _lower_hull(_binding(above))
    low = _lower_hull(_binding(below * (1.0, -1.0))) * (1.0, -1.0)
    points = np.concatenate((high, low))
    lines = np.concatenate((_through_two(points, drifts), _steepest(points, drifts)))
    found: Floats = lines[_fit(lines, high, low)]
    return found


def band(lines: Floats, at: Floats) -> tuple[Floats, Floats]:
    """The lowest and the highest that any of them passes at each instant."""
    values = lines[:, :1] + lines[:, 1:] * at
    return values.min(axis=0), values.max(axis=0)


def _binding(points: Floats) -> Floats:
    """In order of time; the lowest of each stretch where they are many."""
    points = points[np.lexsort((points[:, 1], points[:, 0]))]
    if len(points) <= MOST_POINTS:
        return points
    stretches = np.array_split(points, MOST_POINTS)
    return np.array([stretch[stretch[:, 1].argmin()] for stretch in stretches])


def _lower_hull(points: Floats) -> Floats:
    """Those on which a line from below can rest; sorted by t, then y."""
    hull: list[tuple[float, float]] = []
    for t, y in points.tolist():
        if hull and hull[-1][0] == t:
            continue
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], (t, y)):
            hull.pop()
        hull.append((t, y))
    return np.array(hull).reshape(-1, 2)


def _turns_down(one: tuple[float, float], other: tuple[float, float], third: tuple[float, float]) -> bool:
    """The second lies on the line from the first to the third, or above it."""
    return (other[0] - one[0]) * (third[1] - one[1]) <= (other[1] - one[1]) * (third[0] - one[0])


def _through_two(points: Floats, drifts: Drifts) -> Floats:
    one, other = (points[which] for which in np.triu_indices(len(points), 1))
    apart = one[:, 0] != other[:, 0]
    one, other = one[apart], other[apart]
    drift = (other[:, 1] - one[:, 1]) / (other[:, 0] - one[:, 0])
    lines = np.column_stack((one[:, 1] - drift * one[:, 0], drift))
    return np.asarray(lines[(drift >= drifts[0]) & (drift <= drifts[1])])


def _steepest(points: Floats, drifts: Drifts) -> Floats:
    drift = np.repeat(drifts, len(points))
    points = np.concatenate((points, points))
    return np.column_stack((points[:, 1] - drift * points[:, 0], drift))


def _fit(lines: Floats, high: Floats, low: Floats) -> NDArray[np.bool_]:
    under = (lines[:, :1] + lines[:, 1:] * high[:, 0] <= high[:, 1] + ROUNDING_NS).all(axis=1)
    over = (lines[:, :1] + lines[:, 1:] * low[:, 0] >= low[:, 1] - ROUNDING_NS).all(axis=1)
    return np.asarray(under & over)
