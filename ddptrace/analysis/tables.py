"""What analysis answers with: one frozen row type per table, and `Result` that holds them.

Times are integer nanoseconds, instants (`_at_ns`) since the run's zero, ratios 0..1, `None` = not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ddptrace.analysis.across.tables import (
    ArrivalRow,
    BlameRow,
    ClockRow,
    ContentionRow,
    DesyncRow,
    JitterRow,
    PathRow,
    SuspectRow,
)
from ddptrace.analysis.table import Table as Table  # also to be imported from here
from ddptrace.errors import printable
from ddptrace.load.tables import DeviceWork, Finding, Identity, Intervals
from ddptrace.schema import Evidence


@dataclass(frozen=True, slots=True)
class Population:
    """What a rank's device did in its profiler windows, over one population of its work. Times are lengths of unions,
    added up over the windows: span = idle + time covered by any work; hidden + exposed = comm."""

    span_ns: int  # from the first event to the last, added up over the windows
    idle_ns: int  # nothing ran on the device
    compute_ns: int  # kernels that do not communicate ran
    comm_ns: int  # kernels that communicate ran
    memory_ns: int  # copies and fills ran
    hidden_ns: int  # part of comm with compute beside it
    exposed_ns: int  # the rest of comm
    overlap_ratio: float | None  # hidden / comm; None without communication


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank."""

    rank: int  # global rank
    host: str  # name of its host
    pid: int  # its process
    device: str  # name of the device that it computed on
    clean: bool  # it ended its trace; False: the process died or still runs
    dropped: int  # records that it could not write
    steps: int  # steps that were recorded whole
    collectives: int  # collective calls
    windows: int  # profiler windows
    file: str | None = None  # its profiler file, the first of several; None without a window
    gpu_events: int | None = None  # device events in its windows; None without a window
    gpu_events_with_launch: int | None = None  # of these, events whose launch is in the file
    all: Population | None = None  # over all device work; None where no device worked
    with_launch: Population | None = None  # over device work whose launch is in the file


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One device stream in one step, clipped to the step's window."""

    rank: int  # global rank
    step: int | None  # ordinal of the step; None: all windows whole
    stream: str  # "device:stream", as in "0:7"
    events: int  # kernels, copies and fills
    busy_ns: int  # union of all its work
    compute_ns: int  # union of kernels that do not communicate
    comm_ns: int  # union of kernels that communicate
    memory_ns: int  # union of copies and fills


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """How far the host ran ahead of the device in one step: work whose launch is in the file.

    host     launch k ┤                     launch k+1 ┤
    stream                ├── k ──┤                       ├── k+1 ──┤
                      delay                    late: the stream had nothing left
    """

    rank: int  # global rank
    step: int  # ordinal of the step
    launched: int  # device events that the step launched
    late: int  # of these, events launched when their stream had run out of work
    delay_p50_ns: int | None  # from the begin of the launch to the start on the device, median
    delay_p90_ns: int | None  # the same, 90th percentile
    delay_max_ns: int | None  # the same, longest
    window_ns: int  # length of the step's window
    idle_ns: int  # nothing ran on the device
    host_idle_ns: int  # part of idle with nothing launched that still waits: the device waits for the host
    launch_bound: bool  # host_idle is more than `LAUNCH_BOUND_RATIO` of the window


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """Device time by what the host was doing when it launched the work. Sums of durations, which may overlap."""

    rank: int  # global rank
    kind: str  # "module", "annotation" or "operator"
    name: str  # of the module, annotation or operator
    events: int  # device events that it launched
    compute_ns: int  # sum of its kernels that do not communicate
    comm_ns: int  # sum of its kernels that communicate
    memory_ns: int  # sum of its copies and fills


@dataclass(frozen=True, slots=True)
class MatchRow:
    """One collective on all ranks whose files show it. Instants are on the time line of `clocks`. A rank arrives when
    its execution begins, or where that is inferred, with its call."""

    match: int  # number of the row
    group: str  # process group
    ordinal: int  # k-th call of the group, from 0
    op: str  # operation
    nbytes: int | None  # of the larger side; None where it is not known
    ranks: tuple[int, ...]  # global ranks that show it
    seqs: tuple[int, ...]  # `seq` in `collectives` on each of these ranks
    first_start_at_ns: int  # first begin of its execution on any rank
    last_start_at_ns: int  # last begin
    first_end_at_ns: int  # first end
    last_end_at_ns: int  # last end
    transfer_ns: int  # shortest execution over the ranks
    last_rank: int | None = None  # last rank to arrive; None, as the next seven, where arrivals cannot be compared
    last_arrival_at_ns: int | None = None  # when it arrived
    skew_ns: int | None = None  # from the first arrival to the last
    blame_ns: int | None = None  # from the last but one arrival to the last
    aligned_transfer_ns: int | None = None  # from the last arrival on, median over the ranks
    busbw_bytes_per_s: float | None = None  # bus bandwidth of the transfer alone
    agrees: bool | None = None  # both estimates of the transfer agree within their uncertainty
    uncertainty_ns: int | None = None  # of the arrivals against each other
    bucket: tuple[int, int, int] | None = None  # (reducer, layout, index) of the bucket that it carried
    step: int | None = None  # ordinal of the step on the lowest rank


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

    @property
    def is_seen(self) -> bool:
        """Whether anything told when the rank computed."""
        return self.compute_ns is not None


@dataclass(frozen=True, slots=True)
class PartialStepRow:
    """A step that was not recorded, or of which not all was kept: only its length is known."""

    rank: int  # global rank
    step: int  # ordinal of the step on its rank
    begin_at_ns: int  # end of the previous step
    end_at_ns: int  # end of its last update
    wall_ns: int  # from begin to end
    ended_by: str  # "optimizer", "backward" or "said"


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A stretch of one phase; a step's rows are a partition of it."""

    rank: int  # global rank
    step: int  # ordinal of the step
    phase: str  # "data", "forward", "backward", "optimizer" or "other"
    begin_at_ns: int  # begin of the stretch
    end_at_ns: int  # its end


@dataclass(frozen=True, slots=True)
class BucketRow:
    """One occurrence of one gradient bucket on one rank."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that launched it; None outside of steps
    backward: int  # ordinal of the backward in its step
    reducer: int  # number of the reducer; a DDP module has one
    layout: int  # up by one each time the reducer rebuilds its buckets
    index: int  # in launch order, from 0
    nbytes: int | None  # of its gradients; None where a foreign trace does not tell
    first_ready_at_ns: int | None  # its first gradient was accumulated
    ready_at_ns: int | None  # its last gradient was accumulated
    launch_at_ns: int  # the host issued the collective; not when communication began
    exec_start_at_ns: int | None  # the communication began
    exec_end_at_ns: int | None  # the communication ended
    wait_ns: int | None  # the host was blocked on it
    comm_ns: int | None  # the communication ran
    hidden_ns: int | None  # part of comm in which the rank computed
    exposed_ns: int | None  # the rest of comm
    exposed_charged_ns: int | None  # its share of the step's exposed communication: the column to sort by
    evidence: Evidence | None  # where the execution comes from, the weakest of its collectives
    parameters: tuple[str, ...]  # names of its parameters, in the bucket's order
    queue_ns: int | None  # from launch to begin of the execution
    done_at_ns: int | None  # the host learned that it was over
    hook: str | None  # name of the user's communication hook
    hook_ns: int | None  # host time inside the hook, launching included
    seqs: tuple[int, ...]  # `seq` of the collectives that carried it; empty where a hook did without
    identity: str = "recorded"  # "recorded", or "order": nothing recorded the reducer, this is the index-th gradient
    #   all-reduce


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective call on one rank. A call that ran past the end of its step has one row for each step that it ran
    in (`part`). hidden + exposed = comm for every row that knows them; `exposed_charged_ns` of a step's rows adds up to
    its exposed time."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that it ran in; None outside of steps
    seq: int  # number of the call on its rank, in launch order
    part: int  # 0 in the step where its execution began, then 1, 2, ...
    op: str  # operation
    group: str  # process group
    ordinal: int  # k-th call of its group on its rank, from 0
    nbytes: int | None  # of the larger side; None where a foreign trace does not tell
    dtype: str  # of its tensors
    launch_at_ns: int  # the host issued it; not when communication began
    exec_start_at_ns: int | None  # the communication began
    exec_end_at_ns: int | None  # the communication ended
    done_at_ns: int | None  # the host learned that it was over
    wait_ns: int | None  # the host was blocked on it
    queue_ns: int | None  # from launch to begin of the execution
    comm_ns: int | None  # the communication ran, in this step
    hidden_ns: int | None  # part of comm in which the rank computed; None, as the next two, where that is not known
    exposed_ns: int | None  # the rest of comm
    exposed_charged_ns: int | None  # its share of the step's exposed communication
    evidence: Evidence | None  # where the execution comes from
    bucket: tuple[int, int, int] | None  # (reducer, layout, index) of the bucket that it carried
    group_size: int | None = None  # ranks in its group
    lane: str | None = None  # device stream or backend thread that it ran on
    algbw_bytes_per_s: float | None = None  # bytes / time of the whole execution; in part 0 only, as busbw
    busbw_bytes_per_s: float | None = None  # algbw times the factor of the op; None where op or group size is not known
    identity: Identity = Identity.RECORDED  # what tells which collective this was
    match: int | None = None  # row of `matches`
    origin: str | None = None  # who asked for it, a word of `schema.Origin`; None where a foreign trace does not tell
    site: str | None = None  # line of the program that led to it, as in "train.py:42 in train_step"
    through: str | None = None  # line of the library that issued it for the program
    module: str | None = None  # nn.Module whose forward or backward it belongs to, named from the outermost one
    turn: int | None = None  # as ordinal without sends and receives, so that it is the same on all ranks
    peer: int | None = None  # global rank that it sends to or receives from, or its root; None where unknown
    error: str | None = None  # what it failed with, in one sentence
    profiler_range: str | None = None  # name of its range in the profiler's file; not for warm-up steps
    on_device: bool = False  # its tensors are on a device: the host only launches it


@dataclass(frozen=True, slots=True)
class RpcRow:
    """One remote call: the records of its caller and of its callee, joined by its id. What an untraced side knew is
    None. Bytes are of payloads and tensors as they are sent; gradients are what distributed backward sends for the
    call."""

    id: int | None  # number of the call; None: only the callee was traced
    op: str | None  # "rpc_sync", "rpc_async", "remote", "to_here" or "backward" (of a remote reference)
    function: str  # name of the function that runs at the callee
    internal: bool  # torch's own: the agreement of shutdown, the type of a remote reference
    caller: str | None  # name of the worker that called
    callee: str | None  # name of the worker that ran it
    rank: int | None  # global rank of the caller
    callee_rank: int | None  # global rank of the callee
    step: int | None  # ordinal of the caller's step
    launch_at_ns: int | None  # the caller called
    issued_at_ns: int | None  # the caller's host may go on
    done_at_ns: int | None  # the result was there
    call_ns: int | None  # from launch to done
    run_start_at_ns: int | None  # the callee began to run the function
    run_end_at_ns: int | None  # the callee ended it
    run_ns: int | None  # run time at the callee; of a function that returns a future, until it returned it
    nbytes_out: int | None  # from caller to callee
    nbytes_back: int | None  # from callee to caller
    gradient_nbytes_out: int | None  # gradients of the result, caller to callee; None where backward sent none
    gradient_nbytes_back: int | None  # gradients of the arguments, callee to caller
    gradient_inferred: bool  # nobody saw the arguments' gradients leave: their size is that of the arguments
    failed: bool  # it failed
    error: str | None  # type of the error that the caller saw, or "timeout"
    gives_future: bool = False  # its run ends when it has returned a future, not when its result is there


@dataclass(frozen=True, slots=True)
class RpcPairRow:
    """All calls of one kind from one worker to another. Sums leave out what was not measured, and are None where
    nothing was. Where both are the same worker, nothing of it went over a wire."""

    caller: str | None  # name of the worker that called
    callee: str | None  # name of the worker that ran them
    op: str | None  # as in `rpcs`
    internal: bool  # torch's own calls
    calls: int  # number of calls
    failed: int  # of these, calls that failed
    unfinished: int  # of these, calls of which neither a result nor an error was recorded
    nbytes_out: int | None  # from caller to callee
    nbytes_back: int | None  # from callee to caller
    gradient_nbytes_out: int  # gradients of results, caller to callee
    gradient_nbytes_back: int  # gradients of arguments, callee to caller
    call_ns: int  # sum of call times
    runs: int  # runs recorded at the callee
    run_ns: int  # sum of run times
    call_median_ns: int | None = None  # median of call times
    run_median_ns: int | None = None  # median of run times


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One process group, as its own ranks describe it."""

    group: str  # name of the group
    ranks: tuple[int, ...]  # its global ranks
    hosts: tuple[str, ...]  # of those of its ranks that left records, each once


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """All collectives of one kind that one rank issued in one step; sends, receives and ops with a root, those of one
    peer. Each call counts once, in the step that launched it. Bytes are of tensors. `sent_nbytes` is computed, not
    measured."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that launched them; None outside of steps
    op: str  # operation
    group: str  # process group
    group_size: int | None  # ranks in the group
    origin: str | None  # who asked for them, a word of `schema.Origin`
    dtype: str  # of their tensors
    calls: int  # number of calls
    nbytes_in: int | None  # of tensors handed over; None where nothing tells
    nbytes_out: int | None  # of tensors filled; 0 where the op works in place
    sent_nbytes: int | None  # what one rank of the group sends, on average, with the algorithm that sends least (a
    #   ring); None where op or group size is not known
    peer: int | None = None  # as in `collectives`


@dataclass(frozen=True, slots=True)
class GradientTrafficRow:
    """What one reducer sent of its gradients in one step on one rank. Only backwards that gave it a gradient count."""

    rank: int  # global rank
    step: int  # ordinal of the step
    reducer: int  # number of the reducer
    name: str  # as in "DistributedDataParallel of Net"
    gradient_nbytes: int  # of all parameters in its buckets: what one synchronised backward should send
    backwards: int  # backwards that gave it a gradient
    synchronised: int  # of these, backwards that sent gradients
    last_synchronised: bool  # the last of them sent gradients
    one_update: bool  # the step has its update after all of these backwards, and none before
    nbytes: int | None  # tensors handed to its collectives; None where a hook communicated by other means
    dtypes: tuple[str, ...]  # of the tensors that were sent
    hook: str | None  # the user's communication hook, where its registration was recorded
    parameter_dtypes: tuple[str, ...]  # of the parameters in its buckets


@dataclass(frozen=True, slots=True)
class Activity:
    """What a picture of one rank needs beside the tables. Interval arrays are unions, shape (n, 2)."""

    rank: int
    compute: Intervals
    backend: tuple[tuple[str, str, int, int, int], ...]  # lane, name, begin, end, seq: the backend's own ranges
    device: tuple[DeviceWork, ...] = ()  # by window


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Hold everything that ddptrace knows of a run: its tables and findings."""

    schema: str  # schema version of the run
    run_id: str  # 128 bits in hex; empty for foreign traces
    zero_unix_ns: int  # Unix time of the run's zero, ns: instants count from here
    world_size: int | None  # ranks that took part; None where nothing tells
    ranks: Table[RankRow]  # one row per rank
    steps: Table[StepRow]  # one row per step and rank
    phases: Table[PhaseRow]  # stretches of phases
    buckets: Table[BucketRow]  # one row per occurrence of a gradient bucket on a rank
    collectives: Table[CollectiveRow]  # one row per call, rank and step that it ran in
    findings: Table[Finding]  # what the numbers mean and what spoils them, in sentences
    activity: tuple[Activity, ...] = field(repr=False)
    streams: Table[StreamRow] = field(default_factory=lambda: Table(StreamRow))  # device streams, by step
    launches: Table[LaunchRow] = field(default_factory=lambda: Table(LaunchRow))  # how far the host ran ahead of the
    #   device, by step
    scopes: Table[ScopeRow] = field(default_factory=lambda: Table(ScopeRow))  # device time by module, annotation and
    #   operator
    matches: Table[MatchRow] = field(default_factory=lambda: Table(MatchRow))  # the same collective on all ranks
    recorded: bool = True  # by ddptrace; False: read out of profiler files alone
    rpcs: Table[RpcRow] = field(default_factory=lambda: Table(RpcRow))  # remote calls
    rpc_pairs: Table[RpcPairRow] = field(default_factory=lambda: Table(RpcPairRow))  # remote calls by pair of workers
    groups: Table[GroupRow] = field(default_factory=lambda: Table(GroupRow))  # process groups
    traffic: Table[TrafficRow] = field(default_factory=lambda: Table(TrafficRow))  # bytes by kind of collective, step
    #   and rank
    gradient_traffic: Table[GradientTrafficRow] = field(default_factory=lambda: Table(GradientTrafficRow))  # bytes of
    #   gradients by reducer, step and rank
    partial_steps: Table[PartialStepRow] = field(default_factory=lambda: Table(PartialStepRow))  # steps of which only
    #   the length is known
    blind_spots: tuple[str, ...] = ()  # what ddptrace cannot see in this run
    desyncs: Table[DesyncRow] = field(default_factory=lambda: Table(DesyncRow))  # where a rank's calls part from the
    #   other ranks'
    clocks: Table[ClockRow] = field(default_factory=lambda: Table(ClockRow))  # how far each rank's clock is from the
    #   reference rank's
    arrivals: Table[ArrivalRow] = field(default_factory=lambda: Table(ArrivalRow))  # waiting and transfer of each rank
    #   in each matched collective
    blame: Table[BlameRow] = field(default_factory=lambda: Table(BlameRow))  # what each rank's phases cost each step
    suspects: Table[SuspectRow] = field(default_factory=lambda: Table(SuspectRow))  # ranks that make the others wait,
    #   and why
    critical_path: Table[PathRow] = field(default_factory=lambda: Table(PathRow))  # what the run waited for
    contention: Table[ContentionRow] = field(default_factory=lambda: Table(ContentionRow))  # operators that take longer
    #   beside communication
    jitter: Table[JitterRow] = field(default_factory=lambda: Table(JitterRow))  # how the parts of each rank's steps
    #   vary

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {len(getattr(self, name))}" for name in ("ranks", "steps", "buckets", "findings"))
        return f"Result of run {printable(self.run_id[:8]) or 'without id'} (rows: {rows})"

    def _repr_html_(self) -> str:
        """For a notebook."""
        from ddptrace.analysis.shown import result_html

        return result_html(self)

    def to_json_dict(self) -> dict[str, Any]:
        """Return the documented keys of `ddptrace analyze --json`."""
        return {key: value.to_dicts() if isinstance(value, Table) else value for key, value in self.json_items()}

    def json_items(self) -> Iterator[tuple[str, Any]]:
        """Yield the same keys one by one, tables as they are: as dicts they would take several times the memory."""
        from ddptrace.analysis.summary import summarize

        yield from {
            "schema": self.schema,
            "run_id": self.run_id,
            "zero_unix_ns": self.zero_unix_ns,
            "world_size": self.world_size,
            "recorded": self.recorded,
            "blind_spots": list(self.blind_spots),
            "summary": summarize(self).to_json_dict(),
        }.items()
        for name in (
            "ranks", "steps", "phases", "buckets", "collectives", "streams", "launches", "scopes", "matches",
            "rpcs", "rpc_pairs", "groups", "traffic", "gradient_traffic", "partial_steps",
            "desyncs", "clocks", "arrivals", "blame", "suspects", "critical_path", "contention", "jitter",
            "findings",
        ):  # fmt: skip
            yield name, getattr(self, name)
