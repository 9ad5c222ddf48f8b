"""Rows of `windows`: each profiler window whole, whether or not steps are known in it."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.schema import Evidence


@dataclass(frozen=True, slots=True)
class WindowRow:
    """One profiler window on one rank. compute + exposed_comm + exposed_memory + idle = window."""

    rank: int  # global rank
    window: int  # number of the window on its rank, from 0
    file: str  # the profiler's file
    on_device: bool  # the breakdown is of a device's time; else of the host's
    begin_at_ns: int  # the device's first work began; on CPU, the window began
    end_at_ns: int  # the device's last work ended; on CPU, the window ended
    window_ns: int  # from begin to end
    compute_ns: int  # the rank computed
    comm_ns: int  # any of its collectives ran
    hidden_ns: int  # part of comm in which the rank computed
    exposed_comm_ns: int  # the rest of comm
    exposed_memory_ns: int  # else, the device copied memory; 0 on CPU
    idle_ns: int  # none of these: nothing that the profiler recorded ran
    queued_ns: int  # part of idle in which work was queued: what it waited for is not known; 0 on CPU
    overlap_ratio: float | None  # hidden / comm; None without communication
    evidence: Evidence | None  # the weakest of its collectives
