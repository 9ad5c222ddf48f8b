"""Stamps when operations complete, on whatever thread of the backend tells it.

That thread holds the interpreter's lock while it does, and where cores are scarce it may lose its core meanwhile:
training then waits for both. So it notes the instant and no more. Records are written together, at the end of backward
or by the keeper: one by one, amid computing that leaves nothing of Python in the caches, each would cost tenfold.

    backend     ....all-reduce ends, noted ....all-reduce ends, noted
    training    backward ..................................... its end: written
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ddptrace.capture.failures import failure_of
from ddptrace.record import Recorder
from ddptrace.schema import Kind

_now = time.perf_counter_ns


MANY: Final = 256
"""Noted completions that a program without backwards is to write itself."""


class Completions:
    """`due`: numbers of operations whose completion is still to be recorded; `noted`: of those whose is known."""

    __slots__ = ("_recorder", "due", "noted")

    def __init__(self, recorder: Recorder) -> None:
        self.due: set[int] = set()
        self.noted: deque[tuple[int, int, Any]] = deque()
        self._recorder = recorder

    def of(self, seq: int, *, here: bool) -> Callable[[Any], None]:
        """A future's callback: the operation is over. `here`: the record is to tell on which thread."""
        self.due.add(seq)
        note = self.noted.append

        def stamp(future: Any) -> None:
            note((seq, _now(), future))

        def stamp_here(future: Any) -> None:
            self._record(seq, _now(), future)

        return stamp_here if here else stamp

    def write(self) -> None:
        """Record what was noted."""
        noted = self.noted
        while noted:
            try:
                self._record(*noted.popleft())
            except IndexError:  # another thread was faster
                return

    def _record(self, seq: int, at: int, future: Any) -> None:
        error = failure_of(future)
        self._recorder.event(Kind.DONE, bool(error), self._recorder.intern(error) if error else 0, at, at, seq)
        self.due.discard(seq)
