"""A rank's record files while they grow: what is new goes to tables a few steps at a time, and is forgotten.

records   |context| a step | a step | its successor, which has ended | a step under way ...
          ├──────── analysed together ───────────────────────────────┤
          └ kept, since communication of it may still run in the first step that is handed out
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis import Result, Table, analyze_run
from ddptrace.analysis.tables import CollectiveRow
from ddptrace.load.records import rank_run
from ddptrace.load.tables import Run
from ddptrace.record import RecordReader, Records
from ddptrace.schema import EVENT_DTYPE, MANIFEST, META, READY_DTYPE, SCHEMA_VERSION, Kind, StepEnd

STEPS_TO_DECIDE: Final = {StepEnd.SAID: 1, StepEnd.OPTIMIZER: 4, StepEnd.BACKWARD: 64}
"""Steps of a kind after which it is taken for what ends steps in this program, if no stronger kind was seen. What ends
them first may be a part of the true step: the first backwards of an accumulation, a GAN's optimizer in turn."""
BATCH_RECORDS: Final = 10_000
"""Records analysed at a time, about: a quarter of a second of work."""
MAX_RECORDS: Final = 200_000
"""Records held at most (13 MB). Where the telemetry backend is too slow for that, the oldest steps are given up."""

LASTING_KINDS: Final = [Kind.REDUCER, Kind.LAYOUT, Kind.GROUP, Kind.THREAD, Kind.LET_GO]
LATE_KINDS: Final = [Kind.DONE, Kind.WAIT]
BY_BEGIN_KINDS: Final = [Kind.CALL, Kind.STEP]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a rank's spans are named after."""

    run_id: str
    rank: int
    meta: dict[str, Any]


def read_identity(folder: Path, *, final: bool) -> Identity | None:
    """Who this rank is; None while rank 0 has not told its run's id yet. `final`: with what there is."""
    meta, manifest = _read_json(folder / META), _read_json(folder.parent / MANIFEST)
    run_id, shared = meta.get("run_id"), manifest.get("run_id")
    number = folder.name.removeprefix("rank-")
    if not final and (run_id is None or not number.isdigit() or shared not in (None, run_id)):
        return None
    return Identity(str(run_id or shared or folder.parent), int(number) if number.isdigit() else 0, meta)


@dataclass(frozen=True, slots=True)
class Batch:
    """Tables in which the steps of these ordinals are complete; others in them are not, or were handed out before.
    `is_last`: nothing follows, so that what is outside of all steps is complete too."""

    result: Result
    steps: range
    is_last: bool


@dataclass(frozen=True, slots=True)
class _Mark:
    ordinal: int
    begin: int  # monotonic, as recorded
    end: int
    recorded: bool


class Follower:
    """Reads one rank's folder again and again, and gives out what has become complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ended_by: StepEnd | None = None
        self._next = 0  # ordinal of the first step not given out yet
        self._skipped = 0  # steps before it that were not recorded
        self._cut = np.iinfo(np.int64).min  # what was before is forgotten
        self._is_over = False
        self._begin_again()

    def _begin_again(self) -> None:
        self._reader = RecordReader(self.folder)
        self._lasting = np.empty(0, EVENT_DTYPE)  # the first clock pair, on which all times rest, and LASTING_KINDS
        self._events = np.empty(0, EVENT_DTYPE)
        self._ready = np.empty(0, READY_DTYPE)
        self._strings: dict[int, str] = {}
        self._forgotten: Counter[int] = Counter()  # calls, by the string id of their group

    def read(self, *, live: bool) -> None:
        """Take in what is new. `live`: the rank still writes. Raises OSError where the closed files cannot be read."""
        try:
            fresh = self._reader.read(live=live)
        except OSError:  # a spare file went away under us: from the start, skipping what was given out
            self._begin_again()
            if live:
                return
            fresh = self._reader.read()
        if fresh.missed:  # what this is too slow for was let go
            self._begin_again()
            fresh = self._reader.read(live=live)
        self._strings |= fresh.strings
        self._take(fresh.events)
        self._ready = np.concatenate((self._ready, fresh.ready))
        self._cut_at(self._cut)
        while len(self._events) > MAX_RECORDS:
            self._give_up_half()

    def _take(self, fresh: NDArray[np.void]) -> None:
        has_clock = bool((self._lasting["kind"] == Kind.CLOCK).any())
        clocks = fresh[fresh["kind"] == Kind.CLOCK][: 0 if has_clock else 1]
        lasting = np.isin(fresh["kind"], LASTING_KINDS)
        self._lasting = np.concatenate((self._lasting, clocks, fresh[lasting]))
        self._events = np.concatenate((self._events, fresh[~lasting & (fresh["kind"] != Kind.CLOCK)]))

    def found(self) -> int:
        """Steps that were recorded, as far as read."""
        marks = self._marks(final=True)
        skipped = self._skipped + sum(not mark.recorded for mark in marks)
        return (marks[-1].ordinal + 1 if marks else self._next) - skipped

    def next_batch(self, identity: Identity, *, final: bool) -> Batch | None:
        """The next complete steps, None where there are none. A step is complete when the one after it has ended, since
        completions come late; at the end (`final`) all are."""
        marks = self._marks(final=final)
        ready = marks if final else marks[:-1]
        count = max(1, BATCH_RECORDS * len(ready) // max(1, len(self._events)))
        chosen = ready[:count]
        is_last = final and len(chosen) == len(marks)
        if self._is_over or not (chosen or is_last):
            return None
        self._is_over = is_last
        result = self._analyse(identity, None if is_last else marks[len(chosen)].end)
        steps = range(chosen[0].ordinal, chosen[-1].ordinal + 1) if chosen else range(0)
        if chosen:
            self._forget(chosen[-1])
        return Batch(result, steps, is_last)

    # Which steps there are -------------------------------------------------------------------------------------------

    def _marks(self, *, final: bool) -> list[_Mark]:
        """Steps not given out yet, in order."""
        rows = self._events[self._events["kind"] == Kind.STEP]
        ended_by = self._decide(rows, final=final)
        if ended_by is None:
            return []
        mine = rows[rows["flags"] == ended_by]
        columns = (mine[name].tolist() for name in ("a", "begin", "end", "b"))
        last = {a: _Mark(a, begin, end, not b) for a, begin, end, b in zip(*columns, strict=True)}
        return [mark for ordinal, mark in sorted(last.items()) if ordinal >= self._next]

    def _decide(self, rows: NDArray[np.void], *, final: bool) -> StepEnd | None:
        """What ends this program's steps, once and for all; None while that is open."""
        if self._ended_by is None:
            kinds = sorted({StepEnd(flag) for flag in rows["flags"].tolist() if flag in set(StepEnd)})
            strongest = kinds[-1] if kinds else None
            if strongest is None:
                return None
            ordinals = rows["a"][rows["flags"] == strongest]
            if not final and len(np.unique(ordinals)) < STEPS_TO_DECIDE[strongest]:
                return None
            self._ended_by = strongest
        return self._ended_by

    # Tables ----------------------------------------------------------------------------------------------------------

    def _analyse(self, identity: Identity, horizon: int | None) -> Result:
        events = self._events
        if horizon is not None:
            events = events[(events["begin"] < horizon) | np.isin(events["kind"], LATE_KINDS)]
        events = events[(events["kind"] != Kind.STEP) | (events["flags"] == (self._ended_by or 0))]
        records = Records(np.concatenate((self._lasting, events)), self._ready, self._strings, closed=True)
        recorded = rank_run(records, identity.meta, rank=identity.rank, zero_unix_ns=None)
        zero_unix_ns = recorded.clock.zero_unix_ns
        run = Run(self.folder.parent, SCHEMA_VERSION, identity.run_id, zero_unix_ns, None, (recorded.run,), ())
        result = analyze_run(run)
        return replace(result, collectives=self._renumbered(result.collectives))

    def _renumbered(self, rows: Table[CollectiveRow]) -> Table[CollectiveRow]:
        """Calls were counted from the first that is remembered; count from the first of the run."""
        before = {self._strings.get(number): count for number, count in self._forgotten.items()}
        if not before:
            return rows
        return Table(CollectiveRow, [replace(row, ordinal=row.ordinal + before.get(row.group, 0)) for row in rows])

    # Forgetting ------------------------------------------------------------------------------------------------------

    def _forget(self, last: _Mark) -> None:
        """All before the step given out last; it stays as the context of the next."""
        self._skipped += sum(not mark.recorded for mark in self._marks(final=True) if mark.ordinal <= last.ordinal)
        self._next = last.ordinal + 1
        self._cut_at(last.begin)

    def _cut_at(self, cut: int) -> None:
        """Calls go by their launch alone, so that those left are the last of their group."""
        self._cut = cut
        kinds, begins, ends = (self._events[name] for name in ("kind", "begin", "end"))
        keep = np.where(np.isin(kinds, BY_BEGIN_KINDS), begins, np.maximum(begins, ends)) >= cut
        self._forgotten.update(self._events["d"][(kinds == Kind.CALL) & ~keep].tolist())
        self._events = self._events[keep]
        self._ready = self._ready[self._ready["base"] >= cut]

    def _give_up_half(self) -> None:
        """Forget the older half of what is held, in whole steps where there are any."""
        marks = self._marks(final=True)
        if len(marks) > 1:
            self._forget(marks[len(marks) // 2 - 1])
        else:
            self._cut_at(int(np.median(self._events["begin"])) + 1)
            self._events = self._events[-MAX_RECORDS:]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
