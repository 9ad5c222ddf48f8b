"""Whether the process that wrote a rank's records is still there, asked of the system it runs on."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

APART_S: Final = 2.0
"""A process starts before its first record. The clocks of both times differ by less than this."""
STATE, STARTED = 0, 19  # fields of /proc/PID/stat behind the name
GONE: Final = ("Z", "X")
HELD: Final = ("T", "t")
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Process:
    """`runs`: None for a process of another machine. `stopped`: it is held by a signal or a debugger."""

    runs: bool | None
    stopped: bool = False


def process_of(meta: Mapping[str, Any], born_before_unix_ns: int) -> Process:
    """Return the state of the process that `meta.json` names. Another process may have its number by now.
    `born_before_unix_ns`: time of its first record."""
    pid = meta.get("pid")
    if not _is_here(meta) or not isinstance(pid, int) or not Path("/proc/self/stat").exists():
        return Process(None)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        state, ticks = fields[STATE], int(fields[STARTED])
    except (OSError, IndexError, ValueError):
        return Process(False)
    if state in GONE or not _is_same(meta.get("started_ticks"), ticks, born_before_unix_ns):
        return Process(False)
    return Process(True, state in HELD)


def _is_here(meta: Mapping[str, Any]) -> bool:
    said = meta.get("boot_id")
    return meta.get("host") == socket.gethostname() and (not said or said == _boot_id())


def _boot_id() -> str | None:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return None


def _is_same(said_ticks: object, ticks: int, born_before_unix_ns: int) -> bool:
    """Whether the process of this number, started at `ticks` after boot, is the process that recorded."""
    if isinstance(said_ticks, int) and said_ticks:
        return said_ticks == ticks
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s < born_before_unix_ns / 1e9 + APART_S
