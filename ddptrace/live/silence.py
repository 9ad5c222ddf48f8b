"""Measures how long nothing new has been recorded, by the reader's clock."""

from __future__ import annotations

import time


class Silence:
    """The silence of one rank, or of several.

    A record that arrives while we look is new, whatever its timestamp: another machine's clock may be wrong by minutes.
    Only for records from before the first look the timestamp counts.
    """

    __slots__ = ("_newest_unix_ns", "_since_ns", "_was_behind")

    def __init__(self) -> None:
        self._newest_unix_ns: int | None = None
        self._since_ns = 0  # monotonic
        self._was_behind = False

    def ns(self, newest_unix_ns: int, *, is_behind: bool) -> int:
        """Return the silence until now.

        `newest_unix_ns`: time of the newest record read; `is_behind`: there is more to read, so that records that are
        new to the reader may be old.
        """
        now_ns, before = time.monotonic_ns(), self._newest_unix_ns
        if newest_unix_ns != before:
            came_in = before is not None and not is_behind and not self._was_behind
            self._since_ns = now_ns - (0 if came_in else max(0, time.time_ns() - newest_unix_ns))
            self._newest_unix_ns = newest_unix_ns
        self._was_behind = is_behind
        return now_ns - self._since_ns
