"""Decides from outside whether a rank will write more: it may be silent, killed, or on another machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ddptrace.load.alive import process_of
from ddptrace.load.diagnosis.tables import BEAT_NS

LEFT_NS: Final = 60 * 10**9
"""A run on other machines has ended if its newest record is older than this. A restart must come within this time."""
GONE_NS: Final = BEAT_NS * 3 // 2
"""A process that cannot be found and has been silent for this long is gone. One in another container keeps writing."""


def has_gone(meta: Mapping[str, Any], beat_unix_ns: int, now_unix_ns: int, *, silent_ns: int) -> bool:
    """Whether the process that writes a rank's records is gone.

    `beat_unix_ns`: time of its newest record; `silent_ns`: time since the newest record of any rank of its attempt.
    """
    runs = process_of(meta, beat_unix_ns).runs
    if runs is None:
        return silent_ns > LEFT_NS
    return not runs and now_unix_ns - beat_unix_ns > GONE_NS


def made_unix_ns(folder: Path) -> int:
    """Return when a rank's folder last changed, for a rank without a record yet; 0 if the folder is gone."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


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
