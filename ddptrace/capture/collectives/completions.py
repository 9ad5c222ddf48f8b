"""Stamps when operations complete, on the thread of the backend that calls back.

That thread holds the interpreter's lock, and where cores are scarce it may lose its core meanwhile: training then waits
for both. So a stamp only notes the instant, without a line of Python, and stamps are reused. Records are written
together, at the end of backward or on the keeper's thread: written one by one during the computation, which pushes
Python out of the caches, each would cost ten times as much.

    backend     ....all-reduce ends, noted ....all-reduce ends, noted
    training    backward ..................................... its end: written
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any, Final

from ddptrace.capture.surface import failure_of
from ddptrace.record import Recorder
from ddptrace.schema import Kind

_now = time.perf_counter_ns


MANY: Final = 256
"""Noted completions after which the next collective writes them: a program without backwards never gets to it."""


class Completions:
    """`due`: seqs of operations whose completion is not recorded yet; `noted`: stamps whose instant is known, and the
    instant."""

    __slots__ = ("_free", "_recorder", "due", "noted")

    def __init__(self, recorder: Recorder) -> None:
        self.due: set[int] = set()
        self.noted: deque[tuple[_Stamp, int]] = deque()
        self._free: list[_Stamp] = []
        self._recorder = recorder

    def follow(self, seq: int, future: Any) -> None:
        """Note when an operation is over, by its future. Raises what the future raises if it takes no callback."""
        free = self._free
        stamp = free.pop() if free else _Stamp(self.noted)
        stamp.seq, stamp.future = seq, future
        self.due.add(seq)
        future.add_done_callback(stamp.note)

    def follow_here(self, seq: int, future: Any) -> None:
        """As `follow`, but record it on the thread that ended it, so that the record names that thread."""
        self.due.add(seq)
        future.add_done_callback(lambda future: self._record(seq, _now(), future))

    def write(self) -> None:
        """Record all noted completions."""
        noted = self.noted
        while noted:
            try:
                stamp, at = noted.popleft()
            except IndexError:  # another thread was faster
                return
            self._record(stamp.seq, at, stamp.future)
            stamp.future = None
            self._free.append(stamp)

    def _record(self, seq: int, at: int, future: Any) -> None:
        error = failure_of(future)
        self._recorder.event(Kind.DONE, bool(error), self._recorder.intern(error) if error else 0, at, at, seq)
        self.due.discard(seq)


class _Stamp:
    """`note` is a future's callback: each call appends this stamp and the instant to `noted`, all of it in C."""

    __slots__ = ("future", "note", "seq")

    def __init__(self, noted: deque[tuple[_Stamp, int]]) -> None:
        self.seq = 0
        self.future: Any = None
        instants = iter(_now, None)
        self.note: Callable[[Any], None] = partial(next, map(noted.append, zip(repeat(self), instants, strict=False)))
