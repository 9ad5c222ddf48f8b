"""Computes percentiles, quantiles of Student's t distribution, and groups of rows that are alike.

Rows of a table are alike where they have the same values in all of its columns:

columns   7 7 2 7        keys    (2, 1) (7, 1) (7, 3)
          3 1 1 3        order   2 | 1 | 0 3
                         first   0 1 2 4

`np.unique` over rows compares them as text, which takes some ten times as long as sorting one number per row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints

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


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the least of some ascending values that `percent` of 100 of them do not exceed. There is one at least."""
    return int(ordered[-(-percent * len(ordered) // 100) - 1])


# Rows that are alike --------------------------------------------------------------------------------------------------


MOST_CODES: Final = 2**62
"""Different numbers of rows: with more they might not fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Rows in groups. Rows `order[first[k]:first[k + 1]]`, in their order in the table, have the values `keys[k]`."""

    keys: Ints  # shape (groups, columns), in order
    order: Ints
    first: Ints

    @property
    def counts(self) -> Ints:
        """Rows of each group."""
        return np.diff(self.first)

    @property
    def group(self) -> Ints:
        """The group of each row, in the order `order`."""
        return np.repeat(np.arange(len(self.keys)), self.counts)

    def sums(self, values: Ints) -> Ints:
        """Add up a value of each row, by group."""
        return np.diff(np.append(0, np.cumsum(values[self.order]))[self.first])


def alike(*columns: Ints) -> Alike:
    """Group the rows of a table, given as its columns of integers, each of shape (n,)."""
    codes = _codes(columns)
    order = np.argsort(codes, kind="stable")
    first = np.flatnonzero(np.diff(codes[order], prepend=-1))
    keys = np.column_stack([column[order[first]] for column in columns])
    return Alike(keys, order, np.append(first, len(codes)))


def _codes(columns: tuple[Ints, ...]) -> Ints:
    """One number from 0 for each row, which orders the rows as their columns do."""
    codes, most = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        values, span = _from_zero(column)
        if most * span >= MOST_CODES:
            codes, values = (np.unique(wide, return_inverse=True)[1].reshape(-1) for wide in (codes, values))
            most, span = len(codes), len(codes)
        codes, most = codes * span + values, most * span
    return codes


def _from_zero(column: Ints) -> tuple[Ints, int]:
    """The column less its least value, and how many values it spans."""
    if not len(column):
        return column, 1
    least, largest = int(column.min()), int(column.max())
    return column.astype(np.int64) - least, largest - least + 1
