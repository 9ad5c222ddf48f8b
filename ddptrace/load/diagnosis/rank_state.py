"""Reads the last of one rank's records: what the rank was doing, and its last calls by process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.findings import ENDED_BY_EXCEPTION, NAMES_LOST, RECORDS_LOST
from ddptrace.load.alive import process_of
from ddptrace.load.diagnosis.tables import GroupState, LastCall, Messages, RankState
from ddptrace.load.records import described
from ddptrace.load.records.calls import CallOrigin, CallOrigins
from ddptrace.load.records.described import phase_of, pulse_of
from ddptrace.load.records.rank_events import (
    BEGIN,
    BESIDE,
    END,
    FLAGS,
    KIND,
    NAME,
    THREAD,
    A,
    B,
    C,
    Clock,
    F,
    G,
    RankEvents,
    Row,
)
from ddptrace.load.tables import Group, Pulse
from ddptrace.ops import SEND, family_of
from ddptrace.record import Records
from ddptrace.schema import CallFlag, Kind, Phase

LAST_STEPS: Final = 32

OUTSIDE: Final = (Kind.PHASE, Kind.STEP, Kind.WAIT, Kind.HOOK, Kind.RPC, Kind.RPC_WAIT)
"""Kinds that end after a call only if the host has gone on."""
BEYOND: Final = (Kind.STEP, Kind.PHASE)
"""The same for a call whose failure has ended the wait for it."""

IN_BACKWARD: Final = ("gradients", "hook", "unused-parameters", "rebuild")
LOST_CODES: Final = (RECORDS_LOST.code, NAMES_LOST.code)


def rank_state(
    records: Records, meta: Mapping[str, Any], *, rank: int, zero_unix_ns: int, until_ns: int, apart_ns: int = 0
) -> RankState:
    """`until_ns`: later records are left out, so that ranks that are read one after the other are compared at the same
    time. `apart_ns`: how far the rank's clock is ahead; all its instants are corrected by that."""
    return _State(records, meta, rank, zero_unix_ns, until_ns, apart_ns).build()


def newest_at_ns(records: Records, zero_unix_ns: int) -> int | None:
    """Return when the newest record began, by the rank's own clock; None if that cannot be tied to the run's zero."""
    clock = Clock.of(records.events, zero_unix_ns)
    near = clock.near(records.events)["begin"]
    return int(near.max()) + clock.shift_ns if clock.tie_ns is not None and len(near) else None


class _State:
    def __init__(
        self, records: Records, meta: Mapping[str, Any], rank: int, zero_unix_ns: int, until_ns: int, apart_ns: int
    ) -> None:
        told = RankEvents(records, zero_unix_ns, apart_ns=apart_ns, until_ns=until_ns)
        self.events, self.of, self.text = told.events, told.of, told.text
        self.ready_at_ns = _last_ready(records.ready) + told.shift_ns if len(records.ready) else 0
        self.born_before_unix_ns = int(told.clock.unix[0])
        self.told, self.records, self.meta, self.rank = told, records, meta, rank

    def json(self, kind: Kind) -> list[tuple[int, dict[str, Any]]]:
        """Return instant and content of each record of a kind with JSON text."""
        return [(row[BEGIN], content) for row, content in self.told.described(self.told.rows(kind))]

    def build(self) -> RankState:
        groups = self.groups()
        process = process_of(self.meta, self.born_before_unix_ns)
        last, beat = self.last_at_ns(), self.beat_at_ns()
        group, pending = self.pending(groups)
        pulse = self.pulse(last)
        step, step_ns = self.steps()
        failed_at_ns, failure = self.failure(groups)
        return RankState(
            rank=self.rank,
            host=str(self.meta.get("host", "?")),
            pid=pid if isinstance(pid := self.meta.get("pid"), int) else 0,
            alive=process.runs,
            stopped=process.stopped,
            closed=self.records.closed,
            counted=self.is_counted(),
            step=step,
            step_ns=step_ns,
            phase=self.phase(pulse, pending),
            did_last=self.did_last(),
            pending=pending,
            pending_group=group,
            pulse=pulse,
            last_at_ns=last,
            beat_at_ns=beat,
            failure=failure,
            failed_at_ns=failed_at_ns,
            groups=groups,
        )

    def groups(self) -> tuple[GroupState, ...]:
        reducers = described.reducers([content for _, content in self.json(Kind.REDUCER)], [])
        told = described.groups([content for _, content in self.json(Kind.GROUP)])
        return _group_states(
            _RankRecords(self.events, self.text, told, {reducer.reducer: reducer.kind for reducer in reducers})
        )

    def last_at_ns(self) -> int:
        """Return the last begin or end of a record of the training. A description has no end."""
        mine = self.events[~np.isin(self.events["kind"], BESIDE)]
        return max((int(mine[name].max()) for name in ("begin", "end") if len(mine)), default=0) or self.beat_at_ns()

    def beat_at_ns(self) -> int:
        return max((int(self.events[name].max()) for name in ("begin", "end") if len(self.events)), default=0)

    def did_last(self) -> str:
        """Say what ended last: a phase, an update, or a wait."""
        rows = self.of(Kind.PHASE, Kind.STEP, Kind.WAIT)
        row = rows[np.argsort(rows["end"], kind="stable")][-1:].tolist()
        if not row:
            return ""
        phase = phase_of(row[0][FLAGS]) if row[0][KIND] == Kind.PHASE else None
        return phase.name.lower() if phase else "wait" if row[0][KIND] == Kind.WAIT else "end of a step"

    def is_counted(self) -> bool:
        """Whether no call is missing except those that were deleted and counted, and none was changed since."""
        partial = (self.of(Kind.STEP)["b"] != 0).any()
        lost = any(note.get("code") in LOST_CODES for _, note in self.json(Kind.NOTE))
        return not (partial or lost or self.records.dropped or self.records.damaged)

    def steps(self) -> tuple[int | None, int | None]:
        """Return the step that the rank is in, and the median length of the last steps."""
        rows = self.of(Kind.STEP)
        rows = rows[rows["flags"] == rows["flags"].max()] if len(rows) else rows
        last: dict[int, Row] = {row[A]: row for row in rows.tolist()}
        lengths = [row[END] - row[BEGIN] for _, row in sorted(last.items())[-LAST_STEPS:]]
        if not last:
            return (0 if len(self.of(Kind.CALL, Kind.PHASE)) else None), None
        return max(last) + 1, int(np.median(lengths))

    def pending(self, groups: tuple[GroupState, ...]) -> tuple[str, LastCall | None]:
        """Return the newest call if the host has not gone on since, or has failed in it."""
        newest = [(group.name, call) for group in groups for call in _newest(group)]
        name, call = max(newest, key=lambda found: found[1].launch_at_ns, default=("", None))
        if call is None or call.done:
            return "", None
        outside = self.of(*(OUTSIDE if call.error is None else BEYOND))
        has_gone_on = len(outside) and int(outside["end"].max()) > call.launch_at_ns
        return ("", None) if has_gone_on else (name, call)

    def pulse(self, last_at_ns: int) -> Pulse | None:
        rows: list[Row] = self.of(Kind.PULSE)[-1:].tolist()
        if not rows or rows[0][BEGIN] < last_at_ns:
            return None
        return pulse_of(rows[0], self.text)

    def phase(self, pulse: Pulse | None, pending: LastCall | None) -> Phase | None:
        """Return the phase of a rank that goes on: only its pulse and its communication show it."""
        if pulse is not None and pulse.phase is not None:
            return pulse.phase
        if pending is not None and pending.origin in IN_BACKWARD:
            return Phase.BACKWARD
        if pending is not None and pending.origin == "buffers":
            return Phase.FORWARD
        outside = self.of(Kind.PHASE, Kind.STEP)
        return Phase.BACKWARD if self.ready_at_ns > max(outside["end"].tolist(), default=0) else None

    def failure(self, groups: tuple[GroupState, ...]) -> tuple[int | None, str | None]:
        """Return the exception that ended the trace, else the first failed call after which the rank did not go on."""
        said = [
            (at, str(note.get("message")).partition(": ")[2])
            for at, note in self.json(Kind.NOTE)
            if note.get("code") == ENDED_BY_EXCEPTION.code
        ]
        done, steps = self.of(Kind.DONE), self.of(Kind.STEP)
        gone_on_ns = max(steps["end"].tolist(), default=0)
        rows: list[Row] = done[(done["flags"] != 0) & (done["begin"] > gone_on_ns)].tolist()
        found = said or [(row[BEGIN], f"{self.op_of(row[A], groups)} failed: {self.text(row[NAME])}") for row in rows]
        return min(found, default=(None, None), key=lambda one: one[0] or 0)

    def op_of(self, seq: int, groups: tuple[GroupState, ...]) -> str:
        found = (call.op for group in groups for call in (*group.calls, *_newest(group)) if call.seq == seq)
        return next(found, "a collective").rstrip("_")


def _newest(group: GroupState) -> list[LastCall]:
    return [*group.calls[-1:], *(call for message in group.messages for call in message.calls[-1:])]


def _last_ready(ready: NDArray[np.void]) -> int:
    """Rows hold up to seven deltas; unused deltas are 0."""
    return int((ready["base"] + ready["deltas"].max(axis=1)).max())


# The last calls, by process group -------------------------------------------------------------------------------------


LAST_CALLS: Final = 256
"""Calls of a group that are read: a rank that waits for others is hardly further ahead of them."""

RETURNED: Final = (Kind.WAIT, Kind.PHASE, Kind.STEP, Kind.CALL)
"""What a thread does only outside of a call that it waits for."""

Rows = NDArray[np.void]  # of EVENT_DTYPE


@dataclass(frozen=True, slots=True)
class _RankRecords:
    """What a rank's records contain beside the calls. `buckets_of`: kind of each reducer, by number."""

    events: Rows
    text: Callable[[int], str]
    groups: Sequence[Group]
    buckets_of: Mapping[int, str]


def _group_states(told: _RankRecords) -> tuple[GroupState, ...]:
    """Groups by name: those that the rank described, and those in which it called."""
    calls = np.concatenate([told.events[told.events["kind"] == Kind.CALL], _begun(told.events)])
    calls = calls[np.argsort(calls["begin"], kind="stable")]
    unpaired = [number for number in np.unique(calls["name"]).tolist() if family_of(told.text(number)).is_message]
    is_message = np.isin(calls["name"], unpaired)
    numbers = {told.text(number): number for number in np.unique(calls["d"]).tolist()}
    ranks = {group.name: group.ranks for group in told.groups}
    parts = {name: calls["d"] == numbers.get(name, -1) for name in sorted(ranks.keys() | numbers.keys())}
    paired = {name: calls[mine & ~is_message] for name, mine in parts.items()}
    ends = _Ends(told, np.concatenate([calls[is_message]["a"], *(rows["a"][-LAST_CALLS:] for rows in paired.values())]))
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


def _let_go(told: _RankRecords, group: int) -> tuple[int, int]:
    """Return how many calls of a group (by string id) went before those that are left, and how many were
    collectives."""
    marks = told.events[(told.events["kind"] == Kind.LET_GO) & (told.events["flags"] == 0)]
    mine = marks[marks["d"] == group]
    return int(mine["a"].sum()), int(mine["b"].sum())


def _messages(told: _RankRecords, calls: Rows, ends: _Ends) -> Iterator[Messages]:
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

    def __init__(self, told: _RankRecords, seqs: NDArray[np.int64]) -> None:
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
        rows: list[Row] = calls[-LAST_CALLS:].tolist()
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
