"""Who exchanges what with whom, as far as it is known.

A group of two ranks is a link: what one of them sends, the other receives. In a larger group a collective's algorithm
decides who sends to whom, which is the backend's own affair; of sends and receives see `MessageDigest`. Runs before
schema 1.3 tell no peer of these, and no root of the ops that have one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ddptrace.analysis.peer_digest import ANY_SOURCE, FROM_ROOT, ROOTED, SEND
from ddptrace.analysis.tables import GroupRow, TrafficRow


@dataclass(frozen=True, slots=True)
class LinkDigest:
    """One process group that was used. Bytes are means per step, computed as in `traffic`."""

    group: str  # name of the group
    ranks: tuple[int, ...]  # its global ranks
    hosts: tuple[str, ...]  # hosts of its ranks
    sent_nbytes: int  # by all of its ranks
    there_nbytes: int | None  # from the first of two ranks to the second, without ops whose root is not known; None in
    #   a larger group, and, as back_nbytes, where the rank that sends recorded nothing
    back_nbytes: int | None  # from the second to the first
    rooted_nbytes: int  # part of sent, by ops whose root is not known
    message_nbytes: int  # part of sent, by sends
    peers_unknown: bool  # of messages among more than two ranks, neither end tells the other


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
    seen = {row.rank for row in rows}
    sent, rooted, messages = dict.fromkeys(group.ranks, 0.0), 0.0, 0.0
    for row in rows:
        nbytes, sender = (row.sent_nbytes or 0) / counts(row.rank), _sender(row, group.ranks)
        messages += nbytes if row.op == SEND else 0
        if sender is None:
            rooted += nbytes
        else:  # of an op with a root each of two ranks tells half
            sent[sender] += nbytes * (2 / len(seen) if row.op in ROOTED and len(sent) == 2 else 1)
    there, back = (round(sent[one]) if one in seen else None for one in group.ranks) if len(sent) == 2 else (None, None)
    return LinkDigest(
        group.group, group.ranks, group.hosts, round(sum(sent.values()) + rooted), there, back, round(rooted),
        round(messages), peers_unknown=len(sent) > 2 and any(_is_hidden(row, seen, group.ranks) for row in rows),
    )  # fmt: skip


def _sender(row: TrafficRow, ranks: Sequence[int]) -> int | None:
    """Which of two ranks sends; in a larger group all do, on average. None where the root is not known."""
    if row.op not in ROOTED:
        return row.rank
    if row.peer is None or len(ranks) != 2:
        return None if row.peer is None else row.rank
    return row.peer if row.op in FROM_ROOT else next(rank for rank in ranks if rank != row.peer)


def _is_hidden(row: TrafficRow, seen: Collection[int], ranks: Collection[int]) -> bool:
    """Whether messages are in nobody's count of a pair. Those received from any source are in that of their sender."""
    nobody = row.peer is None and row.op.startswith(("send", "recv"))
    return nobody and (row.op != ANY_SOURCE or len(seen) < len(ranks))
