"""Who exchanges what with whom, as far as it is known.

A group of two ranks is a link: what one of them sends, the other receives; only of an op with a root it is not recorded
which of them was it. In a larger group a collective's algorithm decides who sends to whom, which is the backend's own
affair, and of a send or receive the peer is not recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.tables import GroupRow, TrafficRow

ROOTED: Final = ("broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class LinkDigest:
    """One process group that was used. Bytes are means per step, computed as `TrafficRow` says.

    `there_nbytes` goes from the first of two ranks to the second, without ops with a root. None in a larger group,
    and, like `back_nbytes`, where nothing of the rank that sends it was recorded."""

    group: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    sent_nbytes: int  # by all of its ranks
    there_nbytes: int | None
    back_nbytes: int | None
    rooted_nbytes: int  # of `sent_nbytes`, by ops with a root
    peers_unknown: bool  # send or recv among more than two ranks


def links(
    groups: Sequence[GroupRow], rows: Iterable[TrafficRow], counts: Callable[[int], int]
) -> tuple[LinkDigest, ...]:
    """The most sent first. `counts`: the number of steps that a rank's rows are of."""
    by_group: defaultdict[str, list[TrafficRow]] = defaultdict(list)
    for row in rows:
        by_group[row.group].append(row)
    found = [_link(group, mine, counts) for group in groups if (mine := _of(group, by_group[group.group]))]
    return tuple(sorted(found, key=lambda one: (-one.sent_nbytes, one.group)))


def _of(group: GroupRow, rows: Iterable[TrafficRow]) -> list[TrafficRow]:
    """Groups of different ranks may have one name."""
    return [row for row in rows if row.rank in group.ranks and row.group_size in (None, len(group.ranks))]


def _link(group: GroupRow, rows: Sequence[TrafficRow], counts: Callable[[int], int]) -> LinkDigest:
    sent, rooted = dict.fromkeys(group.ranks, 0.0), 0.0
    for row in rows:
        nbytes = (row.sent_nbytes or 0) / counts(row.rank)
        if row.op in ROOTED:
            rooted += nbytes
        else:
            sent[row.rank] += nbytes
    seen = {row.rank for row in rows}
    there, back = (round(sent[one]) if one in seen else None for one in group.ranks) if len(sent) == 2 else (None, None)
    return LinkDigest(
        group.group, group.ranks, group.hosts, round(sum(sent.values()) + rooted), there, back, round(rooted),
        peers_unknown=len(sent) > 2 and any(row.op.startswith(("send", "recv")) for row in rows),
    )  # fmt: skip
