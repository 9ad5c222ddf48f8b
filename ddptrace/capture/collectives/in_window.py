"""The collectives of a profiler window that a thread of the backend is still busy with.

Gloo completes the future of a collective, for which DDP waits, before it ends the collective's event in the profiler.
torch frees all events when a window ends, without waiting for that thread, which then writes into freed memory. That
may end the process, so a window ends when this thread is done.

    Gloo's thread   all-reduce ── future completes ········· its event ends
    training        wait for the future ──── update ─ end of the step ⋯ end of the window
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

from ddptrace.capture.surface import tolerating

POLL_S: Final = 0.000_2
FEW: Final = 4
"""Collectives that each new one looks at, so that thousands that never end take no time."""


class CollectivesInWindow:
    """Keeps the Work of each collective of a window until it is over."""

    def __init__(self) -> None:
        self._works: deque[Any] = deque()

    def add(self, work: Any) -> None:
        self._drop(FEW)
        self._works.append(work)

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
                work = self._works.popleft()
            except IndexError:
                break
            if not _is_over(work):
                self._works.append(work)
        return len(self._works)


def _is_over(work: Any) -> bool:
    with tolerating():  # the backend may not tell
        return bool(work.is_completed())
    return True
