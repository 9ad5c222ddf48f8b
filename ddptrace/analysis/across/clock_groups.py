"""Which ranks share a clock: those of one machine, as long as nothing that they did together speaks against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.across.clock_bounds import Ints, Sightings
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
    found: list[int] = []
    begin = seen.begin_at_ns - stepped_ns[seen.position] - BROKEN_NS
    end = seen.end_at_ns - stepped_ns[seen.position]
    while len(broken := _broken(seen, told, begin, end, found)):
        rows = np.isin(seen.match, broken) & ~np.isin(seen.position, found)
        counts = _breaks(seen.match[rows], seen.position[rows], begin[rows], end[rows], told)
        found.append(len(counts) - 1 - int(np.argmax(counts[::-1])))
    return sorted(found)


def _broken(seen: Sightings, told: Ints, begin: Ints, end: Ints, without: Sequence[int]) -> Ints:
    """Collectives that ranks of one clock cannot have had together; none where they are few."""
    kept = seen.proves & ~np.isin(seen.position, without)
    clocks = int(told.max(initial=0)) + 1
    keys, which = np.unique(seen.match[kept] * clocks + told[seen.position[kept]], return_inverse=True)
    last, first = np.full(len(keys), -(2**62)), np.full(len(keys), 2**62)
    np.maximum.at(last, which, begin[kept])
    np.minimum.at(first, which, end[kept])
    broken = keys[last > first]
    counts = np.bincount(broken % clocks, minlength=clocks)
    many: NDArray[np.bool_] = counts >= BROKEN_COUNT
    return np.unique(broken[many[broken % clocks]] // clocks)


def _breaks(match: Ints, position: Ints, begin: Ints, end: Ints, told: Ints) -> Ints:
    """With how many others each rank cannot have been, over these collectives."""
    rows, row = np.unique(match, return_inverse=True)
    begins, ends = np.full((len(rows), len(told)), -np.inf), np.full((len(rows), len(told)), np.inf)
    begins[row, position], ends[row, position] = begin, end
    counts = np.zeros(len(told), np.int64)
    for one in range(len(told)):
        same = told == told[one]
        apart = (ends[:, one, None] < begins) | (begins[:, one, None] > ends)
        counts[one] = int(apart[:, same].sum())
    return counts
