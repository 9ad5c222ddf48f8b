"""Which ranks share a clock: those of one machine, as long as nothing that they did together speaks against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.analysis.clocks.bounds import Floats, Ints, Mask, Sightings
from ddptrace.analysis.rank_tables import RankTables

SAME_TIE_NS: Final = 1_000_000_000
"""Ranks of one machine whose clocks are further from Unix time than this differ: one was told another time."""

STEPPED_NS: Final = 20_000
"""Ranks of one machine that were tied to Unix time further apart than this: the wall clock was set in between."""

BROKEN_NS: Final = 20_000
BROKEN_COUNT: Final = 3
"""One that ends so long before another of the same clock begins, in so many collectives, is of another clock."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """`number`: of each rank's clock, from 0 on in order of their lowest ranks. `stepped_ns`: how much later a rank's
    instants read than those of its clock's first rank, since the wall clock was set in between. `disproved`: of each
    rank, whether its clock is not that of the first rank whose clock it was told to share."""

    number: Ints
    stepped_ns: Ints
    disproved: tuple[bool, ...]

    @property
    def count(self) -> int:
        return int(self.number.max(initial=-1)) + 1


def clocks_of(tables: Sequence[RankTables], seen: Sightings) -> Clocks:
    """Positions, not ranks, are what is counted here."""
    told = _told(tables)
    strangers = _strangers(seen, told, _stepped_ns(tables, told))
    labels = [(one, at if at in strangers else -1) for at, one in enumerate(told.tolist())]
    order = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    number = np.array([order[label] for label in labels], np.int64)
    firsts: dict[str, int] = {}
    pairs = zip(tables, number.tolist(), strict=True)
    disproved = tuple(own != firsts.setdefault(table.clock, own) for table, own in pairs)
    return Clocks(number, _stepped_ns(tables, number), disproved)


def _told(tables: Sequence[RankTables]) -> Ints:
    """By the clock's name, and how far it is from Unix time."""
    firsts: list[RankTables] = []
    told = []
    for table in tables:
        same = (at for at, first in enumerate(firsts) if _may_share(first, table))
        found = next(same, len(firsts))
        if found == len(firsts):
            firsts.append(table)
        told.append(found)
    return np.array(told, np.int64)


def _may_share(one: RankTables, other: RankTables) -> bool:
    if one.clock != other.clock:
        return False
    return one.tie_ns is None or other.tie_ns is None or abs(one.tie_ns - other.tie_ns) < SAME_TIE_NS


def _stepped_ns(tables: Sequence[RankTables], clocks: Ints) -> Ints:
    """Against the first rank of the same clock."""
    found = np.zeros(len(tables), np.int64)
    for at, table in enumerate(tables):
        first = tables[int(np.argmax(clocks == clocks[at]))]
        if table.tie_ns is not None and first.tie_ns is not None:
            found[at] = table.tie_ns - first.tie_ns
    return np.where(np.abs(found) >= STEPPED_NS, found, 0)


def _strangers(seen: Sightings, told: Ints, stepped_ns: Ints) -> list[int]:
    """Ranks that break their clock's proofs, taken out one by one: the one that breaks most, of equal ones the last."""
    begin = seen.begin_at_ns - stepped_ns[seen.position] - BROKEN_NS
    end = seen.end_at_ns - stepped_ns[seen.position]
    broken = _broken(seen, told, begin, end)
    if not len(broken):
        return []
    rows = np.isin(seen.match, broken)
    begins, ends = np.full((len(broken), len(told)), -np.inf), np.full((len(broken), len(told)), np.inf)
    cells = np.searchsorted(broken, seen.match[rows]), seen.position[rows]
    begins[cells], ends[cells] = begin[rows], end[rows]
    return _taken_out(begins, ends, told)


def _broken(seen: Sightings, told: Ints, begin: Ints, end: Ints) -> Ints:
    """Collectives that ranks of one clock cannot have had together; none where they are few."""
    clocks = int(told.max(initial=0)) + 1
    keys, which = np.unique(seen.match[seen.proves] * clocks + told[seen.position[seen.proves]], return_inverse=True)
    last, first = np.full(len(keys), -(2**62)), np.full(len(keys), 2**62)
    np.maximum.at(last, which, begin[seen.proves])
    np.minimum.at(first, which, end[seen.proves])
    broken = keys[last > first]
    counts = np.bincount(broken % clocks, minlength=clocks)
    many: Mask = counts >= BROKEN_COUNT
    return np.unique(broken[many[broken % clocks]] // clocks)


def _taken_out(begins: Floats, ends: Floats, told: Ints) -> list[int]:
    """By collective and rank: of broken ones, when each began and ended it; infinite where it did not take part.
    Written over: what a rank that goes out broke is taken off, so that the rest need not be counted anew."""
    breaks = np.column_stack([_apart(begins, ends, told, one).sum(axis=1) for one in range(len(told))])
    clocks = (told[:, None] == np.unique(told)).astype(np.float64)
    found: list[int] = []
    while True:
        broken = (breaks > 0) @ clocks > 0
        rows = broken[:, broken.sum(axis=0) >= BROKEN_COUNT].any(axis=1)
        if not rows.any():
            return sorted(found)
        counts = breaks[rows].sum(axis=0)
        one = len(counts) - 1 - int(np.argmax(counts[::-1]))
        found.append(one)
        breaks -= _apart(begins, ends, told, one)
        breaks[:, one], begins[:, one], ends[:, one] = 0, -np.inf, np.inf


def _apart(begins: Floats, ends: Floats, told: Ints, one: int) -> Mask:
    """By collective: with which ranks of its clock this one cannot have been in it."""
    apart: Mask = (told == told[one]) & ((ends[:, one, None] < begins) | (begins[:, one, None] > ends))
    return apart
