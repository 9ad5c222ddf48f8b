"""Which ranks are to blame that a job hangs: those at the root, for whom all others wait, if only through others.

ABSENT     the others wait for its call, and it is in none that could keep it
LOST       it has left no dump, although most ranks have, and the others wait for nobody else
DEVICE     a collective ended on others, and so with its help, and not on it: its device reports nothing any more
UNSTARTED  its kernel has not begun, and nothing of it is before that, while those of all others have
BEHIND     its peers wait for the same as it does, and have launched more: its host does not go on

A rank that waits for one of these is a victim, whatever others wait for it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddptrace.analysis.diagnosis.waits import GroupKey, Wait, Waits
from ddptrace.load.diagnosis.tables import GroupState, LastCall
from ddptrace.ops import family_of


class Why(enum.Enum):
    ABSENT = enum.auto()
    LOST = enum.auto()
    DEVICE = enum.auto()
    UNSTARTED = enum.auto()
    BEHIND = enum.auto()


@dataclass(frozen=True, slots=True)
class Culprit:
    """`wait`: where others wait for it, those that are in nothing else if there are such."""

    rank: int
    why: Why
    wait: Wait


def culprits(waits: Waits) -> dict[int, Culprit]:
    """By rank, with the surest evidence."""
    found: dict[int, Culprit] = {}
    for evidence in (_device, _unstarted, _absent, _behind, _lost):
        for culprit in list(evidence(waits, found)):
            found.setdefault(culprit.rank, culprit)
    return dict(sorted(found.items()))


Found = Mapping[int, Culprit]
"""By surer evidence."""


def _device(waits: Waits, _: Found) -> Iterator[Culprit]:
    """In order of launch, so that the first call that ended elsewhere is told."""
    shown = (wait for wait in waits.all if wait.ended and family_of(wait.call.op).ends_together)
    found = [(call.seq, Culprit(rank, Why.DEVICE, wait)) for wait in shown for rank, call in wait.inside.items()]
    yield from (culprit for _, culprit in sorted(found, key=lambda one: one[0]))


def _unstarted(waits: Waits, _: Found) -> Iterator[Culprit]:
    for wait in waits.all:
        for rank in wait.busy:
            if not wait.absent and waits.is_head(rank, wait.inside[rank]):
                yield Culprit(rank, Why.UNSTARTED, wait)


def _absent(waits: Waits, _: Found) -> Iterator[Culprit]:
    for rank in sorted(waits.for_rank):
        if waits.head(rank) is None:
            yield Culprit(rank, Why.ABSENT, _most_waited(waits, rank))


def _most_waited(waits: Waits, rank: int) -> Wait:
    """The wait for a rank that waits for no victims, and is the head of the most others."""

    def weight(wait: Wait) -> tuple[bool, bool, int, int]:
        heads = sum(waits.is_head(other, call) for other, call in wait.inside.items())
        no_victims = all(waits.head(other) is None for other in wait.absent)
        return rank in wait.absent, no_victims, heads, -min(call.seq for call in wait.inside.values())

    return max(waits.for_rank[rank], key=weight)


def _behind(waits: Waits, found: Found) -> Iterator[Culprit]:
    """A peer launched more, although the call that the rank launched last, or all that the rank waits for, has not
    ended there either. So the program does not wait for its device at that point, and something else keeps the host."""
    for key, shown in waits.groups.items():
        most = max(group.turns for group in shown.values())
        ahead = [rank for rank, group in shown.items() if group.turns == most and rank not in found]
        for rank, group in shown.items():
            wait = _awaited_next(waits, key, rank) if group.turns < most else None
            if wait is not None and waits.head(rank) is not None and _went_on(waits, rank, ahead):
                yield Culprit(rank, Why.BEHIND, wait)


def _awaited_next(waits: Waits, key: GroupKey, rank: int) -> Wait | None:
    awaited = [wait for wait in waits.for_rank.get(rank, ()) if wait.key == key and rank in wait.absent]
    return min(awaited, key=lambda wait: wait.turn, default=None)


def _went_on(waits: Waits, rank: int, others: Sequence[int]) -> bool:
    last = _place(rank, *waits.launched(rank)[-1])
    pending = set(_pending_places(waits, rank))
    for other in others:
        theirs = _pending_places(waits, other)
        if last in theirs[:-1] or pending <= set(theirs):
            return True
    return False


def _pending_places(waits: Waits, rank: int) -> list[tuple[object, ...]]:
    return [_place(rank, group, call) for group, call in waits.launched(rank) if not call.done]


def _place(rank: int, group: GroupState, call: LastCall) -> tuple[object, ...]:
    """What is alike for calls that ranks with one program make at the same point. A message is like one between ranks
    in the same places of another group, where the program calls both groups the same."""
    if call.peer is None:
        return group.name, group.ranks, call.op, call.turn
    members = sorted(group.ranks)
    places = tuple(members.index(one) if one in members else one for one in (rank, call.peer))
    return group.label, call.op, call.turn, *places


def _lost(waits: Waits, found: Found) -> Iterator[Culprit]:
    """Where everybody else is there."""
    if waits.few:
        return
    explained = waits.behind(found)
    for wait in waits.all:
        heads = [rank for rank, call in wait.inside.items() if waits.is_head(rank, call)]
        if wait.lost and heads and not wait.absent and not set(heads) & explained:
            yield from (Culprit(rank, Why.LOST, wait) for rank in wait.lost)
