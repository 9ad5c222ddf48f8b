"""A rank's record files while they grow: what is new goes to tables a few steps at a time, and is forgotten.

records   |context| a step | a step | its successor, which has ended | a step under way ...
          ├──────── analysed together ───────────────────────────────┤
          └ kept, since communication of it may still run in the first step that is handed out

The disk is the queue: while what was read is not given out, nothing more is read.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Final

import numpy as np

from ddptrace.analysis.analyze import analyze_rank
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.live.batch import Identity, Losses, RankBatch
from ddptrace.live.held_records import HeldRecords
from ddptrace.live.loss_tally import LossTally
from ddptrace.live.steps_decided import Mark, StepsDecided
from ddptrace.load.diagnosis.rank_state import BESIDE
from ddptrace.load.records.clock import Clock
from ddptrace.load.records.rank_run import rank_run
from ddptrace.record import RecordReader, Records
from ddptrace.schema import Kind

BATCH_RECORDS: Final = 10_000
"""Records analysed at a time, about: a quarter of a second of work."""
SEGMENTS_PER_READ: Final = 2
"""Finished files taken in by one `read`: 8 MiB at most."""
HELD_RECORDS: Final = 100_000
"""While more are held and steps of them are ready, nothing is read."""
MOST_RECORDS: Final = 1_000_000
"""Of a program that ends no step for so long, the older half is given up."""

LONG_AGO: Final = int(np.iinfo(np.int64).min)


class RankFollower:
    """Reads one rank's folder again and again, and gives out what has become complete.

    Nothing is given up that lies on the disk, as long as steps end: what is let go there before it was read is counted.
    """

    def __init__(self, folder: Path) -> None:
        self._reader = RecordReader(folder)
        self._held = HeldRecords()
        self._decided = StepsDecided()
        self._tally = LossTally()
        self._next = 0  # ordinal of the first step not given out yet
        self._skipped = 0  # steps before it that were not recorded
        self._given = 0  # steps
        self._cut = LONG_AGO  # what was before is forgotten
        self._newest = LONG_AGO
        self._worked = LONG_AGO
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
        """Whether the rank has said that it ended, as far as read."""
        return self._tally.closed

    @property
    def has_room(self) -> bool:
        """Whether more can be read before what is held is given out."""
        return not self._begins_again and len(self._held) <= HELD_RECORDS

    def read(self, *, live: bool) -> bool:
        """Take in what is new, `SEGMENTS_PER_READ` finished files at most; whether more waits on the disk. `live`: the
        rank still writes. Raises OSError where the files cannot be read: nothing is lost by that."""
        if not self.has_room and len(self._marks(final=False)) > 1:
            return True
        if self._begins_again:
            self._begin_again()
        fresh = self._reader.read(live=live, segments=SEGMENTS_PER_READ)
        if fresh.missed:  # what this is too slow for was let go; what was read before is given out first
            self._begins_again = True
            return True
        self._take(fresh)
        return fresh.behind

    def next_batch(self, identity: Identity, *, final: bool) -> RankBatch | None:
        """The next complete steps, None where there are none. A step is complete when the one after it has ended, since
        completions come late; at the end (`final`, once nothing more waits on the disk) all are."""
        marks = self._marks(final=final)
        ready = marks if final else marks[:-1]
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
        """For `found`, where there is no time to give it out: of all that waits on the disk, the ends of steps."""
        waits = True
        while waits:
            fresh = self._reader.read(segments=SEGMENTS_PER_READ)
            waits = fresh.behind
            self._tally.add(fresh)
            self._held.add(Records(fresh.events[fresh.events["kind"] == Kind.STEP]))

    def found(self) -> int:
        """Steps that were recorded, as far as read; of those let go before that, all."""
        marks = self._ahead(copy(self._decided).marks(self._held.steps(), final=True))
        skipped = self._skipped + sum(not mark.recorded for mark in marks)
        return (marks[-1].ordinal + 1 if marks else self._next) - skipped

    def losses(self, *, final: bool = False) -> Losses:
        """So far. `final`: with steps that were read and will not be given out."""
        known = self.found() if final else self._next - self._skipped
        return self._tally.losses(unread_steps=max(0, known - self._given))

    def beat_unix_ns(self) -> int:
        """Of the newest record; 0 where nothing tells."""
        return self._unix_ns(self._newest)

    def worked_unix_ns(self) -> int:
        """Of the newest record of the training itself, or its end; 0 where nothing tells."""
        return self._unix_ns(self._worked)

    def skip_all_but(self, steps: int) -> None:
        """Give up all steps that are complete by now but the newest: who looks only at these is not kept waiting. The
        others count as unread."""
        marks = self._marks(final=False)
        if len(marks) > steps + 1:
            self._forget(marks[-steps - 2])

    # Taking in -------------------------------------------------------------------------------------------------------

    def _begin_again(self) -> None:
        """From the first record that is left. What is given out was: later records are told by their time."""
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
        """Where no step ends, it is not known what is worth keeping. A step that began before is not given out."""
        before = len(self._held)
        self._cut_at(int(np.median(self._held.events["begin"])) + 1)
        self._tally.unread_records += before - len(self._held)

    # Giving out ------------------------------------------------------------------------------------------------------

    def _marks(self, *, final: bool) -> list[Mark]:
        """Steps not given out yet, in order."""
        return self._ahead(self._decided.marks(self._held.steps(), final=final))

    def _ahead(self, marks: list[Mark]) -> list[Mark]:
        return [mark for mark in marks if mark.ordinal >= self._next]

    def _analyse(self, identity: Identity, horizon: int | None) -> RankTables:
        records = self._held.before(horizon, self._decided.ended_by)
        recorded = rank_run(records, identity.meta, rank=identity.rank, zero_unix_ns=None)
        return analyze_rank(self._held.numbered(recorded.run))

    def _forget(self, last: Mark) -> None:
        """All before the step given out last; it stays as the context of the next."""
        self._skipped += sum(not mark.recorded for mark in self._marks(final=True) if mark.ordinal <= last.ordinal)
        self._next = last.ordinal + 1
        self._cut_at(last.begin)

    def _cut_at(self, cut: int) -> None:
        self._cut = cut
        self._held.cut_at(cut)
