"""Tells from Flight Recorder dumps who waits for whom in every process group, and which ranks are to blame.

A device carries out what its host launched one after the other. So a rank waits in the first of its calls that has not
ended, its `head`, and all later ones only wait for that:

            head
rank 0      recv from 2      all_gather #9    all_reduce #4
rank 1      all_gather #9    all_reduce #4                     waits for rank 0, which is still before #9
rank 2      all_to_all #5    send to 0                         waits for rank 3; its send has not begun
rank 3                                                         has not called #5: nobody else keeps it

Ranks are to blame where all others wait for them, if only through others:

ABSENT     the others wait for its call, and it is in none that could keep it
LOST       it has left no dump, although most ranks have, and the others wait for nobody else
DEVICE     a collective ended on others, and so with its help, and not on it: its device reports nothing any more
UNSTARTED  its kernel has not begun, and nothing of it is before that, while those of all others have
BEHIND     its peers wait for the same as it does, and have launched more: its host does not go on

A rank that waits for one of these is a victim, whatever others wait for it.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from ddptrace.load.diagnosis.tables import GroupState, JobState, LastCall, RankState
from ddptrace.ops import SEND, family_of

GroupKey = tuple[str, tuple[int, ...]]
"""Name and ranks: two groups may have one name."""
Calls = Mapping[int, LastCall]
"""By rank."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A collective that ranks are in, or a message of which one side at least is there."""

    key: GroupKey
    label: str  # what the program calls the group
    turn: int
    inside: Calls  # ranks that have launched it, and on which it has not ended
    absent: tuple[int, ...]  # ranks that have not launched it
    busy: tuple[int, ...]  # ranks that have launched it, and have not come to it
    ended: tuple[int, ...]  # ranks on which it has ended
    lost: tuple[int, ...]  # ranks of the group without a dump

    @property
    def call(self) -> LastCall:
        return self.inside[min(self.inside)]

    @property
    def awaited(self) -> tuple[int, ...]:
        return (*self.absent, *self.busy)

    @property
    def is_message(self) -> bool:
        return family_of(self.call.op).is_message


class Waits:
    """All waits of a job."""

    def __init__(self, job: JobState) -> None:
        self.job = job
        self.states: dict[int, RankState] = {state.rank: state for state in job.ranks}
        self.all: tuple[Wait, ...] = tuple(self._all())

    @property
    def few(self) -> bool:
        """Most ranks have left nothing, so that what one of them lacks tells nothing of the job."""
        return 2 * len(self.states) < (self.job.world_size or 0)

    def head(self, rank: int) -> LastCall | None:
        state = self.states.get(rank)
        return state.pending if state is not None else None

    def is_head(self, rank: int, call: LastCall) -> bool:
        return call is self.head(rank)

    @cached_property
    def of_rank(self) -> Mapping[int, list[Wait]]:
        """By rank, the waits that keep it: that of its head, and others that not all have launched."""
        found: dict[int, list[Wait]] = defaultdict(list)
        for wait in self.all:
            for rank, call in wait.inside.items():
                if wait.absent or self.is_head(rank, call):
                    found[rank].append(wait)
        return found

    @cached_property
    def for_rank(self) -> Mapping[int, list[Wait]]:
        """By rank, the waits that it keeps from ending."""
        found: dict[int, list[Wait]] = defaultdict(list)
        for wait in self.all:
            for rank in wait.awaited:
                found[rank].append(wait)
        return found

    @cached_property
    def head_of(self) -> Mapping[int, Wait]:
        """By rank, the wait that its head is in."""
        return {rank: wait for wait in self.all for rank, call in wait.inside.items() if self.is_head(rank, call)}

    @cached_property
    def groups(self) -> Mapping[GroupKey, dict[int, GroupState]]:
        found: dict[GroupKey, dict[int, GroupState]] = defaultdict(dict)
        for state in self.job.ranks:
            for group in state.groups:
                found[group.name, group.ranks][state.rank] = group
        return found

    def launched(self, rank: int) -> list[tuple[GroupState, LastCall]]:
        """Return what a rank launched, in order, with the group of each."""
        groups = self.states[rank].groups
        return sorted(((group, call) for group in groups for call in group.calls), key=lambda one: one[1].seq)

    def behind(self, ranks: Iterable[int]) -> set[int]:
        """Return all ranks that wait for these, directly or because others do; and these."""
        reached = set(ranks)
        left, followed = list(reached), set[int]()
        while left:
            for wait in self.for_rank.get(left.pop(), ()):
                if id(wait) in followed:
                    continue
                followed.add(id(wait))
                more = {rank for rank, call in wait.inside.items() if wait.absent or self.is_head(rank, call)} - reached
                reached |= more
                left += more
        return reached

    def _all(self) -> Iterator[Wait]:
        for key, shown in self.groups.items():
            yield from self._collectives(key, shown)
            yield from self._messages(key, shown)

    def _collectives(self, key: GroupKey, shown: Mapping[int, GroupState]) -> Iterator[Wait]:
        pending: dict[int, dict[int, LastCall]] = defaultdict(dict)
        for rank, group in shown.items():
            for call in group.calls:
                if not call.done and not family_of(call.op).is_message:
                    pending[call.turn][rank] = call
        for turn, inside in sorted(pending.items()):
            here = [rank for rank in key[1] if rank in self.states and rank not in inside]
            ended = tuple(rank for rank in here if rank in shown and shown[rank].turns >= turn)
            absent = tuple(rank for rank in here if rank not in ended)
            yield self._wait(key, turn, inside, absent, ended)

    def _messages(self, key: GroupKey, shown: Mapping[int, GroupState]) -> Iterator[Wait]:
        """Pair sends that have not ended with receives that have not, in order, between each two ranks.

        A message without another side keeps a rank only where it is the rank's head: before that it may lie there,
        unread."""
        open_calls = {rank: _open_messages(group) for rank, group in shown.items()}
        for rank, mine in open_calls.items():
            for (peer, is_send), calls in mine.items():
                theirs = open_calls.get(peer, {}).get((rank, not is_send), [])
                for call, other in zip_longest(calls, theirs[: len(calls)]):
                    if other is None and self.is_head(rank, call):
                        absent = (peer,) if peer in self.states else ()
                        yield self._wait(key, call.turn, {rank: call}, absent, members=(peer,))
                    elif other is not None and is_send and (self.is_head(rank, call) or self.is_head(peer, other)):
                        yield self._wait(key, call.turn, {rank: call, peer: other}, members=(rank, peer))

    def _wait(
        self,
        key: GroupKey,
        turn: int,
        inside: Calls,
        absent: tuple[int, ...] = (),
        ended: tuple[int, ...] = (),
        *,
        members: tuple[int, ...] = (),
    ) -> Wait:
        label = next((group.label for group in self.groups[key].values() if group.label), "")
        busy = tuple(rank for rank, call in inside.items() if not self._has_come(rank, call, inside))
        lost = tuple(rank for rank in members or key[1] if rank not in self.states and rank not in self.job.doubts)
        return Wait(key, label, turn, inside, absent, busy, ended, lost)

    def _has_come(self, rank: int, call: LastCall, inside: Calls) -> bool:
        """Whether the rank's device is at this call. Where kernels are timed, one that has not begun while others have
        is kept by something that is no collective."""
        if not self.is_head(rank, call):
            return False
        return bool(call.started) or not any(other.started for other in inside.values())


def _open_messages(group: GroupState) -> dict[tuple[int, bool], list[LastCall]]:
    """By peer and whether they are sends, the messages that have not ended."""
    found: dict[tuple[int, bool], list[LastCall]] = defaultdict(list)
    for call in group.calls:
        if not call.done and call.peer is not None and family_of(call.op).is_message:
            found[call.peer, family_of(call.op) is SEND].append(call)
    return found


# Who is to blame ------------------------------------------------------------------------------------------------------


class Why(enum.Enum):
    """The evidence against a rank: see above."""

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


Found = Mapping[int, Culprit]
"""By surer evidence."""


def culprits(waits: Waits) -> dict[int, Culprit]:
    """Return the ranks that are to blame, each with the surest evidence."""
    found: dict[int, Culprit] = {}
    for evidence in (_device, _unstarted, _absent, _behind, _lost):
        for culprit in list(evidence(waits, found)):
            found.setdefault(culprit.rank, culprit)
    return dict(sorted(found.items()))


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
