"""What a recorder has written since somebody looked last, read off the mapped file: writing pays nothing for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ddptrace.record.recorder import Recorder
from ddptrace.record.segment import Segment
from ddptrace.record.thin import Slots
from ddptrace.schema import EVENT_DTYPE, GUARD, RECORD_NBYTES, Kind

AT_ONCE: Final = 1024  # records, copied together
TOLD_BESIDE: Final = (Kind.NONE, Kind.STRING, Kind.CLOCK, Kind.DONE, Kind.NOTE, Kind.THREAD)
"""What any thread may write for another, or without doing anything."""


class Tail:
    """For the keeper's thread, on which mapped files come and go. `seq`: of the last call that it met."""

    def __init__(self, recorder: Recorder) -> None:
        self.seq = 0
        self._recorder = recorder
        self._file = _name(recorder.segment)  # not the segment itself, which a forked child has to let go of
        self._at = 0  # in it
        self._passed = np.empty(0, np.intp)  # slots before that, which may still be written

    def has_news_of(self, native: int) -> bool:
        """Whether the thread, by the system's number, has written something since the last look. Gradients that are
        ready count whoever notes them; and so does a new file, of whose predecessor no more is read."""
        segment = self._recorder.segment
        news = _name(segment) != self._file
        if news:
            self._file, self._at, self._passed = _name(segment), 0, self._passed[:0]
        number = self._recorder.number_of(native)
        for slots in self._fresh(segment) if segment is not None else ():
            kinds = slots["kind"]
            own = (slots["thread"] == number) & ~np.isin(kinds, TOLD_BESIDE)
            news |= bool((own | (kinds == Kind.READY)).any())
            self.seq = max(self.seq, int(slots["a"][kinds == Kind.CALL].max(initial=0)))
        return news

    def _fresh(self, segment: Segment) -> Iterator[Slots]:
        if len(self._passed):
            yield self._late(segment)
        while (slots := self._next(segment)) is not None:
            yield slots

    def _late(self, segment: Segment) -> Slots:
        """Records in slots that were empty when they were passed."""
        slots = np.frombuffer(segment.view, EVENT_DTYPE, segment.room // RECORD_NBYTES)[self._passed]
        written = slots["guard"] == GUARD
        self._passed = self._passed[~written]
        found: Slots = slots[written]
        return found

    def _next(self, segment: Segment) -> Slots | None:
        """Records that follow those seen; None where there are none."""
        count = min(AT_ONCE, (segment.room - self._at) // RECORD_NBYTES)
        if count <= 0:
            return None
        slots = np.frombuffer(segment.view, EVENT_DTYPE, count, self._at).copy()  # nothing holds on to the file
        written = np.flatnonzero(slots["guard"] == GUARD)
        if not len(written):
            return None
        found = slots[: written[-1] + 1]
        empty = self._at // RECORD_NBYTES + np.flatnonzero(found["guard"] != GUARD)
        self._passed = np.concatenate((self._passed, empty))[-AT_ONCE:]
        self._at += len(found) * RECORD_NBYTES
        return found


def _name(segment: Segment | None) -> str:
    return "" if segment is None else segment.name
