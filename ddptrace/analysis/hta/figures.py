"""HTA's five numbers of one rank, by its own formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.load.tables import Work


@dataclass(frozen=True, slots=True)
class Figures:
    """HTA's overlap and temporal breakdown of one rank. Times are ns here, in HTA whole or broken µs. None: HTA gave no
    number (NaN), or there is no such work."""

    overlap_pctg: float | None  # two decimals
    idle_ns: int | None
    compute_ns: int | None
    non_compute_ns: int | None
    kernel_ns: int | None  # first begin to last end


NO_FIGURES: Final = Figures(None, None, None, None, None)


def figures(begin: Ints, end: Ints, kind: Ints, float_zero_us: int | None = None) -> Figures:
    """HTA's formulas over events in integer ns. Without negative lengths they are those of unions.

    With `float_zero_us` (what HTA's instants count from) the lengths come with the errors of its float64 sums.
    """
    if not len(begin):
        return NO_FIGURES
    busy, compute, comm = (
        _merged(begin[chosen], end[chosen])
        for chosen in (np.ones(len(kind), np.bool_), kind == Work.COMPUTE, kind == Work.COMM)
    )
    kernel_ns = int(busy[-1, 1] - busy[0, 0])
    busy_ns, compute_ns = (
        _length(merged) if float_zero_us is None else _float_length(merged, float_zero_us) for merged in (busy, compute)
    )
    idle_ns = kernel_ns - busy_ns
    overlap = _overlap_pctg(comm, compute)
    return Figures(overlap, idle_ns, compute_ns, kernel_ns - compute_ns - idle_ns, kernel_ns)


def _merged(begin: Ints, end: Ints) -> Ints:
    """Groups of intervals that touch, shape (n, 2)."""
    if not len(begin):
        return np.empty((0, 2), np.int64)
    order = np.lexsort((end, begin))
    begin, end = begin[order], end[order]
    opens = np.flatnonzero(np.append(True, begin[1:] > np.maximum.accumulate(end)[:-1]))
    return np.column_stack((begin[opens], np.maximum.reduceat(end, opens)))


def _length(merged: Ints) -> int:
    return int((merged[:, 1] - merged[:, 0]).sum())


def _float_length(merged: Ints, zero_us: int) -> int:
    """HTA takes the sum of all begins, integers, from that of all ends, floats, which is not exact beyond 2^53 µs."""
    begins, ends = ((merged[:, side] - zero_us * 1000) / 1000 for side in (0, 1))
    return round(float(ends.sum() - begins.astype(np.int64).sum()) * 1000)


def _overlap_pctg(comm: Ints, compute: Ints) -> float | None:
    """Both at once over communication, in percent; None where HTA divides by nothing."""
    comm_ns = _length(comm)
    if not comm_ns:
        return None
    at = np.concatenate((comm[:, 0], comm[:, 1], compute[:, 0], compute[:, 1]))
    change = np.repeat((1, -1, 2, -2), (len(comm), len(comm), len(compute), len(compute)))
    order = np.argsort(at, kind="stable")
    at, running = at[order], np.cumsum(change[order])
    both = np.flatnonzero(running[:-1] == 3)
    hidden_ns = int((at[both + 1] - at[both]).sum())
    return float(np.round(100 * (hidden_ns / comm_ns), 2))
