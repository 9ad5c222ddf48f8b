"""Whether more is to come of a rank, asked without its help: it may have been killed, or be on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ddptrace.load.alive import process_of
from ddptrace.load.diagnosis.tables import BEAT_NS

LEFT_NS: Final = 60 * 10**9
"""So long after its newest record, a run on machines that cannot be asked is written by nobody; and nobody has started
it anew."""
GONE_NS: Final = BEAT_NS * 3 // 2
"""A process that is not in sight and has been silent for so long is gone. One in another container writes on."""


def has_gone(meta: Mapping[str, Any], beat_unix_ns: int, now_unix_ns: int, *, silent_ns: int) -> bool:
    """Whether the process that writes a rank's records is there no longer. `beat_unix_ns`: of its newest record;
    `silent_ns`: since the newest of any rank of its attempt."""
    runs = process_of(meta, beat_unix_ns).runs
    if runs is None:
        return silent_ns > LEFT_NS
    return not runs and now_unix_ns - beat_unix_ns > GONE_NS


def made_unix_ns(folder: Path) -> int:
    """When something was made in a rank's folder last: of one that has no record yet nothing else tells. 0: gone."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0
