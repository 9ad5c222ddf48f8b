"""Makes a `RankRun` of one rank's records. The reader has already dropped damaged records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddptrace.findings import (
    CLOCK_STEPPED,
    DESCRIPTIONS_LET_GO,
    KINDS,
    RECORDS_DAMAGED,
    RECORDS_DROPPED,
    RECORDS_TORN,
    STOPPED_WATCHING,
    UNKNOWN,
    Finding,
)
from ddptrace.load.records import described
from ddptrace.load.records.calls import CallOrigins, rank_rpc, splits_by_call, with_proven_ends
from ddptrace.load.records.described import clock_name, host_load
from ddptrace.load.records.device_times import call_events, device_events, device_name, stream_waits
from ddptrace.load.records.kept import IN_STEPS, Kept, Number, call_numbers, kept
from ddptrace.load.records.rank_events import (
    BEGIN,
    DEVICE,
    END,
    FLAGS,
    NAME,
    NATIVE,
    PROFILED,
    SYNC,
    THREAD,
    A,
    B,
    C,
    Clock,
    D,
    E,
    F,
    G,
    RankEvents,
    Row,
)
from ddptrace.load.records.units import UnitCalls, described_units, unit_events
from ddptrace.load.tables import Call, DeviceEvents, HookCall, Pause, PhaseMark, RankRun, Ready, StepMark
from ddptrace.ops import family_of
from ddptrace.record import Records
from ddptrace.schema import Kind, Phase, StepEnd

CLOCK_STEP_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class WindowMark:
    """A profiler window as the rank noted it; begin and end are None if torch did not report them."""

    file: str
    begin_at_ns: int | None
    end_at_ns: int | None
    by_user: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """One rank's records in tables: all of `RankRun` except what Kineto files add, and what joining them needs."""

    run: RankRun
    clock: Clock
    windows: tuple[WindowMark, ...]
    done_threads: Mapping[int, int]  # seq: system thread id on which its completion was stamped
    findings: tuple[Finding, ...]
    files_let_go: int = 0  # of the profiler


def rank_run(records: Records, meta: Mapping[str, Any], *, rank: int, zero_unix_ns: int | None) -> Recorded:
    """Put one rank's records together. Unknown kinds of a newer minor version are skipped."""
    return _Builder(RankEvents(records, zero_unix_ns), records, meta, rank).build()


class _Builder:
    def __init__(self, events: RankEvents, records: Records, meta: Mapping[str, Any], rank: int) -> None:
        self.events = events
        self.text = events.text
        self.clock = events.clock
        self.records = records
        self.meta = meta
        self.rank = rank
        self.threads = {int(row[THREAD]): int(row[A]) for row in self.rows(Kind.THREAD)}
        groups = self.json(Kind.GROUP)
        self.groups, self.sizes = described.groups(groups), described.sizes(groups)
        ranks = {group.name: group.ranks for group in self.groups}
        self.sources = CallOrigins(self.rows(Kind.ORIGIN), self.text, ranks)
        self.unit_calls = UnitCalls(self.rows(Kind.UNIT_CALL))
        self.splits = splits_by_call(self.rows(Kind.SPLIT))
        self.ties = self.rows(Kind.DEVICE_CLOCK)
        self.call_events = call_events(self.ties, self.rows(Kind.DEVICE_CALL))
        self.stream_waits = stream_waits(self.ties, self.rows(Kind.DEVICE_WAIT))
        self.kept: Kept = kept(events.rows(Kind.STEP), events.rows(Kind.LET_GO))

    def rows(self, kind: Kind) -> list[Row]:
        """Return the records in order of begin, without those of partial steps."""
        found = self.events.of(kind)
        if kind in IN_STEPS:
            found = found[self.kept.seen(found["begin"])]
        return self._in_order(found)

    def _in_order(self, found: NDArray[np.void]) -> list[Row]:
        ordered: list[Row] = found[np.argsort(found["begin"], kind="stable")].tolist()
        return ordered

    def json(self, kind: Kind) -> list[dict[str, Any]]:
        """Return the JSON texts of a kind, in order of begin."""
        return [content for _, content in self.events.described(self.rows(kind))]

    def build(self) -> Recorded:
        begin, end = self._span()
        done = {row[A]: row for row in reversed(self.rows(Kind.DONE))}
        phases = self._phases()
        run = RankRun(
            rank=self.rank,
            host=str(self.meta.get("host", "?")),
            pid=pid if isinstance(pid := self.meta.get("pid"), int) else 0,
            device=str(self.meta.get("device", "?")),
            clean=self.records.closed,
            dropped=self.records.dropped,
            begin_at_ns=begin,
            end_at_ns=end,
            steps=self._step_marks(self.kept.steps),
            phases=phases,
            calls=with_proven_ends(self._calls(done), phases),
            hooks=self._hooks(done),
            ready=self._ready(),
            reducers=described.reducers(self.json(Kind.REDUCER), self.json(Kind.LAYOUT)),
            groups=self.groups,
            windows=(),
            pauses=tuple(Pause(r[BEGIN], r[END], self.text(r[NAME])) for r in self.rows(Kind.PAUSE)),
            rpc=rank_rpc(self.rows, self.text, self.json(Kind.RPC_WORKER), self.threads),
            partial_steps=self._step_marks(self.kept.partial),
            let_go=self.kept.let_go,
            sampled=any(row[B] for row in self.kept.partial),
            load=host_load(self.rows, self.text, self.kept),
            clock=clock_name(self.meta),
            tie_ns=self.clock.tie_ns,
            device_events=self._device_events(),
            units=described_units(self.json(Kind.UNIT)),
            unit_events=unit_events(self.rows(Kind.UNIT_MARK)),
            unrecorded_from_at_ns=self._unrecorded_from(),
        )
        done_threads = {seq: self.threads.get(row[THREAD], 0) for seq, row in done.items()}
        files_let_go = max((row[A] for row in self.rows(Kind.FILE_LET_GO)), default=0)
        return Recorded(run, self.clock, self._windows(), done_threads, self._findings(), files_let_go)

    def _device_events(self) -> DeviceEvents | None:
        marks, name = self.rows(Kind.DEVICE_MARK), self.text(device_name(self.ties))
        return device_events(self.ties, marks, self.stream_waits.get(0, ()), name)

    def _unrecorded_from(self) -> int | None:
        """When ddptrace stopped watching collectives; None where it never did."""
        begin = f"{STOPPED_WATCHING} collectives:"
        notes = self.events.described(self.rows(Kind.NOTE))
        return min((row[BEGIN] for row, note in notes if str(note.get("message")).startswith(begin)), default=None)

    def _span(self) -> tuple[int, int]:
        begins = self.events.events["begin"]
        return (int(begins.min()), int(begins.max())) if len(begins) else (0, 0)

    def _step_marks(self, rows: Sequence[Row]) -> tuple[StepMark, ...]:
        return tuple(
            StepMark(row[A], StepEnd(row[FLAGS]), row[BEGIN], row[END], self.text(row[NAME]), row[E]) for row in rows
        )

    def _phases(self) -> tuple[PhaseMark, ...]:
        known = set(Phase)
        return tuple(
            PhaseMark(
                phase := Phase(row[FLAGS]),
                row[BEGIN],
                row[END],
                self.threads.get(row[THREAD], 0),
                row[A] if phase is Phase.BACKWARD else None,
            )
            for row in self.rows(Kind.PHASE)
            if row[FLAGS] in known and row[END] >= row[BEGIN]
        )

    def _calls(self, done: Mapping[int, Row]) -> tuple[Call, ...]:
        waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row in self.rows(Kind.WAIT):
            waits[row[A]].append((row[BEGIN], row[END]))
        rows = self._in_order(self.events.of(Kind.CALL))  # all count, whatever is left out
        seen = self.kept.seen(np.array([row[BEGIN] for row in rows], np.int64)).tolist()
        return tuple(
            self._call(row, number, done.get(row[A]), tuple(waits.get(row[A], ())))
            for row, number, is_seen in zip(rows, self._numbers(rows), seen, strict=True)
            if is_seen
        )

    def _numbers(self, calls: Sequence[Row]) -> list[Number]:
        written = self.events.rows(Kind.CALL, Kind.LET_GO) if self.kept.let_go else ()
        unpaired = {row[NAME] for row in calls if family_of(self.text(row[NAME])).is_message}
        return call_numbers(calls, written, unpaired)

    def _call(self, row: Row, number: Number, done: Row | None, waits: tuple[tuple[int, int], ...]) -> Call:
        op, dtype, group = self.text(row[NAME]), self.text(row[G]), self.text(row[D])
        return Call(
            seq=row[A],
            op=op,
            group=group,
            ordinal=number[0],
            launch_at_ns=row[BEGIN],
            issued_at_ns=row[END],
            nbytes_in=row[B],
            nbytes_out=row[C],
            dtype=dtype,
            thread=self.threads.get(row[THREAD], 0),
            is_sync=bool(row[FLAGS] & SYNC),
            is_native=bool(row[FLAGS] & NATIVE),
            is_profiled=bool(row[FLAGS] & PROFILED),
            on_device=bool(row[FLAGS] & DEVICE),
            reducer=row[F] - 1 if row[F] else None,
            hook=row[E] or None,
            done_at_ns=None if done is None else done[BEGIN],
            error=None if done is None or not done[FLAGS] else self.text(done[NAME]) or "an error",
            waits=waits,
            exec=None,
            turn=number[1],
            group_size=self.sizes.get(group),
            events=self.call_events.get(row[A]),
            stream_waits=self.stream_waits.get(row[A], ()),
            **self.sources.of(row, op, dtype)._asdict(),
            **self.unit_calls.of(row[A])._asdict(),
            sent_nbytes=self.splits.get(row[A]),
        )

    def _hooks(self, done: Mapping[int, Row]) -> tuple[HookCall, ...]:
        return tuple(
            HookCall(
                seq=row[A],
                name=self.text(row[NAME]),
                reducer=row[F] - 1,
                index=row[D],
                backward=row[C],
                nbytes=row[B],
                dtype=self.text(row[G]),
                begin_at_ns=row[BEGIN],
                end_at_ns=row[END],
                done_at_ns=done[row[A]][BEGIN] if row[A] in done else None,
            )
            for row in self.rows(Kind.HOOK)
        )

    def _ready(self) -> tuple[Ready, ...]:
        """Unpack the runs: up to seven (parameter, base + delta) each."""
        slots = self.records.ready
        slots = slots[self.kept.seen(slots["base"] + self.clock.shift_ns)]
        taken = np.arange(slots["deltas"].shape[1]) < slots["count"][:, None]
        at = slots["base"][:, None] + slots["deltas"].astype(np.int64) + self.clock.shift_ns
        keys = (slots["reducer"].astype(np.int64) << 32) | slots["backward"].astype(np.int64)
        by_key = np.argsort(keys, kind="stable")
        cuts = np.flatnonzero(np.diff(keys[by_key])) + 1
        found = []
        for mine in np.split(by_key, cuts) if len(keys) else ():
            key, chosen = int(keys[mine[0]]), taken[mine]
            when, which = at[mine][chosen], slots["parameters"][mine][chosen].astype(np.int64)
            order = np.argsort(when, kind="stable")
            found.append(Ready(key >> 32, key & 0xFFFFFFFF, which[order], when[order]))
        return tuple(sorted(found, key=lambda ready: (ready.backward, ready.reducer)))

    def _windows(self) -> tuple[WindowMark, ...]:
        shift = self.clock.shift_ns  # an unset stamp was recorded as 0
        newest_gone = max((row[NAME] for row in self.rows(Kind.FILE_LET_GO)), default=0)  # the oldest go first
        return tuple(
            WindowMark(
                self.text(row[NAME]),
                None if row[BEGIN] == shift else row[BEGIN],
                None if row[END] == shift else row[END],
                bool(row[FLAGS]),
            )
            for row in self.rows(Kind.WINDOW)
            if row[NAME] > newest_gone
        )

    def _findings(self) -> tuple[Finding, ...]:
        where = f"rank {self.rank}"
        found = [
            Finding(code, KINDS.get(code, UNKNOWN).severity, where, str(note.get("message", "")))
            for note in self.json(Kind.NOTE)
            for code in [str(note.get("code", UNKNOWN.code))]
        ]
        found += [RECORDS_DAMAGED(where, f"{text}; the intact part is used") for text in self.records.damaged]
        if self.records.torn:
            message = f"{self.records.torn} records were torn or overwritten and are left out"
            found.append(RECORDS_TORN(where, message))
        found += [RECORDS_DROPPED(where, message) for message in dropped_words(self.records)]
        described = sum(row[B] for row in self.events.rows(Kind.LET_GO) if row[FLAGS])
        if described:
            message = (
                f"{described} descriptions of reducers and bucket layouts, and notes, were removed as well, the oldest"
                " first, to stay within the limit of ddptrace.Keep: what they described has no name. Raise its nbytes="
            )
            found.append(DESCRIPTIONS_LET_GO(where, message))
        if self.clock.stepped_ns > CLOCK_STEP_NS:
            jumped_ms = self.clock.stepped_ns / 1e6
            message = f"the wall clock jumped by {jumped_ms:.1f} ms during the run; durations are not affected"
            found.append(CLOCK_STEPPED(where, message))
        return tuple(found)


def dropped_words(records: Records) -> Iterator[str]:
    """Return a sentence for each reason. Before schema version 1.4 a run recorded only how many were lost, not why."""
    short, bursts = records.dropped_without_room, records.dropped_in_bursts
    rest = records.dropped - short - bursts
    if short:
        yield (
            f"{short} records were lost, since there was no room for another file; free some of the disk, or record"
            " into a folder on another one"
        )
    if bursts:
        yield (
            f"{bursts} records were lost in bursts, since they came faster than files were made for them (the disk had"
            " room); give ddptrace.Keep(nbytes=...) more, up to 64 MiB, for larger files, or every=... for fewer"
            " records"
        )
    if rest > 0:
        why = "values out of range" if short or bursts else "values out of range; in runs before schema 1.4, no room"
        yield f"{rest} records could not be written ({why})"
