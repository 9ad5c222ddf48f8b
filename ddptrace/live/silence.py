"""How long nothing new has been recorded, by the clock of whoever looks."""

from __future__ import annotations

import time


class Silence:
    """Of one rank, or of several. What came in while it was looked for was new just now, whatever its own clock says:
    that of another machine may be wrong by minutes. Until then there is only that clock to ask."""

    __slots__ = ("_newest_unix_ns", "_since_ns", "_was_behind")

    def __init__(self) -> None:
        self._newest_unix_ns: int | None = None
        self._since_ns = 0  # monotonic
        self._was_behind = False

    def ns(self, newest_unix_ns: int, *, is_behind: bool) -> int:
        """As of now. `newest_unix_ns`: of the newest record read; `is_behind`: whether more waits, so that what is new
        to the reader may be old."""
        now_ns, before = time.monotonic_ns(), self._newest_unix_ns
        if newest_unix_ns != before:
            came_in = before is not None and not is_behind and not self._was_behind
            self._since_ns = now_ns - (0 if came_in else max(0, time.time_ns() - newest_unix_ns))
            self._newest_unix_ns = newest_unix_ns
        self._was_behind = is_behind
        return now_ns - self._since_ns
