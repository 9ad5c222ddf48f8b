"""Stamps when operations complete, on the thread of the backend that calls back, and knows which collectives of a
profiler window that thread is still busy with.

    backend     ....all-reduce ends, noted ....all-reduce ends, noted
    training    backward ..................................... its end: written

The backend's thread holds the interpreter's lock, and where cores are scarce it may lose its core meanwhile: training
then waits for both. So a stamp only notes the instant, without a line of Python, and stamps are reused. Records are
written together, at the end of backward or on the keeper's thread: written one by one during the computation, which
pushes Python out of the caches, each would cost ten times as much.

    Gloo's thread   all-reduce ── future completes ········· its event ends
    training        wait for the future ──── update ─ end of the step ⋯ end of the window

Gloo completes the future of a collective, for which DDP waits, before it ends the collective's event in the profiler.
torch frees all events when a window ends, without waiting for that thread, which then writes into freed memory. That
may end the process, so a window ends when this thread is done.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Final

import torch

from ddptrace.capture.surface import failure_of, tolerating
from ddptrace.record import Recorder
from ddptrace.schema import Kind

MANY: Final = 256
"""Noted completions after which the next collective writes them: a program without backwards never gets to it."""
POLL_S: Final = 0.000_2
FEW: Final = 4
"""Collectives of a window that each new one looks at, so that thousands that never end take no time."""

_now = time.perf_counter_ns


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


LEAVES_S: Final = 0.02
"""Gloo's thread leaves a collective whose future is complete by then, where it cannot be asked."""


@dataclass(slots=True)
class InWindow:
    """A collective of a window. `may_be_asked`: `Work.is_completed` tells whether the backend's thread has left it.

    That waits for the thread and keeps the interpreter's lock, which the thread needs to end the profiler's event where
    Python's hooks or modes were in place as the collective was issued: both would wait for ever."""

    work: Any
    may_be_asked: bool
    done_since: float | None = None

    def is_over(self) -> bool:
        with tolerating():  # the backend may not tell
            if self.may_be_asked:
                return bool(self.work.is_completed())
            if not is_done(self.work):
                return False
            now = time.monotonic()
            self.done_since = now if self.done_since is None else self.done_since
            return now - self.done_since >= LEAVES_S
        return True


def is_done(work: Any) -> bool:
    """Whether a collective is over for who waits for it."""
    try:
        return bool(work.get_future().done())
    except RuntimeError:  # sends and receives of Gloo have no future
        return bool(work.is_completed())


def _has_hooks() -> bool:
    """Whether hooks on saved tensors, or modes, are in place on this thread, as far as this torch tells."""
    with contextlib.suppress(AttributeError, TypeError):
        if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
            return True
        return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return False


class CollectivesInWindow:
    """Keeps the Work of each collective of a window until it is over."""

    def __init__(self) -> None:
        self._works: deque[InWindow] = deque()

    def add(self, work: Any) -> None:
        self._drop(FEW)
        self._works.append(InWindow(work, not _has_hooks()))

    def are_over(self, patience_s: float) -> bool:
        """Wait until all collectives are over, but no longer than this, and return whether they are."""
        until = time.monotonic() + patience_s
        while self._drop(len(self._works)) and time.monotonic() < until:
            time.sleep(POLL_S)
        return not self._works

    def _drop(self, most: int) -> int:
        """Drop what is over of the `most` oldest, and return how many are left. Other threads may do so meanwhile."""
        for _ in range(most):
            try:
                one = self._works.popleft()
            except IndexError:
                break
            if not one.is_over():
                self._works.append(one)
        return len(self._works)
