"""A straight line for each clock: what it reads at each instant of the reference's time.

`corners` are those of all lines that lie below some points and above others:

         o                 o    above: no line may pass over them
o ───────────────────── o
     x ──────────── x           below: nor under these
x                       x
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.clocks.bounds import Floats, Messages, SharedCollectives

LEAST_ABSOLUTE_ROUNDS: Final = 40
LEAST_NS: Final = 2_000.0
"""Values nearer than that count alike."""
CAUCHY_ROUNDS: Final = 60
CLOSE_NS: Final = 10.0
"""Rounds that change less are the last."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A clock reads t + offset + drift x (t - zero) at the reference's t; columns of shape (clocks,)."""

    zero: float
    offset: Floats
    drift: Floats

    @classmethod
    def same(cls, zero: float, clocks: int) -> Lines:
        return cls(zero, np.zeros(clocks), np.zeros(clocks))

    def then(self, rest: Lines) -> Lines:
        """Both: `rest` is what is left of the clocks once these lines are taken off."""
        drift = (1 + self.drift) * (1 + rest.drift) - 1
        return Lines(self.zero, self.offset + (1 + self.drift) * rest.offset, drift)

    def off(self, instants: Floats, clocks: NDArray[np.int64] | slice = slice(None)) -> Floats:
        """Instants of these clocks in the reference's time; the last axis is that of clocks."""
        since: Floats = instants - self.zero - self.offset[clocks]
        return self.zero + since / (1 + self.drift[clocks])

    def off_meetings(self, met: SharedCollectives) -> SharedCollectives:
        return replace(met, begin=self.off(met.begin), end=self.off(met.end))

    def off_messages(self, sent: Messages) -> Messages:
        return replace(sent, begin=self.off(sent.begin, sent.sender), end=self.off(sent.end, sent.receiver))


def least_squares(columns: Floats, values: Floats, weights: Floats) -> Floats:
    """Of a few columns and many rows."""
    weighted = columns * weights[:, None]
    return np.linalg.lstsq(weighted.T @ columns, weighted.T @ values, rcond=None)[0].astype(np.float64)


def least_absolute(columns: Floats, values: Floats) -> Floats:
    """The fit with the least sum of distances: a few values far off hardly move it."""
    found = least_squares(columns, values, np.ones(len(values)))
    for _ in range(LEAST_ABSOLUTE_ROUNDS):
        rest = np.abs(values - columns @ found)
        found = least_squares(columns, values, 1 / np.maximum(rest, LEAST_NS))
    return found


def cauchy(columns: Floats, values: Floats, weights: Floats, scale_ns: float) -> Floats:
    """From nothing on, nearer and nearer: values far beyond the scale hardly count."""
    found: Floats = np.zeros(columns.shape[1])
    for _ in range(CAUCHY_ROUNDS):
        rest = values - columns @ found
        better = least_squares(columns, values, np.asarray(weights / (1 + (rest / scale_ns) ** 2)))
        if np.abs(better - found).max() < CLOSE_NS:
            return better
        found = better
    return found


# All lines between points ---------------------------------------------------------------------------------------------


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
    lines = np.concatenate((_through_two(points, drifts), _steepest_through(points, drifts)))
    found: Floats = lines[_are_between(lines, high, low)]
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


def _steepest_through(points: Floats, drifts: Drifts) -> Floats:
    drift = np.repeat(drifts, len(points))
    points = np.concatenate((points, points))
    return np.column_stack((points[:, 1] - drift * points[:, 0], drift))


def _are_between(lines: Floats, high: Floats, low: Floats) -> NDArray[np.bool_]:
    under = (lines[:, :1] + lines[:, 1:] * high[:, 0] <= high[:, 1] + ROUNDING_NS).all(axis=1)
    over = (lines[:, :1] + lines[:, 1:] * low[:, 0] >= low[:, 1] - ROUNDING_NS).all(axis=1)
    return np.asarray(under & over)
