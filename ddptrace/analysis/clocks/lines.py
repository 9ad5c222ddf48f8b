"""A straight line for each clock: what it reads at each instant of the reference's time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.clocks.bounds import Floats, Meetings, Messages

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

    def off_meetings(self, met: Meetings) -> Meetings:
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
