"""How far times are off that were brought on one time line, where the right ones are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import ClockRow

Ints = NDArray[np.int64]
Key = tuple[int, int]
"""Rank and seq of a collective."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Of one rank: how far each of its collectives' ends is off, and how far it was said to be at most."""

    rank: int
    error_ns: Ints
    stated_ns: Ints

    @property
    def max_us(self) -> float:
        return float(self.error_ns.max()) / 1e3

    @property
    def coverage(self) -> float:
        return float((self.error_ns <= self.stated_ns).mean())

    def __str__(self) -> str:
        median, stated = float(np.median(self.error_ns)) / 1e3, float(np.median(self.stated_ns)) / 1e3
        return (
            f"rank {self.rank}: error at most {self.max_us:.1f} us (median {median:.1f}), stated {stated:.0f} us"
            f" (median), covering {self.coverage:.2%} of {len(self.error_ns)} collectives"
        )


def errors(right: Result, wrong: Result) -> list[Errors]:
    """Of all ranks but the reference, `right` being the same run with right clocks."""
    ends, found = matched_ends(right), matched_ends(wrong)
    assert ends.keys() == found.keys() and ends
    ranks = sorted({rank for rank, _ in ends})
    told = []
    for rank in ranks[1:]:
        keys = [key for key in ends if key[0] == rank]
        good, at = np.array([ends[key] for key in keys]), np.array([found[key] for key in keys])
        stated = stated_ns([row for row in wrong.clocks if row.rank == rank], at)
        told.append(Errors(rank, np.abs(at - good), stated))
    return told


def stated_ns(pieces: list[ClockRow], at: Ints) -> Ints:
    begins = np.array([piece.begin_at_ns for piece in pieces])
    which = np.maximum(np.searchsorted(begins, at, side="right") - 1, 0)
    found = np.zeros(len(at), np.int64)
    for number, piece in enumerate(pieces):
        assert piece.uncertainty_ns is not None and piece.uncertainty_end_ns is not None
        ends, values = (piece.begin_at_ns, piece.end_at_ns + 1), (piece.uncertainty_ns, piece.uncertainty_end_ns)
        found[which == number] = np.interp(at[which == number], ends, values)
    return found


def matched_ends(result: Result) -> dict[Key, int]:
    rows = (row for row in result.collectives if row.match is not None and row.exec_end_at_ns is not None)
    return {(row.rank, row.seq): row.exec_end_at_ns or 0 for row in rows}


def transfers(result: Result) -> dict[tuple[Key, ...], int]:
    """From the last rank's call to the first rank's end, by the times as they stand."""
    ends = matched_ends(result)
    calls = {(row.rank, row.seq): row.launch_at_ns for row in result.collectives if row.part == 0}
    found = {}
    for match in result.matches:
        keys = tuple(zip(match.ranks, match.seqs, strict=True))
        found[keys] = min(ends[key] for key in keys) - max(calls[key] for key in keys)
    return found


def transfer_ratio(right: Result, wrong: Result) -> float:
    """All transfers added, by the fitted clocks against the right ones."""
    good, found = transfers(right), transfers(wrong)
    assert good.keys() == found.keys()
    return sum(found.values()) / sum(good.values())


def transfer_off(right: Result, wrong: Result) -> float:
    """Median over collectives of how far one is off, as a ratio of it."""
    good, found = transfers(right), transfers(wrong)
    return float(np.median([abs(found[key] / ns - 1) for key, ns in good.items() if ns > 0]))
