"""Reads what a recorder has written since the last look, from the mapped file, at no cost to the writer."""

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
"""Kinds that a thread may write for another thread, or without making progress."""


class Tail:
    """For the keeper thread, which opens and closes the mapped files. `seq`: sequence number of the last call read."""

    def __init__(self, recorder: Recorder) -> None:
        self.seq = 0
        self._recorder = recorder
        self._file = _name(recorder.segment)  # not the segment itself, which a forked child must release
        self._at = 0  # in it
        self._passed = np.empty(0, np.intp)  # empty slots before that, which may still be written

    def has_news_of(self, native: int) -> bool:
        """Whether a thread, by its native id, has written something since the last look.

        Ready gradients count, whichever thread writes them. A new file counts, too, since the rest of the old one is
        not read.
        """
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
        """Return records in slots that were empty at an earlier look."""
        slots = np.frombuffer(segment.view, EVENT_DTYPE, segment.room // RECORD_NBYTES)[self._passed]
        written = slots["guard"] == GUARD
        self._passed = self._passed[~written]
        found: Slots = slots[written]
        return found

    def _next(self, segment: Segment) -> Slots | None:
        """Return the next records; None if there are none."""
        count = min(AT_ONCE, (segment.room - self._at) // RECORD_NBYTES)
        if count <= 0:
            return None
        slots = np.frombuffer(
            segment.view, EVENT_DTYPE, count, self._at
        ).copy()  # a copy, so that nothing refers to the file
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
