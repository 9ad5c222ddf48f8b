"""Decides from outside whether a rank will write more: it may have been killed, or run on another machine."""

from __future__ import annotations

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
