"""Links from a rank's span of a collective to the other ranks' spans of the same one, found without asking them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.tables.collectives import CollectiveRow

LINKS_MAX: Final = 8
"""Links from one span. The ranks of a larger group still hang together, each linked to the next of the ring; without a
bound a step of n ranks would cost n * n of them, and the SDK keeps 128 and drops the rest without a word."""

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class LinkTo:
    """The span of this key, on another rank in the same step."""

    rank: int
    key: Key


def rings(rank: int, groups: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
    """Of each group that the rank is in: those that come after it, the first after the last."""
    return {name: _after(rank, ranks)[:LINKS_MAX] for name, ranks in groups.items() if rank in ranks}


def _after(rank: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
    place = ranks.index(rank)
    return ranks[place + 1 :] + ranks[:place]


def collective_key(row: CollectiveRow) -> Key:
    """By its turn, which is the same on all ranks of its group; a send or receive has none, and nobody to link to."""
    if row.turn is None:
        return "collective", row.group, row.ordinal
    return "collective", row.group, "turn", row.turn


def links_of(row: CollectiveRow, ring: Mapping[str, tuple[int, ...]]) -> tuple[LinkTo, ...]:
    """To the same collective in the same step. Where ranks have parted (`Result.desyncs`) these lead nowhere."""
    if row.turn is None:
        return ()
    key = collective_key(row)
    return tuple(LinkTo(rank, key) for rank in ring.get(row.group, ()))
