"""Where the training thread is that has recorded nothing for a while: asleep, blocked, or busy in one place.

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
"""Looks may follow each other closely: a thread that trains is not quiet between two of them."""

MOST_LINES: Final = 500
"""Names stay in the records for good. Once so many lines are named, a new one is only where the thread stays at it."""

_now = time.perf_counter_ns


class Pulse:
    """Looks at the thread that `steps` takes for the training's."""

    def __init__(self, recorder: Recorder, steps: StepFinder) -> None:
        self._recorder = recorder
        self._steps = steps
        self._tail = Tail(recorder)
        self._since = _now()  # nothing was recorded
        self._lines: dict[str, int] = {"": 0}
        self._before: set[str] = set()  # lines that it was at when it was looked at last

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
    """The program's line, and the innermost of all; "" without one."""
    innermost = "" if frame is None else frames.site(frame.f_code, frame.f_lineno)
    return frames.program_line(frame), innermost


def _processor_ns(native: int) -> int:
    """Of a thread of this process so far; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/self/task/{native}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
