"""The calls of a process group as its ranks made them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.ops import family_of

LOOK: Final = 8
"""So many calls ahead tell what became of the one that differs."""

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
        """What all ranks have to agree in."""
        return self.op, self.nbytes if family_of(self.op).same_nbytes else None, self.dtype, self.root


@dataclass(frozen=True, slots=True)
class GroupCalls:
    """A rank's calls of a group by turn, up to its last one. The first may be missing, and some between."""

    rank: int
    marks: Sequence[GroupCall]

    @property
    def end(self) -> int:
        """Turn of the call that it has not made."""
        return self.marks[-1].turn + 1 if self.marks else 0

    def at(self, turn: int) -> GroupCall | None:
        place = bisect_left(self.marks, turn, key=attrgetter("turn"))
        return self.marks[place] if place < len(self.marks) and self.marks[place].turn == turn else None


def differ(one: GroupCall, other: GroupCall) -> bool:
    """In what is known of both."""
    return any(a != b for a, b in zip(one.key, other.key, strict=True) if a not in (None, "") and b not in (None, ""))
