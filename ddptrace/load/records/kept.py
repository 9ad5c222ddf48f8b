"""What is left of a rank's records if `ddptrace.Keep` deleted some, or left some steps unrecorded.

records   [ window's ]  gap      [========================]
steps     ├─ 5 ─┤─ 6 ─┤ 7 ┄┄┄ 71 ├─ 72 ─┤ 73 ┤─ 74 ─┤        7 to 71: deleted; 73: not recorded
whole           ├─ 6 ─┤          ├─ 72 ─┤    ├─ 74 ─┤        5 began before its first record that is left
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.records.rank_events import BEGIN, END, FLAGS, KIND, NAME, A, B, D, Row
from ddptrace.schema import Kind, StepEnd

Span = tuple[int, int]
Number = tuple[int, int | None]

LONG_AGO: Final = -(2**62)
IN_STEPS: Final = (Kind.CALL, Kind.PHASE, Kind.HOOK)
"""Kinds that describe a step only together: a part of them would mislead."""


@dataclass(frozen=True, slots=True)
class Kept:
    """`steps`: one record, by ordinal, of each whole step; `partial`: of the others, as far as known.
    `unseen`: stretches of time of which records may be missing, in order."""

    steps: tuple[Row, ...]
    partial: tuple[Row, ...]
    unseen: NDArray[np.int64]  # shape (n, 2)
    let_go: int  # records

    def seen(self, at: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether all records that began at that time are left."""
        if not len(self.unseen):
            return np.ones(len(at), np.bool_)
        nth = np.searchsorted(self.unseen[:, 0], at, side="right") - 1
        found: NDArray[np.bool_] = (nth < 0) | (at >= self.unseen[np.maximum(nth, 0), 1])
        return found


def kept(steps: Iterable[Row], marks: Sequence[Row]) -> Kept:
    """`steps`: STEP records as written; `marks`: LET_GO records as written."""
    last = _last(steps)
    gaps = [(mark[BEGIN], mark[END]) for mark in marks if not mark[FLAGS] and not mark[D]]
    whole = [row for row in last if not row[B] and not any(_meets(row, gap) for gap in gaps)]
    numbers = {row[A] for row in whole}
    partial = [row for row in last if row[A] not in numbers]
    skipped = [(row[BEGIN], row[END]) for row in partial if row[B]]
    unseen = _merged([_around(gap, whole) for gap in gaps] + skipped)
    return Kept(tuple(whole), tuple(partial), unseen, sum(m[A] for m in marks if not m[FLAGS] and not m[D]))


def _last(steps: Iterable[Row]) -> list[Row]:
    """The steps by the strongest kind of end; of several records of one step the last."""
    known = set(StepEnd)
    rows = [row for row in steps if row[FLAGS] in known and row[END] >= row[BEGIN]]
    strongest = max((row[FLAGS] for row in rows), default=0)
    last = {row[A]: row for row in rows if row[FLAGS] == strongest}
    return [row for _, row in sorted(last.items())]


def _meets(step: Row, gap: Span) -> bool:
    met: bool = step[BEGIN] < gap[1] and gap[0] < step[END]
    return met


def _around(gap: Span, whole: Sequence[Row]) -> Span:
    """Return the stretches from the last whole step before a gap to the first after it: only parts are left in
    between."""
    begin = max((row[END] for row in whole if row[END] <= gap[0]), default=LONG_AGO)
    return begin, min((row[BEGIN] for row in whole if row[BEGIN] >= gap[1]), default=gap[1])


def _merged(spans: Iterable[Span]) -> NDArray[np.int64]:
    found: list[list[int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(end, found[-1][1])
        else:
            found.append([begin, end])
    return np.array(found, np.int64).reshape(-1, 2)


def call_numbers(calls: Sequence[Row], written: Iterable[Row], unpaired: set[int]) -> list[Number]:
    """Return each call's number in its group, and its number among calls that are no send or receive (None for these).

    `calls` in order of launch; `written`: CALL and LET_GO records as written, to count the calls deleted before a call.
    `unpaired`: ids of the ops that are sends and receives."""
    before = _let_go_before(written)
    counts: dict[int, int] = defaultdict(int)
    turns: dict[int, int] = defaultdict(int)
    numbers: list[Number] = []
    for row in calls:
        group = row[D]
        gone, gone_turns = before.get(row[A], (0, 0))
        is_paired = row[NAME] not in unpaired
        numbers.append((counts[group] + gone, turns[group] + gone_turns if is_paired else None))
        counts[group] += 1
        turns[group] += is_paired
    return numbers


def _let_go_before(written: Iterable[Row]) -> dict[int, tuple[int, int]]:
    """Return, by seq, how many calls of its group were deleted before a call, all and paired; without those with
    none."""
    calls: Counter[int] = Counter()
    paired: Counter[int] = Counter()
    before: dict[int, tuple[int, int]] = {}
    for row in written:
        group = row[D]
        if row[KIND] == Kind.CALL:
            if calls[group]:
                before[row[A]] = calls[group], paired[group]
        elif group and not row[FLAGS]:
            calls[group] += row[A]
            paired[group] += row[B]
    return before
