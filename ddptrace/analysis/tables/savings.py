"""Row of `savings`: what a change could win back at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SavingRow:
    """Time that a change could win back at most; the largest first, and that one is the headline. Times are means over
    the typical steps; over the profiler windows of the devices where no step was found. A rank that is late costs the
    others communication, so a saving may contain a part of another."""

    cause: str  # "exposed communication", "late rank", "waiting for ranks", "processors", "remote calls",
    #   "buffer broadcasts", "exposed copies", "slow stage", "pipeline bubble" or "data"; of a device's idle time also
    #   "copy", "synchronize", "allocate", "collect", "queued" or "work"
    cost_ns: int  # per step, or per profiler window where no step was found
    cost_ratio: float  # cost / whole
    whole_ns: int  # length of the typical step, or of a profiler window
    where: str  # rank, bucket, or what held the host; "" where it has no one place
    finding: str  # code of the finding that says what to do about such a cause
    half_gap_ns: int | None = None  # of idle time: half of it lies in gaps that are at least as long
