"""The last collectives that a rank called, by process group, and how many there were before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.diagnosis.tables import GroupState, LastCall, Messages
from ddptrace.load.records.calls import CallOrigin, CallOrigins
from ddptrace.load.records.events import BEGIN, END, FLAGS, NAME, THREAD, A, B, C, F, G, Row
from ddptrace.load.tables import Group
from ddptrace.ops import SEND, family_of
from ddptrace.schema import CallFlag, Kind

LAST: Final = 256
"""Calls of a group that are read: a rank that waits for others is hardly further ahead of them."""

RETURNED: Final = (Kind.WAIT, Kind.PHASE, Kind.STEP, Kind.CALL)
"""What a thread does only outside of a call that it waits for."""

Rows = NDArray[np.void]  # of EVENT_DTYPE


@dataclass(frozen=True, slots=True)
class RankRecords:
    """What a rank's records contain beside the calls. `buckets_of`: kind of each reducer, by number."""

    events: Rows
    text: Callable[[int], str]
    groups: Sequence[Group]
    buckets_of: Mapping[int, str]


def group_states(told: RankRecords) -> tuple[GroupState, ...]:
    """Groups by name: those that the rank described, and those in which it called."""
    calls = np.concatenate([told.events[told.events["kind"] == Kind.CALL], _begun(told.events)])
    calls = calls[np.argsort(calls["begin"], kind="stable")]
    unpaired = [number for number in np.unique(calls["name"]).tolist() if family_of(told.text(number)).is_message]
    is_message = np.isin(calls["name"], unpaired)
    numbers = {told.text(number): number for number in np.unique(calls["d"]).tolist()}
    ranks = {group.name: group.ranks for group in told.groups}
    parts = {name: calls["d"] == numbers.get(name, -1) for name in sorted(ranks.keys() | numbers.keys())}
    paired = {name: calls[mine & ~is_message] for name, mine in parts.items()}
    ends = _Ends(told, np.concatenate([calls[is_message]["a"], *(rows["a"][-LAST:] for rows in paired.values())]))
    states = []
    for name, rows in paired.items():
        gone, gone_turns = _let_go(told, numbers.get(name, -1))
        turns = len(rows) + gone_turns
        messages = () if gone > gone_turns else tuple(_messages(told, calls[parts[name] & is_message], ends))
        states.append(GroupState(name, ranks.get(name, ()), turns, ends.last(rows, turns), messages))
    return tuple(states)


def _begun(events: Rows) -> Rows:
    """Make CALL records of the calls that threads are still issuing, or that ended the process: only their ORIGIN was
    written."""
    calls, origins = events[events["kind"] == Kind.CALL], events[events["kind"] == Kind.ORIGIN]
    begun: Rows = origins[~np.isin(origins["a"], calls["a"]) & (origins["f"] != 0)]
    last = _last_return(events) if len(begun) else {}
    begun = begun[[last.get(row["thread"], 0) <= row["begin"] for row in begun]]
    begun["name"], begun["d"], begun["kind"], begun["flags"] = begun["f"], begun["g"], Kind.CALL, CallFlag.SYNC
    for unknown in ("e", "f", "g"):
        begun[unknown] = 0
    return begun


def _last_return(events: Rows) -> dict[int, int]:
    """Return, by thread, the end of its last activity outside of a call that it waits for."""
    returned = events[np.isin(events["kind"], RETURNED)]
    threads = np.unique(returned["thread"]).tolist()
    return {thread: int(returned["end"][returned["thread"] == thread].max()) for thread in threads}


def _let_go(told: RankRecords, group: int) -> tuple[int, int]:
    """Return how many calls of a group (by string id) went before those that are left, and how many were
    collectives."""
    marks = told.events[(told.events["kind"] == Kind.LET_GO) & (told.events["flags"] == 0)]
    mine = marks[marks["d"] == group]
    return int(mine["a"].sum()), int(mine["b"].sum())


def _messages(told: RankRecords, calls: Rows, ends: _Ends) -> Iterator[Messages]:
    """Yield messages by peer, those sent before those received. Messages with an unknown peer are left out."""
    peers = np.array([-1 if peer is None else peer for peer in ends.peers(calls)], np.int64)
    sends = np.array([family_of(told.text(number)) is SEND for number in calls["name"].tolist()], np.bool_)
    for peer in np.unique(peers[peers >= 0]).tolist():
        for is_send in (True, False):
            mine = calls[(peers == peer) & (sends == is_send)]
            if len(mine):
                yield Messages(peer, is_send, len(mine), ends.last(mine, len(mine)))


class _Ends:
    """How calls of these `seqs` ended, and where they come from."""

    def __init__(self, told: RankRecords, seqs: NDArray[np.int64]) -> None:
        self._told = told
        events = told.events
        origins, done, waits = (
            events[(events["kind"] == kind) & np.isin(events["a"], seqs)]
            for kind in (Kind.ORIGIN, Kind.DONE, Kind.WAIT)
        )
        self._sources = CallOrigins(origins.tolist(), told.text, {group.name: group.ranks for group in told.groups})
        self._done = {row[A]: row for row in reversed(done.tolist())}
        self._waited = set(waits["a"].tolist())
        self._last = _last_return(events)

    def peers(self, calls: Rows) -> list[int | None]:
        return [self._source(row).peer for row in calls.tolist()]

    def last(self, calls: Rows, turns: int) -> tuple[LastCall, ...]:
        """Describe calls in order of launch, of which the last is number `turns` - 1."""
        rows: list[Row] = calls[-LAST:].tolist()
        return tuple(self._call(row, turns - len(rows) + k) for k, row in enumerate(rows))

    def _call(self, row: Row, turn: int) -> LastCall:
        source, done = self._source(row), self._done.get(row[A])
        return LastCall(
            turn,
            row[A],
            self._told.text(row[NAME]),
            max(row[B], row[C]),
            self._told.text(row[G]),
            source.peer,
            source.origin,
            source.site,
            source.through,
            source.module,
            self._told.buckets_of.get(row[F] - 1),
            row[BEGIN],
            bool(row[FLAGS] & CallFlag.SYNC),
            self._is_done(row, done),
            self._error(done),
        )

    def _is_done(self, row: Row, done: Row | None) -> bool | None:
        if done is not None:
            return not done[FLAGS]
        if row[FLAGS] & CallFlag.DEVICE:  # of which the host learns nothing by going on
            return None
        if row[A] in self._waited:
            return True
        if not row[FLAGS] & CallFlag.SYNC:
            return None
        return bool(self._last.get(row[THREAD], 0) > row[END])

    def _error(self, done: Row | None) -> str | None:
        return None if done is None or not done[FLAGS] else self._told.text(done[NAME]) or "an error"

    def _source(self, row: Row) -> CallOrigin:
        return self._sources.of(row, self._told.text(row[NAME]), self._told.text(row[G]))
