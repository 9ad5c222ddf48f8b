"""The calls of a process group: as its ranks made them, and what is unknown if some of its ranks are absent.

Which absent rank came last to a collective is unknown, so the wait of the others cannot be told from the transfer:

rank 0    [==========================)        by these two: a transfer that is as long as their executions
rank 2    [==========================)
rank 1, absent          [============)        in truth they waited for this one, for half of the time
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.ops import family_of

LOOK: Final = 8
"""Number of calls ahead that are searched for a call that differs."""

Key = tuple[str, int | None, str, int | None]
Codes = NDArray[np.int32]
"""A number for each `Key`; -1: no call is known."""


@dataclass(frozen=True, slots=True)
class GroupCall:
    """One call of a group on one rank."""

    turn: int  # k-th of the group from 0, sends and receives left out
    op: str
    nbytes: int | None = None  # of the larger side; None unknown, as in the rest
    dtype: str = ""  # "" unknown
    root: int | None = None  # global rank; None too where the op has none
    origin: str | None = None  # a word of `schema.Origin`
    site: str | None = None  # the program's line
    step: int | None = None
    through: str | None = None  # the line of the library that issued it

    @property
    def key(self) -> Key:
        """The fields in which all ranks must agree."""
        return self.op, self.nbytes if family_of(self.op).same_nbytes else None, self.dtype, self.root


@dataclass(frozen=True, slots=True)
class GroupCalls:
    """A rank's calls of a group by turn, up to its last one. The first may be missing, and some between."""

    rank: int
    marks: Sequence[GroupCall]

    @property
    def end(self) -> int:
        """Turn of the first call that the rank has not made."""
        return self.marks[-1].turn + 1 if self.marks else 0

    def at(self, turn: int) -> GroupCall | None:
        place = bisect_left(self.marks, turn, key=attrgetter("turn"))
        return self.marks[place] if place < len(self.marks) and self.marks[place].turn == turn else None


def differ(one: GroupCall, other: GroupCall) -> bool:
    """Whether two calls differ in a field that is known of both."""
    return any(a != b for a, b in zip(one.key, other.key, strict=True) if a not in (None, "") and b not in (None, ""))


@dataclass(frozen=True, slots=True)
class Partial:
    """A group of which not all ranks are here."""

    name: str
    here: int
    size: int


def is_partial(row: CollectiveRow, here: int) -> bool:
    """Whether the group has more ranks than the `here` that are compared. One of unknown size counts as complete."""
    return row.group_size is not None and row.group_size > here


def partial_matches(matches: Sequence[MatchRow], rows: Iterable[CollectiveRow]) -> dict[int, Partial]:
    """Find the matches of such groups, by `match`. `rows`: of all ranks."""
    wanted = {(match.ranks[0], match.seqs[0]): match for match in matches}
    found = {}
    for row in rows:
        match = wanted.get((row.rank, row.seq)) if row.part == 0 else None
        if match is not None and is_partial(row, len(match.ranks)):
            found[match.match] = Partial(match.group, len(match.ranks), row.group_size or 0)
    return found


def groups_in_part(tables: Sequence[RankTables], met: Sequence[RankTables]) -> list[Partial]:
    """List such groups in which ranks wait for one another, in order of name. `met`: ranks with matched collectives; if
    there are none, all ranks count. A single rank is compared with nobody."""
    if len(tables) < 2:
        return []
    known = {table.row.rank: _groups_of(table) for table in tables}
    sizes = {(name, known[rank].get(name, ())): size for rank, name, size in _waiting(met or tables)}
    found = [Partial(name, _here(name, members, known.values()), size) for (name, members), size in sizes.items()]
    return sorted((group for group in found if group.here < group.size), key=lambda one: (one.name, one.size, one.here))


def _groups_of(table: RankTables) -> dict[str, tuple[int, ...]]:
    """Groups of a rank and their members; empty where only a profiler file shows the group's collectives."""
    shown: dict[str, tuple[int, ...]] = {row.group: () for row in table.collectives}
    return shown | dict(table.facts.groups)


def _waiting(tables: Sequence[RankTables]) -> set[tuple[int, str, int]]:
    """Rank, group and size of the group, of collectives that no rank ends before all have arrived."""
    return {
        (row.rank, row.group, row.group_size)
        for table in tables
        for row in table.collectives
        if row.group_size is not None and family_of(row.op).ends_together
    }


def _here(name: str, members: tuple[int, ...], ranks: Iterable[dict[str, tuple[int, ...]]]) -> int:
    """Number of ranks that know the group. A rank that does not know its members may mean this group."""
    return sum(name in own and (own[name] == members or not own[name] or not members) for own in ranks)
