"""What is to be done when a thread ends, on that thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable


class _Marker:
    pass


class ThreadEnd(threading.local):
    """Python drops what is local to a thread as its last act on it: then `action` is called."""

    marker: _Marker | None = None

    def call(self, action: Callable[[], None]) -> None:
        """Have `action` called when the calling thread ends; once, however often this is said. Not for a thread that
        the end of the process cuts off. It must not raise."""
        if self.marker is None:
            self.marker = _Marker()
            weakref.finalize(self.marker, action).atexit = False
