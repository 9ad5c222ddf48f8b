"""The same calls of a group on all its ranks, up to where they part.

turn      9          10         11         12         13
rank 0    bucket 0   bucket 1   loss       bucket 0   bucket 1
rank 1    bucket 0   bucket 1   bucket 0   bucket 1               from 11 on: rank 1 left the loss out
rank 2    bucket 0   bucket 1                                     from 11 on: rank 2 called nothing more

What became of a call that differs from the others' is told by what follows it, and by what always followed before:

others    x a b c d
missing   a b c d          the rank left x out
extra     y x a b c        it alone called y
reordered a x b c d
order     y a b c d        something else in its place; "size", "dtype" or "root" where it is the same but for that

Ranks that block on such a call show no more: then what always came next in the calls before stands in for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ddptrace.analysis.matching.calls import LOOK, Codes, GroupCall, GroupCalls, Key, differ
from ddptrace.analysis.tables.ranks import DesyncRow


@dataclass(frozen=True, slots=True)
class Parting:
    """`turn`: the first at which two ranks called different things; None where none did. `rows`: by rank, those that
    part from the others there, and those that called less than others."""

    turn: int | None
    rows: tuple[DesyncRow, ...]


def parting(group: str, ranks: Sequence[GroupCalls]) -> Parting:
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

    def __init__(self, ranks: Sequence[GroupCalls]) -> None:
        self.ranks = ranks
        self.begin = min((one.marks[0].turn for one in ranks if one.marks), default=0)
        self.end = max(one.end for one in ranks)
        self.codes: Codes = np.full((len(ranks), self.end - self.begin), -1, np.int32)
        numbers: dict[Key, int] = {}
        for row, calls in zip(self.codes, ranks, strict=True):
            turns = np.array([mark.turn for mark in calls.marks], np.int64) - self.begin
            row[turns] = [numbers.setdefault(mark.key, len(numbers)) for mark in calls.marks]

    def first_difference(self) -> int | None:
        known = np.where(self.codes < 0, np.iinfo(np.int32).max, self.codes)
        for place in np.flatnonzero(known.min(axis=0) < self.codes.max(axis=0)).tolist():
            alike = {mark.key: mark for _, mark in self.at(self.begin + place)}
            if any(differ(one, other) for one, other in combinations(alike.values(), 2)):
                return self.begin + int(place)
        return None

    def at(self, turn: int) -> Iterator[tuple[int, GroupCall]]:
        """Position of each rank that has a call there, and the call."""
        for position, calls in enumerate(self.ranks):
            mark = calls.at(turn)
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
    for calls in table.ranks:
        if calls.end < table.end and (first is None or calls.end < first):
            position, expected = next(table.at(calls.end), (None, None))
            if position is not None and expected is not None:
                yield _desync_row(group, calls.rank, calls.end, "missing", None, table.ranks[position].rank, expected)


def _parted(group: str, table: _Table, first: int) -> Iterator[DesyncRow]:
    history, marks = History(table.agreed(first)), dict(table.at(first))
    most = _majority(table, first, history)
    expected, rank = marks[most[0]], table.ranks[most[0]].rank
    others = Side(expected, max((table.ahead(position, first) for position in most), key=len))
    for position, calls in enumerate(table.ranks):
        own = marks.get(position)
        if own is None and calls.end == first:
            yield _desync_row(group, calls.rank, first, "missing", None, rank, expected)
        elif own is not None and differ(own, expected):
            kind = kind_of(Side(own, table.ahead(position, first)), others, history)
            yield _desync_row(group, calls.rank, first, kind, own, rank, expected)


def _majority(table: _Table, first: int, history: History) -> list[int]:
    """Positions of the ranks that called what most did; as many did something else, what was to be expected."""
    alike: dict[int, list[int]] = {}
    for position, _ in table.at(first):
        alike.setdefault(int(table.codes[position, first - table.begin]), []).append(position)
    expected = history.next(())[:1]
    return max(
        alike.items(), key=lambda one: (len(one[1]), [one[0]] == expected, history.is_usual(one[0]), -one[1][0])
    )[1]


def _desync_row(
    group: str, rank: int, turn: int, kind: str, own: GroupCall | None, expected_rank: int, expected: GroupCall
) -> DesyncRow:
    called = own or GroupCall(turn, "")
    return DesyncRow(
        group,
        turn,
        rank,
        kind,
        called.op,
        called.nbytes,
        called.dtype,
        called.site,
        called.step,
        expected.op,
        expected.nbytes,
        expected.dtype,
        expected.site,
        expected_rank,
        called.root,
        expected.root,
        called.origin,
        expected.origin,
        called.through,
        expected.through,
    )


# What became of a call that differs -----------------------------------------------------------------------------------


REMEMBERED: Final = 10_000
"""Calls, counted back, in which a habit is looked for."""
Numbers = Sequence[int]


@dataclass(frozen=True, slots=True)
class Story:
    """One telling of what happened: leave out the first so many calls on either side, and the rest is the same."""

    kind: str
    theirs: int
    mine: int

    def fits(self, theirs: Numbers, mine: Numbers) -> tuple[int, bool]:
        """How many calls it explains, at most `LOOK`; and whether there is none that speaks against it."""
        bonus = self.mine if self.kind == "reordered" else 0
        count, pairs = 0, list(zip(theirs[self.theirs :], mine[self.mine :], strict=False))[:LOOK]
        while count < len(pairs) and pairs[count][0] == pairs[count][1]:
            count += 1
        return min(bonus + count, LOOK), count == len(pairs)


class History:
    """The calls before, on which all agree."""

    def __init__(self, agreed: Codes) -> None:
        self._agreed = agreed[-REMEMBERED:]
        self._usual = set(np.unique(agreed).tolist())

    def is_usual(self, code: int) -> bool:
        return code in self._usual

    def next(self, tail: Numbers) -> list[int]:
        """Twice `LOOK` calls that come next if all goes on as before, as far as it tells: of two guesses the shorter
        one would seem to be the worse. `tail`: calls after those agreed on."""
        found: list[int] = []
        while len(found) < 2 * LOOK and (more := self._next([*tail, *found])):
            found += more
        return found[: 2 * LOOK]

    def _next(self, tail: Numbers) -> list[int]:
        """What followed when the same calls had been made, the longest such stretch and then the latest; nothing where
        the last of them is new."""
        so_far = [*self._agreed[-LOOK:].tolist(), *tail][-LOOK:]
        for length in range(min(len(so_far), len(self._agreed) - 1), 0, -1):
            seen = sliding_window_view(self._agreed[:-1], length)
            found = np.flatnonzero((seen == so_far[-length:]).all(axis=1))
            if len(found):
                after = int(found[-1]) + length
                return [int(code) for code in self._agreed[after : after + 2 * LOOK]]
        return []


@dataclass(frozen=True, slots=True)
class Side:
    """What a rank called at the turn and after it."""

    mark: GroupCall
    codes: Numbers


def kind_of(own: Side, others: Side, history: History) -> str:
    """One word of `DesyncRow.kind`."""
    guessed = [
        (*side.codes, *history.next(side.codes)) if len(side.codes) <= LOOK else side.codes for side in (others, own)
    ]
    best, score = "", (0, False, 0)
    for story in _stories(others.codes, own.codes):
        known, unbroken = story.fits(others.codes, own.codes)
        likely, _ = story.fits(*guessed)
        if max(known, likely) and (known, unbroken, likely) > score:
            best, score = story.kind, (known, unbroken, likely)
    if best in ("", "order") and _same_place(own.mark, others.mark):
        return _in_what(own.mark, others.mark)
    return best or _by_habit(own, others, history)


def _stories(theirs: Numbers, mine: Numbers) -> Iterator[Story]:
    """Likeliest first, where nothing else decides."""
    for count in range(1, LOOK + 1):
        yield Story("missing", count, 0)
        yield Story("extra", 0, count)
    for width in range(2, LOOK + 1):
        if len(theirs) >= width <= len(mine) and sorted(theirs[:width]) == sorted(mine[:width]):
            yield Story("reordered", width, width)
            break
    yield Story("order", 1, 1)


def _same_place(own: GroupCall, other: GroupCall) -> bool:
    """As far as both are known."""
    pairs = (own.origin, other.origin), (own.site, other.site), (own.through, other.through)
    return own.op == other.op and all(a == b for a, b in pairs if a is not None and b is not None)


def _in_what(own: GroupCall, other: GroupCall) -> str:
    if own.dtype != other.dtype and own.dtype and other.dtype:
        return "dtype"
    return "size" if own.key[1] != other.key[1] else "root"


def _by_habit(own: Side, others: Side, history: History) -> str:
    mine, theirs = history.is_usual(own.codes[0]), history.is_usual(others.codes[0])
    if mine == theirs:
        return "order"
    return "missing" if mine else "extra"
