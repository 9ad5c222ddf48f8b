"""Declares the rows of `steps`, `partial_steps`, `phases`, `contention`, `jitter`, `windows` and `savings`."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.rows import row
from ddptrace.schema import Evidence


@dataclass(frozen=True, slots=True)
class ContentionRow:
    """The same operators or kernels alone, and beside communication. Each is compared with the one that has its place
    in other steps."""

    rank: int  # global rank
    name: str  # of the operator or kernel
    alone: int  # how often it ran alone
    beside: int  # how often it ran beside communication
    alone_ns: int  # median: what those beside communication would have taken alone
    beside_ns: int  # median: what they took
    tax_ns: int  # what all of them together took longer


@dataclass(frozen=True, slots=True)
class JitterRow:
    """How one part of a rank's steps varies."""

    rank: int  # global rank
    part: str  # one of `LOCAL_PHASES` without waiting, "waiting", or "step"
    steps: int  # steps that this rests on
    median_ns: int  # of the part
    p95_ns: int  # 95th percentile of the part
    spread_ns: int  # 1.4826 x median absolute deviation
    share_ratio: float | None  # of the variance of the whole step; a rank's shares add up to 1


@row
@dataclass(frozen=True, slots=True)
class StepRow:
    """One step on one rank. compute + exposed_comm + exposed_memory + idle = window; the five phases add up to wall.
    From `compute_ns` to `idle_ns` all is None where nothing tells when the rank computed: on a device, outside of
    profiler windows, only what the host launched is known."""

    rank: int  # global rank
    step: int  # ordinal of the step on its rank, from 0
    begin_at_ns: int  # end of the previous step; of step 0, the trace was entered
    end_at_ns: int  # end of its last update
    wall_ns: int  # time of the host, from begin to end
    window_ns: int  # what the breakdown adds up to: wall on CPU, time of the device on a GPU
    compute_ns: int | None  # the rank computed
    comm_ns: int | None  # any of its collectives ran
    hidden_ns: int | None  # part of comm in which the rank computed
    exposed_comm_ns: int | None  # the rest of comm
    exposed_memory_ns: int | None  # else, the device copied memory; 0 on CPU, where a copy is an operator and counts as
    #   compute
    idle_ns: int | None  # none of these
    overlap_ratio: float | None  # hidden / comm; None without communication
    evidence: Evidence | None  # the weakest of its collectives
    data_ns: int  # phase: reading data
    forward_ns: int  # phase: forward
    backward_ns: int  # phase: backward
    optimizer_ns: int  # phase: optimizer
    other_ns: int  # phase: everything else
    wait_ns: int | None  # the host was blocked on collectives
    paused_ns: int  # part of other: ddptrace itself held the training thread
    profiled: bool  # compute comes from a profiler window, not from phases
    ended_by: str  # "optimizer", "backward" or "said"
    rpc_wait_ns: int | None = None  # part of idle: the host was blocked on remote calls; None where idle is, or nobody
    #   watched
    under_profiler: bool = False  # a profiler ran: its window holds the step, or it recorded a collective of the step
    unsure_ns: int | None = None  # part of the window in which the device may have computed or been idle; None unless
    #   events alone tell when it computed

    @property
    def is_seen(self) -> bool:
        """Whether anything told when the rank computed."""
        return self.compute_ns is not None

    @property
    def is_by_phase(self) -> bool:
        """Whether its compute is the length of the host's phases."""
        return self.is_seen and not self.profiled and self.unsure_ns is None


@dataclass(frozen=True, slots=True)
class PartialStepRow:
    """A step that was not recorded, or of which not all was kept: only its length is known."""

    rank: int  # global rank
    step: int  # ordinal of the step on its rank
    begin_at_ns: int  # end of the previous step
    end_at_ns: int  # end of its last update
    wall_ns: int  # from begin to end
    ended_by: str  # "optimizer", "backward" or "said"


@row
@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A stretch of one phase; a step's rows are a partition of it."""

    rank: int  # global rank
    step: int  # ordinal of the step
    phase: str  # "data", "forward", "backward", "optimizer" or "other"
    begin_at_ns: int  # begin of the stretch
    end_at_ns: int  # its end


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
