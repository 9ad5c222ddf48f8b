"""The same calls of a group on all its ranks, up to where they part.

turn      9          10         11         12         13
rank 0    bucket 0   bucket 1   loss       bucket 0   bucket 1
rank 1    bucket 0   bucket 1   bucket 0   bucket 1               from 11 on: rank 1 left the loss out
rank 2    bucket 0   bucket 1                                     from 11 on: rank 2 called nothing more
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter

import numpy as np

from ddptrace.analysis.matching.calls import LOOK, Calls, Codes, Key, Mark, differ
from ddptrace.analysis.matching.desync_kinds import History, Side, kind_of
from ddptrace.analysis.tables.ranks import DesyncRow


@dataclass(frozen=True, slots=True)
class Parting:
    """`turn`: the first at which two ranks called different things; None where none did. `rows`: by rank, those that
    part from the others there, and those that called less than others."""

    turn: int | None
    rows: tuple[DesyncRow, ...]


def parting(group: str, ranks: Sequence[Calls]) -> Parting:
    """Of a group on two ranks at least, given by rank. A rank that called less than others is told at its end: where
    the run still goes on, it may only be on its way."""
    table = _Table(ranks)
    first = table.first_difference()
    rows = list(_behind(group, table, first))
    if first is not None:
        rows += _parted(group, table, first)
    return Parting(first, tuple(sorted(rows, key=attrgetter("rank"))))


class _Table:
    """The ranks' calls as numbers, one row each. `codes` begins at the first turn that any of them shows."""

    def __init__(self, ranks: Sequence[Calls]) -> None:
        self.ranks = ranks
        self.begin = min((one.marks[0].turn for one in ranks if one.marks), default=0)
        self.end = max(one.end for one in ranks)
        self.codes: Codes = np.full((len(ranks), self.end - self.begin), -1, np.int32)
        numbers: dict[Key, int] = {}
        for row, one in zip(self.codes, ranks, strict=True):
            turns = np.array([mark.turn for mark in one.marks], np.int64) - self.begin
            row[turns] = [numbers.setdefault(mark.key, len(numbers)) for mark in one.marks]

    def first_difference(self) -> int | None:
        known = np.where(self.codes < 0, np.iinfo(np.int32).max, self.codes)
        for place in np.flatnonzero(known.min(axis=0) < self.codes.max(axis=0)).tolist():
            alike = {mark.key: mark for _, mark in self.at(self.begin + place)}
            if any(differ(one, other) for one, other in combinations(alike.values(), 2)):
                return self.begin + int(place)
        return None

    def at(self, turn: int) -> Iterator[tuple[int, Mark]]:
        """Position of each rank that has a call there, and the call."""
        for position, one in enumerate(self.ranks):
            mark = one.at(turn)
            if mark is not None:
                yield position, mark

    def agreed(self, turn: int) -> Codes:
        """What was called before, by whoever shows it."""
        before: Codes = self.codes[:, : turn - self.begin].max(axis=0)
        return before

    def ahead(self, position: int, turn: int) -> list[int]:
        """What one rank called from there on, without a gap; enough to look `LOOK` calls ahead from any of `LOOK`."""
        codes: list[int] = self.codes[position, turn - self.begin :][: 2 * LOOK].tolist()
        return codes[: codes.index(-1)] if -1 in codes else codes


def _behind(group: str, table: _Table, first: int | None) -> Iterator[DesyncRow]:
    """Ranks that made their last call while others made another. After the ranks parted that tells nothing."""
    for one in table.ranks:
        if one.end < table.end and (first is None or one.end < first):
            position, expected = next(table.at(one.end), (None, None))
            if position is not None and expected is not None:
                yield _row(group, one.rank, one.end, "missing", None, table.ranks[position].rank, expected)


def _parted(group: str, table: _Table, first: int) -> Iterator[DesyncRow]:
    history, marks = History(table.agreed(first)), dict(table.at(first))
    most = _majority(table, first, history)
    expected, rank = marks[most[0]], table.ranks[most[0]].rank
    others = Side(expected, max((table.ahead(position, first) for position in most), key=len))
    for position, one in enumerate(table.ranks):
        own = marks.get(position)
        if own is None and one.end == first:
            yield _row(group, one.rank, first, "missing", None, rank, expected)
        elif own is not None and differ(own, expected):
            kind = kind_of(Side(own, table.ahead(position, first)), others, history)
            yield _row(group, one.rank, first, kind, own, rank, expected)


def _majority(table: _Table, first: int, history: History) -> list[int]:
    """Positions of the ranks that called what most did; as many did something else, what was to be expected."""
    alike: dict[int, list[int]] = {}
    for position, _ in table.at(first):
        alike.setdefault(int(table.codes[position, first - table.begin]), []).append(position)
    expected = history.next(())[:1]
    return max(
        alike.items(), key=lambda one: (len(one[1]), [one[0]] == expected, history.is_usual(one[0]), -one[1][0])
    )[1]


def _row(
    group: str, rank: int, turn: int, kind: str, own: Mark | None, expected_rank: int, expected: Mark
) -> DesyncRow:
    called = own or Mark(turn, "")
    return DesyncRow(
        group, turn, rank, kind, called.op, called.nbytes, called.dtype, called.site, called.step,
        expected.op, expected.nbytes, expected.dtype, expected.site, expected_rank, called.root, expected.root,
        called.origin, expected.origin,
    )  # fmt: skip
