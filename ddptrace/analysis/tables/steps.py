"""Rows of `steps`, `partial_steps`, `phases`, `contention` and `jitter`."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.schema import Evidence


@dataclass(frozen=True, slots=True)
class ContentionRow:
    """The same operators or kernels alone, and beside communication. `tax_ns`: what those beside it took longer, all
    added. Each is compared with that of other steps which has its place in the step."""

    rank: int
    name: str
    alone: int  # how often
    beside: int
    alone_ns: int  # median: what those beside would have taken alone
    beside_ns: int  # median: what they took
    tax_ns: int


@dataclass(frozen=True, slots=True)
class JitterRow:
    """How one part of a rank's steps varies. `share_ratio`: of the variance of the whole step; a rank's add up to 1."""

    rank: int
    part: str  # one of `LOCAL_PHASES` without waiting, or "waiting", or "step"
    steps: int
    median_ns: int
    p95_ns: int
    spread_ns: int  # 1.4826 x median absolute deviation
    share_ratio: float | None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step on one rank. compute + exposed_comm + exposed_memory + idle = window; the five phases add up to wall.
    From `compute_ns` to `idle_ns` all is None where nothing told when the rank computed: on a device, outside of a
    profiler window, there is nothing but what the host launched."""

    rank: int
    step: int
    begin_at_ns: int
    end_at_ns: int
    wall_ns: int
    window_ns: int
    compute_ns: int | None
    comm_ns: int | None
    hidden_ns: int | None
    exposed_comm_ns: int | None
    exposed_memory_ns: int | None  # 0 on CPU, where a copy is an operator like any other and counts as compute
    idle_ns: int | None
    overlap_ratio: float | None  # hidden / comm; None without communication
    evidence: Evidence | None  # the weakest of its collectives
    data_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    other_ns: int
    wait_ns: int | None  # the host blocked on collectives
    paused_ns: int  # ddptrace itself held the training thread: part of `other_ns`
    profiled: bool  # compute comes from a profiler window, not from phases
    ended_by: str  # "optimizer", "backward" or "said"
    rpc_wait_ns: int | None = None  # part of `idle_ns`: blocked on remote calls; None where that is, or nobody watched

    @property
    def is_seen(self) -> bool:
        """Whether anything told when the rank computed."""
        return self.compute_ns is not None


@dataclass(frozen=True, slots=True)
class PartialStepRow:
    """A step of which not all was kept, or that was not recorded: only its length is known."""

    rank: int
    step: int
    begin_at_ns: int
    end_at_ns: int
    wall_ns: int
    ended_by: str


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A stretch of a phase; a step's rows are a partition of it. `phase`: data, forward, backward, optimizer, other."""

    rank: int
    step: int
    phase: str
    begin_at_ns: int
    end_at_ns: int
