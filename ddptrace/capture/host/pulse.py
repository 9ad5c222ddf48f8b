"""Where the training thread stands if it has recorded nothing for a while: asleep, blocked, or busy in one place.

records   P P C W S ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
looks      │         │         │ pulse   │ pulse         nothing new since the look before, and that is some time ago
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final

from ddptrace.capture.origins import frames
from ddptrace.capture.steps.finder import StepFinder
from ddptrace.record import Recorder
from ddptrace.record.tail import Tail
from ddptrace.schema import Kind

QUIET_NS: Final = 1_500_000_000
"""Silence after which a pulse is recorded. Looks may follow each other closely, so silence between two is not
enough."""

MOST_LINES: Final = 500
"""Lines that get a name, which stays in the records for good. Beyond them, only a line that the thread stays at
does."""

_now = time.perf_counter_ns


class Pulse:
    """Looks at the training thread, as `steps` knows it."""

    def __init__(self, recorder: Recorder, steps: StepFinder) -> None:
        self._recorder = recorder
        self._steps = steps
        self._tail = Tail(recorder)
        self._since = _now()  # when something was recorded last
        self._lines: dict[str, int] = {"": 0}
        self._before: set[str] = set()  # lines that the thread was at at the last look

    def look(self) -> None:
        thread, now = self._steps.thread, _now()
        if self._tail.has_news_of(thread.native):
            self._since = now
        elif now - self._since >= QUIET_NS and not self._recorder.is_stuck():
            self._tell(now)

    def _tell(self, now: int) -> None:
        thread, doing = self._steps.thread, self._steps.doing
        site, innermost = _lines_of(sys._current_frames().get(thread.ident))
        at, inner = self._id(site), self._id(innermost)
        self._before = {site, innermost}
        self._recorder.event(Kind.PULSE, doing, at, now, now, self._tail.seq, _processor_ns(thread.native), 0, inner)

    def _id(self, line: str) -> int:
        known = self._lines.get(line)
        if known is None and (len(self._lines) <= MOST_LINES or line in self._before):
            known = self._lines[line] = self._recorder.intern(line)
        return known or 0


def _lines_of(frame: FrameType | None) -> tuple[str, str]:
    """Return the innermost line of the program, and the innermost of all; "" if there is none."""
    innermost = "" if frame is None else frames.site(frame.f_code, frame.f_lineno)
    return frames.program_line(frame), innermost


def _processor_ns(native: int) -> int:
    """Return the processor time of a thread of this process so far; 0 if the system does not report it."""
    try:
        return int(Path(f"/proc/self/task/{native}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
