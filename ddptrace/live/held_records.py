"""The records of a rank that are not yet returned, and their context; the rest is dropped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.records.events import Clock
from ddptrace.load.tables import Call, RankRun
from ddptrace.ops import family_of
from ddptrace.record import Records
from ddptrace.schema import EVENT_DTYPE, READY_DTYPE, DeviceMark, Kind, StepEnd

LASTING_KINDS: Final = [Kind.REDUCER, Kind.LAYOUT, Kind.UNIT, Kind.GROUP, Kind.THREAD]
LATE_KINDS: Final = [Kind.DONE, Kind.WAIT, Kind.DEVICE_CLOCK]
BY_BEGIN_KINDS: Final = [Kind.CALL, Kind.STEP]


class HeldRecords:
    """Events and ready times in the order they were written.

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
