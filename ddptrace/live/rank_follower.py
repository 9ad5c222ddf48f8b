"""Reads a rank's growing record files into tables, a few steps at a time, and holds only the records that are still
needed.

records   |context| a step | a step | its successor, which has ended | a step under way ...
          ├──────── analysed together ───────────────────────────────┤
          └ kept, since its communication may still run in the first step that is returned

The disk is the queue: nothing more is read until what was read is returned.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.analyze import analyze_rank
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.live.batch import Identity, Losses, LossTally, RankBatch
from ddptrace.load.records.rank_events import BESIDE, Clock
from ddptrace.load.records.rank_run import rank_run
from ddptrace.load.tables import Call, RankRun
from ddptrace.ops import family_of
from ddptrace.record import RecordReader, Records
from ddptrace.schema import EVENT_DTYPE, READY_DTYPE, DeviceMark, Kind, StepEnd

BATCH_RECORDS: Final = 10_000
"""About how many records are analyzed at a time: a quarter of a second of work."""
SEGMENTS_PER_READ: Final = 2
"""Finished files that one `read` takes: 8 MiB at most."""
HELD_RECORDS: Final = 100_000
"""While more are held and some of their steps are complete, nothing is read."""
MOST_RECORDS: Final = 1_000_000
"""If no step ends within this many records, the older half is dropped."""
EVENTS_LATE_NS: Final = 10_000_000_000
"""A step whose device events have not come after this time is returned without them."""
LONG_AGO: Final = int(np.iinfo(np.int64).min)
STEPS_TO_DECIDE: Final = {StepEnd.SAID: 1, StepEnd.OPTIMIZER: 4, StepEnd.BACKWARD: 64}
"""How many steps of a kind decide that it ends steps in this program, if there is no stronger kind. The first ends may
be parts of the true step: the first backwards of an accumulation, or one of a GAN's optimizers."""

LASTING_KINDS: Final = [Kind.REDUCER, Kind.LAYOUT, Kind.UNIT, Kind.GROUP, Kind.THREAD]
LATE_KINDS: Final = [Kind.DONE, Kind.WAIT, Kind.DEVICE_CLOCK]
BY_BEGIN_KINDS: Final = [Kind.CALL, Kind.STEP]


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a step. Times are monotonic, as recorded."""

    ordinal: int
    begin: int
    end: int
    recorded: bool


class StepsDecided:
    """Decides once what ends a program's steps; `ended_by` is None until then."""

    def __init__(self) -> None:
        self.ended_by: StepEnd | None = None

    def marks(self, rows: NDArray[np.void], *, final: bool) -> list[Mark]:
        """Return the ends of steps, by ordinal; none until it is decided what ends steps.

        Of several records of one step, the last one counts. `rows`: STEP records as written; `final`: no more will
        come.
        """
        self._decide(rows, final=final)
        mine = rows[rows["flags"] == self.ended_by] if self.ended_by is not None else rows[:0]
        columns = (mine[name].tolist() for name in ("a", "begin", "end", "b"))
        last = {a: Mark(a, begin, end, not b) for a, begin, end, b in zip(*columns, strict=True)}
        return [mark for _, mark in sorted(last.items())]

    def _decide(self, rows: NDArray[np.void], *, final: bool) -> None:
        kinds = {StepEnd(flag) for flag in np.unique(rows["flags"]).tolist() if flag in set(StepEnd)}
        if self.ended_by is not None or not kinds:
            return
        strongest = max(kinds)
        steps = len(np.unique(rows["a"][rows["flags"] == strongest]))
        if final or steps >= STEPS_TO_DECIDE[strongest]:
            self.ended_by = strongest


class RankFollower:
    """Reads one rank's folder again and again, and returns the steps that have become complete.

    As long as steps end, everything on the disk is read. Records deleted from it before that are counted.
    """

    def __init__(self, folder: Path) -> None:
        self._reader = RecordReader(folder)
        self._held = HeldRecords()
        self._decided = StepsDecided()
        self._tally = LossTally()
        self._next = 0  # ordinal of the first step not given out yet
        self._skipped = 0  # steps before it that were not recorded
        self._given = 0  # steps
        self._cut = LONG_AGO  # earlier records are dropped
        self._newest = LONG_AGO
        self._worked = LONG_AGO
        self._timed_until: int | None = None  # by device events
        self._is_over = False
        self._begins_again = False

    @property
    def folder(self) -> Path:
        return self._reader.folder

    @folder.setter
    def folder(self, renamed: Path) -> None:
        self._reader.folder = renamed

    @property
    def closed(self) -> bool:
        """Whether the rank has recorded its end, as far as read."""
        return self._tally.closed

    @property
    def has_room(self) -> bool:
        """Whether more can be read before what is held is returned."""
        return not self._begins_again and len(self._held) <= HELD_RECORDS

    def read(self, *, live: bool) -> bool:
        """Read what is new, at most `SEGMENTS_PER_READ` finished files. Returns whether more is on the disk.

        `live`: the rank still writes. Raises OSError if the files cannot be read; nothing is lost by that.
        """
        if not self.has_room and len(self._marks(final=False)) > 1:
            return True
        if self._begins_again:
            self._begin_again()
        fresh = self._reader.read(live=live, segments=SEGMENTS_PER_READ)
        if fresh.missed:  # records were deleted before we read them; first return what was read before
            self._begins_again = True
            return True
        self._take(fresh)
        return fresh.behind

    def next_batch(self, identity: Identity, *, final: bool) -> RankBatch | None:
        """Return the next complete steps; None if there are none.

        A step is complete when the next one has ended, since completions come late; on a device, when its events have
        come, too. At the end, all are (`final`: nothing more is on the disk).
        """
        marks = self._marks(final=final)
        ready = marks if final else self._timed(marks[:-1])
        chosen = ready[: max(1, BATCH_RECORDS * len(ready) // max(1, len(self._held)))]
        is_last = final and len(chosen) == len(marks)
        if self._is_over or not (chosen or is_last):
            return None
        self._is_over = is_last
        tables = self._analyse(identity, None if is_last else marks[len(chosen)].end)
        steps = range(chosen[0].ordinal, chosen[-1].ordinal + 1) if chosen else range(0)
        self._given += sum(row.step in steps for row in tables.steps)
        if chosen:
            self._forget(chosen[-1])
        return RankBatch(
            identity,
            self._clock().zero_unix_ns,
            tables,
            steps,
            is_last,
            self.losses(final=is_last),
            self.found(),
            self.beat_unix_ns(),
        )

    def count_the_rest(self) -> None:
        """Read only the ends of steps from the rest of the disk, for `found`, if there is no time to return them."""
        waits = True
        while waits:
            fresh = self._reader.read(segments=SEGMENTS_PER_READ)
            waits = fresh.behind
            self._tally.add(fresh)
            self._held.add(Records(fresh.events[fresh.events["kind"] == Kind.STEP]))

    def found(self) -> int:
        """Return how many steps were recorded as far as read, including deleted ones."""
        marks = self._ahead(copy(self._decided).marks(self._held.steps(), final=True))
        skipped = self._skipped + sum(not mark.recorded for mark in marks)
        return (marks[-1].ordinal + 1 if marks else self._next) - skipped

    def losses(self, *, final: bool = False) -> Losses:
        """Return the losses so far. `final`: include steps that were read and will not be returned."""
        known = self.found() if final else self._next - self._skipped
        return self._tally.losses(unread_steps=max(0, known - self._given))

    def beat_unix_ns(self) -> int:
        """Return the time of the newest record; 0 if unknown."""
        return self._unix_ns(self._newest)

    def worked_unix_ns(self) -> int:
        """Return the time, or end, of the newest record of the training itself; 0 if unknown."""
        return self._unix_ns(self._worked)

    def skip_all_but(self, steps: int) -> None:
        """Drop all complete steps except the newest `steps`, for a reader of only these. The others count as unread."""
        marks = self._marks(final=False)
        if len(marks) > steps + 1:
            self._forget(marks[-steps - 2])

    # Reading --------------------------------------------------------------------------------------------------------

    def _begin_again(self) -> None:
        """Start again at the first record that is left. Steps that were returned are recognized by their time."""
        self._begins_again = False
        self._reader = RecordReader(self.folder)
        self._held = HeldRecords()

    def _take(self, fresh: Records) -> None:
        self._tally.add(fresh)
        self._held.add(fresh)
        self._see(fresh)
        self._held.cut_at(self._cut)
        while len(self._held) > MOST_RECORDS and len(self._marks(final=False)) < 2:
            self._give_up_half()

    def _see(self, fresh: Records) -> None:
        near = self._clock().near(fresh.events)
        self._newest = max(self._newest, int(near["begin"].max(initial=LONG_AGO)))
        worked = near[~np.isin(near["kind"], BESIDE)]
        self._worked = max(self._worked, int(np.maximum(worked["begin"], worked["end"]).max(initial=LONG_AGO)))

    def _clock(self) -> Clock:
        return Clock.of(self._held.lasting, None)

    def _unix_ns(self, at: int) -> int:
        tie = self._clock().tie_ns
        return 0 if tie is None or at == LONG_AGO else at + tie

    def _give_up_half(self) -> None:
        """Drop the older half of the records, since no step ends. A step that began in it is not returned."""
        before = len(self._held)
        self._cut_at(int(np.median(self._held.events["begin"])) + 1)
        self._tally.unread_records += before - len(self._held)

    # Returning -------------------------------------------------------------------------------------------------------

    def _marks(self, *, final: bool) -> list[Mark]:
        """Return the steps that are not yet returned, in order."""
        return self._ahead(self._decided.marks(self._held.steps(), final=final))

    def _timed(self, marks: list[Mark]) -> list[Mark]:
        """Return the steps whose device events have come, or are overdue; all, if the rank has no such events."""
        until = self._held.timed_until()
        self._timed_until = self._timed_until if until is None else until
        if self._timed_until is None:
            return marks
        overdue = self._newest - EVENTS_LATE_NS
        return [mark for mark in marks if mark.end < max(self._timed_until, overdue)]

    def _ahead(self, marks: list[Mark]) -> list[Mark]:
        return [mark for mark in marks if mark.ordinal >= self._next]

    def _analyse(self, identity: Identity, horizon: int | None) -> RankTables:
        records = self._held.before(horizon, self._decided.ended_by)
        recorded = rank_run(records, identity.meta, rank=identity.rank, zero_unix_ns=None)
        return analyze_rank(self._held.numbered(recorded.run))

    def _forget(self, last: Mark) -> None:
        """Drop everything before the last returned step, which stays as context of the next one."""
        self._skipped += sum(not mark.recorded for mark in self._marks(final=True) if mark.ordinal <= last.ordinal)
        self._next = last.ordinal + 1
        self._cut_at(last.begin)

    def _cut_at(self, cut: int) -> None:
        self._cut = cut
        self._held.cut_at(cut)


class HeldRecords:
    """The events and ready times that are still needed, in the order they were written.

    `LET_GO` records stay at their places, since they count calls.
    """

    def __init__(self) -> None:
        self.lasting = np.empty(0, EVENT_DTYPE)  # LASTING_KINDS, and the clock pair that all times depend on
        self.events = np.empty(0, EVENT_DTYPE)
        self.ready = np.empty(0, READY_DTYPE)
        self._strings: dict[int, str] = {}
        self._forgotten: Counter[tuple[int, int]] = Counter()  # calls, by the string ids of their group and op

    def __len__(self) -> int:
        return len(self.events)

    def add(self, fresh: Records) -> None:
        self._strings |= fresh.strings
        events = fresh.events
        is_tied = Clock.of(self.lasting, None).tie_ns is not None
        clocks = events[events["kind"] == Kind.CLOCK][: 0 if is_tied else None]
        lasting = np.isin(events["kind"], LASTING_KINDS)
        self.lasting = np.concatenate((self.lasting, clocks, events[lasting]))
        self.events = np.concatenate((self.events, events[~lasting & (events["kind"] != Kind.CLOCK)]))
        self.ready = np.concatenate((self.ready, fresh.ready))

    def steps(self) -> NDArray[np.void]:
        found: NDArray[np.void] = self.events[self.events["kind"] == Kind.STEP]
        return found

    def timed_until(self) -> int | None:
        """Return up to when device events have been read, by the host's time at which they were put on the stream; None
        if there are none."""
        marks = (self.events["kind"] == Kind.DEVICE_MARK) & (self.events["flags"] != DeviceMark.UNTIMED)
        return int(self.events["begin"][marks].max()) if marks.any() else None

    def before(self, horizon: int | None, ended_by: StepEnd | None) -> Records:
        """Return the records that began before `horizon` (None: all), with only the STEP records of kind `ended_by`."""
        events = self.events
        if horizon is not None:
            lasts = np.isin(events["kind"], [*LATE_KINDS, Kind.LET_GO])
            events = events[(events["begin"] < horizon) | lasts]
        events = events[(events["kind"] != Kind.STEP) | (events["flags"] == (ended_by or 0))]
        return Records(np.concatenate((self.lasting, events)), self.ready, self._strings, closed=True)

    def cut_at(self, cut: int) -> None:
        """Drop what ended before `cut`. Calls are dropped by their launch, so that the last of each group stay. So does
        the last tie to a device's clock: the next one may come after more steps."""
        kinds, begins, ends = (self.events[name] for name in ("kind", "begin", "end"))
        since = np.where(np.isin(kinds, BY_BEGIN_KINDS), begins, np.maximum(begins, ends))
        keep = (since >= cut) | (kinds == Kind.LET_GO)
        ties = kinds == Kind.DEVICE_CLOCK
        keep |= ties & (since == since[ties & ~keep].max(initial=0))
        calls = self.events[(kinds == Kind.CALL) & ~keep]
        self._forgotten.update(zip(calls["d"].tolist(), calls["name"].tolist(), strict=True))
        self.events = self.events[keep]
        self.ready = self.ready[self.ready["base"] >= cut]

    def numbered(self, run: RankRun) -> RankRun:
        """Number its calls from the first one of the run, not from the first one held."""
        calls: Counter[str] = Counter()
        turns: Counter[str] = Counter()
        for (group, op), count in self._forgotten.items():
            name = self._strings.get(group, "")
            calls[name] += count
            turns[name] += 0 if family_of(self._strings.get(op, "")).is_message else count
        return replace(run, calls=tuple(_numbered(call, calls, turns) for call in run.calls)) if calls else run


def _numbered(call: Call, calls: Counter[str], turns: Counter[str]) -> Call:
    turn = None if call.turn is None else call.turn + turns[call.group]
    return replace(call, ordinal=call.ordinal + calls[call.group], turn=turn)
