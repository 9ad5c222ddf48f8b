"""Who exchanges what with whom, as far as it is known.

Sends and receives tell it themselves, and so do ops that have a root. A group of two ranks is a link: what one of them
sends, the other receives. In a larger group a collective's algorithm decides who sends to whom, which is the backend's
own affair. Runs before schema 1.3 tell no peer of sends and receives, and no root of the ops that have one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.tables.collectives import GroupRow
from ddptrace.analysis.tables.traffic import TrafficRow
from ddptrace.ops import RECEIVE, SEND, Root, Whole, family_of

ANY_SOURCE: Final = "recv_any_source"
Ends = tuple[int, int]
"""Global ranks: the one that sends, the one that receives."""


@dataclass(frozen=True, slots=True)
class MessageDigest:
    """Sends and receives from one rank to another, in all their groups: means per step. A receive from any source names
    no sender, so it counts in none."""

    source: int  # global rank that sends
    destination: int  # global rank that receives
    messages: float  # as their sender recorded them, or else their receiver
    nbytes: int  # of the same, each message once
    sent_nbytes: int | None  # as the sender recorded; None where it recorded nothing
    received_nbytes: int | None  # as the receiver recorded; None where it recorded nothing


@dataclass(frozen=True, slots=True)
class RootDigest:
    """Ops of one group with one root: means per step."""

    op: str  # operation
    group: str  # process group
    root: int  # global rank
    ranks: int  # ranks that issue it
    calls: float  # number of calls
    sent_nbytes: int  # by the whole group, computed: what one other rank has part in, once for each of them


@dataclass(frozen=True, slots=True)
class Sum:
    """Of the messages that one end recorded."""

    messages: float
    nbytes: float


def messages(rows: Iterable[TrafficRow], counts: Callable[[int], int]) -> tuple[MessageDigest, ...]:
    """The most bytes first. `counts`: the number of steps that a rank's rows are of."""
    sent, received = both_ends(rows, counts)
    found = [_message(ends, sent.get(ends), received.get(ends)) for ends in {**sent, **received}]
    return tuple(sorted(found, key=lambda one: (-one.nbytes, one.source, one.destination)))


def both_ends(
    rows: Iterable[TrafficRow], counts: Callable[[int], int] = lambda rank: 1
) -> tuple[Mapping[Ends, Sum], Mapping[Ends, Sum]]:
    """What was sent and what was received, by who recorded it. Calls without a known peer are left out."""
    sent: defaultdict[Ends, Sum] = defaultdict(lambda: Sum(0, 0))
    received: defaultdict[Ends, Sum] = defaultdict(lambda: Sum(0, 0))
    for row in rows:
        if row.peer is None:
            continue
        if row.op == SEND.name:
            _add(sent, (row.rank, row.peer), row.calls, row.nbytes_in, counts(row.rank))
        elif row.op == RECEIVE.name:
            _add(received, (row.peer, row.rank), row.calls, row.nbytes_out, counts(row.rank))
    return sent, received


def _add(sums: defaultdict[Ends, Sum], ends: Ends, calls: int, nbytes: int | None, steps: int) -> None:
    so_far = sums[ends]
    sums[ends] = Sum(so_far.messages + calls / steps, so_far.nbytes + (nbytes or 0) / steps)


def _message(ends: Ends, sent: Sum | None, received: Sum | None) -> MessageDigest:
    counted = sent or received
    assert counted is not None
    nbytes = [None if sum_ is None else round(sum_.nbytes) for sum_ in (sent, received)]
    return MessageDigest(*ends, counted.messages, round(counted.nbytes), *nbytes)


def roots(rows: Iterable[TrafficRow], counts: Callable[[int], int]) -> tuple[RootDigest, ...]:
    """The most sent first."""
    alike: defaultdict[tuple[str, str, int], list[TrafficRow]] = defaultdict(list)
    for row in rows:
        if family_of(row.op).root is not None and row.peer is not None:
            alike[row.op, row.group, row.peer].append(row)
    found = [_root(what, mine, counts) for what, mine in alike.items()]
    return tuple(sorted(found, key=lambda one: (-one.sent_nbytes, one.op, one.group, one.root)))


def _root(what: tuple[str, str, int], rows: Sequence[TrafficRow], counts: Callable[[int], int]) -> RootDigest:
    ranks = {row.rank for row in rows}
    steps = sum(map(counts, ranks))
    sent = sum(_of_one(row) * ((row.group_size or 1) - 1) for row in rows)
    return RootDigest(*what, len(ranks), sum(row.calls for row in rows) / steps, round(sent / steps))


def _of_one(row: TrafficRow) -> int:
    """Bytes between the root and one other rank; every rank of the group recorded its own."""
    return (row.nbytes_out if family_of(row.op).whole is Whole.INPUT else row.nbytes_in) or 0


# Links: groups of two ranks -------------------------------------------------------------------------------------------


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
    found = [_link(group, mine, counts) for group in groups if (mine := _of_link(group, by_group[group.group]))]
    return tuple(sorted(found, key=lambda one: (-one.sent_nbytes, one.group)))


def _of_link(group: GroupRow, rows: Iterable[TrafficRow]) -> list[TrafficRow]:
    """Groups of different ranks may have one name."""
    return [row for row in rows if row.rank in group.ranks and row.group_size in (None, len(group.ranks))]


def _link(group: GroupRow, rows: Sequence[TrafficRow], counts: Callable[[int], int]) -> LinkDigest:
    seen = {row.rank for row in rows}
    sent, rooted, messages = dict.fromkeys(group.ranks, 0.0), 0.0, 0.0
    for row in rows:
        nbytes, sender = (row.sent_nbytes or 0) / counts(row.rank), _sender(row, group.ranks)
        messages += nbytes if family_of(row.op) is SEND else 0
        if sender is None:
            rooted += nbytes
        else:  # of an op with a root each of two ranks tells half
            sent[sender] += nbytes * (2 / len(seen) if family_of(row.op).root is not None and len(sent) == 2 else 1)
    there, back = (
        (round(sent[rank]) if rank in seen else None for rank in group.ranks) if len(sent) == 2 else (None, None)
    )
    return LinkDigest(
        group.group,
        group.ranks,
        group.hosts,
        round(sum(sent.values()) + rooted),
        there,
        back,
        round(rooted),
        round(messages),
        peers_unknown=len(sent) > 2 and any(_is_hidden(row, seen, group.ranks) for row in rows),
    )


def _sender(row: TrafficRow, ranks: Sequence[int]) -> int | None:
    """Which of two ranks sends; in a larger group all do, on average. None where the root is not known."""
    root = family_of(row.op).root
    if root is None:
        return row.rank
    if row.peer is None or len(ranks) != 2:
        return None if row.peer is None else row.rank
    return row.peer if root is Root.FROM else next(rank for rank in ranks if rank != row.peer)


def _is_hidden(row: TrafficRow, seen: Collection[int], ranks: Collection[int]) -> bool:
    """Whether messages are in nobody's count of a pair. Those received from any source are in that of their sender."""
    nobody = row.peer is None and family_of(row.op).is_message
    return nobody and (row.op != ANY_SOURCE or len(seen) < len(ranks))
