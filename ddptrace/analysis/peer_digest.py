"""Who sends what to whom, where the calls themselves tell: sends and receives, and the roots of ops that have one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.tables import TrafficRow

SEND: Final = "send"
RECEIVE: Final = "recv"
ANY_SOURCE: Final = "recv_any_source"
FROM_ROOT: Final = ("broadcast", "scatter")
ROOTED: Final = (*FROM_ROOT, "reduce", "gather")

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
        if row.op == SEND:
            _add(sent, (row.rank, row.peer), row.calls, row.nbytes_in, counts(row.rank))
        elif row.op == RECEIVE:
            _add(received, (row.peer, row.rank), row.calls, row.nbytes_out, counts(row.rank))
    return sent, received


def _add(sums: defaultdict[Ends, Sum], ends: Ends, calls: int, nbytes: int | None, steps: int) -> None:
    so_far = sums[ends]
    sums[ends] = Sum(so_far.messages + calls / steps, so_far.nbytes + (nbytes or 0) / steps)


def _message(ends: Ends, sent: Sum | None, received: Sum | None) -> MessageDigest:
    counted = sent or received
    assert counted is not None
    nbytes = [None if one is None else round(one.nbytes) for one in (sent, received)]
    return MessageDigest(*ends, counted.messages, round(counted.nbytes), *nbytes)


def roots(rows: Iterable[TrafficRow], counts: Callable[[int], int]) -> tuple[RootDigest, ...]:
    """The most sent first."""
    alike: defaultdict[tuple[str, str, int], list[TrafficRow]] = defaultdict(list)
    for row in rows:
        if row.op in ROOTED and row.peer is not None:
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
    return (row.nbytes_out if row.op == "scatter" else row.nbytes_in) or 0
