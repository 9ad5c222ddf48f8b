"""What analysis answers with: one frozen row type per table, and `Result` that holds them.

Times are integer nanoseconds, instants (`_at_ns`) since the run's zero, ratios 0..1, `None` = not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ddptrace.analysis.tables.ranks import (
    ArrivalRow,
    BlameRow,
    ClockRow,
    ContentionRow,
    DesyncRow,
    JitterRow,
    PathRow,
    SuspectRow,
)
from ddptrace.analysis.tables.table import Table as Table  # also to be imported from here
from ddptrace.errors import printable
from ddptrace.load.tables import DeviceWork, Finding, Identity, Intervals
from ddptrace.schema import Evidence


@dataclass(frozen=True, slots=True)
class Population:
    """What a rank's device did in its profiler windows, over one population of its work. Lengths of unions, added over
    the windows: span = idle + what any work covers; hidden + exposed = comm."""

    span_ns: int
    idle_ns: int
    compute_ns: int
    comm_ns: int
    memory_ns: int
    hidden_ns: int
    exposed_ns: int
    overlap_ratio: float | None  # hidden / comm; None without communication


@dataclass(frozen=True, slots=True)
class RankRow:
    """`file`: its profiler file, the first of several. Device counts and populations are None without a window."""

    rank: int
    host: str
    pid: int
    device: str
    clean: bool
    dropped: int
    steps: int
    collectives: int
    windows: int
    file: str | None = None
    gpu_events: int | None = None
    gpu_events_with_launch: int | None = None
    all: Population | None = None  # None where no device worked
    with_launch: Population | None = None  # only work whose launch is in the file


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One device stream (`device:stream`) in one step, clipped to the step's window; step None: all windows whole."""

    rank: int
    step: int | None
    stream: str
    events: int
    busy_ns: int  # union of all its work
    compute_ns: int  # of its work by kind, each a union
    comm_ns: int
    memory_ns: int


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """How far the host ran ahead of the device in one step: work whose launch is in the file.

    host     launch k ┤                     launch k+1 ┤
    stream                ├── k ──┤                       ├── k+1 ──┤
                      delay                    late: the stream had nothing left
    """

    rank: int
    step: int
    launched: int  # device events launched by the step
    late: int  # of them, launched when their stream had run out of work
    delay_p50_ns: int | None  # launch begin to start on the device
    delay_p90_ns: int | None
    delay_max_ns: int | None
    window_ns: int
    idle_ns: int  # of the device in the step's window: nothing runs at all
    host_idle_ns: int  # of that, with nothing launched that still waits: the device waits for the host
    launch_bound: bool  # host_idle is more than `LAUNCH_BOUND_RATIO` of the window


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """Device time by what the host was doing when it launched the work. Sums of durations, which may overlap."""

    rank: int
    kind: str  # "module", "annotation" or "operator"
    name: str
    events: int
    compute_ns: int
    comm_ns: int
    memory_ns: int


@dataclass(frozen=True, slots=True)
class MatchRow:
    """One collective on all the ranks whose files show it: the k-th of its group. Instants are on the time line of
    `clocks`. A rank arrives when its execution begins, or where that is inferred, with its call."""

    match: int
    group: str
    ordinal: int
    op: str
    nbytes: int | None
    ranks: tuple[int, ...]
    seqs: tuple[int, ...]  # on each of `ranks`
    first_start_at_ns: int
    last_start_at_ns: int
    first_end_at_ns: int
    last_end_at_ns: int
    transfer_ns: int  # the shortest execution over the ranks
    last_rank: int | None = None  # the last one to arrive; this and the rest: None where no arrival can be compared
    last_arrival_at_ns: int | None = None
    skew_ns: int | None = None  # between the first arrival and the last
    blame_ns: int | None = None  # between the last but one and the last
    aligned_transfer_ns: int | None = None  # median over ranks, from the last arrival on
    busbw_bytes_per_s: float | None = None  # of the transfer alone
    agrees: bool | None = None  # both estimates of the transfer, within their uncertainty
    uncertainty_ns: int | None = None  # of the arrivals against each other
    bucket: tuple[int, int, int] | None = None  # (reducer, layout, index) that it carried
    step: int | None = None  # on the lowest rank


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


@dataclass(frozen=True, slots=True)
class BucketRow:
    """One occurrence of one gradient bucket on one rank. `parameters` are names, in the bucket's order."""

    rank: int
    step: int | None
    backward: int  # ordinal of the backward in its step
    reducer: int
    layout: int
    index: int
    nbytes: int | None  # None where a foreign trace does not tell
    first_ready_at_ns: int | None
    ready_at_ns: int | None
    launch_at_ns: int
    exec_start_at_ns: int | None
    exec_end_at_ns: int | None
    wait_ns: int | None
    comm_ns: int | None
    hidden_ns: int | None
    exposed_ns: int | None
    exposed_charged_ns: int | None
    evidence: Evidence | None
    parameters: tuple[str, ...]
    queue_ns: int | None  # exec start - launch
    done_at_ns: int | None
    hook: str | None  # name of the user's communication hook
    hook_ns: int | None  # host time inside it, the launching of its collectives included
    seqs: tuple[int, ...]  # the collectives that carried it; empty where a hook did without
    identity: str = "recorded"  # "order": nothing recorded the reducer, this is the index-th gradient all-reduce


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective call on one rank. One that ran past the end of its step has one row per step it ran in (`part`);
    hidden + exposed = comm holds for every row that knows them; `exposed_charged_ns` of a step's rows adds up to its
    exposed time."""

    rank: int
    step: int | None  # None: it ran outside every step
    seq: int
    part: int
    op: str
    group: str
    ordinal: int
    nbytes: int | None  # of the larger side; None where a foreign trace does not tell
    dtype: str
    launch_at_ns: int
    exec_start_at_ns: int | None
    exec_end_at_ns: int | None
    done_at_ns: int | None
    wait_ns: int | None
    queue_ns: int | None
    comm_ns: int | None
    hidden_ns: int | None  # this and the next two: None too where nothing told when the rank computed
    exposed_ns: int | None
    exposed_charged_ns: int | None
    evidence: Evidence | None
    bucket: tuple[int, int, int] | None  # (reducer, layout, index) of the bucket it carried
    group_size: int | None = None
    lane: str | None = None  # the device stream or backend thread it ran on
    algbw_bytes_per_s: float | None = None  # of the whole execution, like busbw in its part 0 only
    busbw_bytes_per_s: float | None = None  # algbw times the op's factor; None where op or group size is not known
    identity: Identity = Identity.RECORDED  # what tells which collective this was
    match: int | None = None  # row of `matches`
    origin: str | None = None  # who wanted it, a word of `schema.Origin`; None where a foreign trace does not tell
    site: str | None = None  # "train.py:42 in train_step": the program's line that it comes from
    module: str | None = None  # nn.Module whose forward or backward it belongs to, named from the outermost one
    turn: int | None = None  # as `ordinal`, but sends and receives are left out, so that it is the same on all ranks
    peer: int | None = None  # global rank that it sends to or receives from, or that is its root; None where unknown
    error: str | None = None  # what it failed with, in one sentence, where that was seen
    profiler_range: str | None = None  # name of its range in the profiler's file, where one was on; no warm-up is there
    on_device: bool = False  # its tensors are a device's: the host only launches it


@dataclass(frozen=True, slots=True)
class RpcRow:
    """One remote call: its caller's and its callee's records, joined by its id. What an untraced side knew is None.

    Bytes are of payloads and tensors, as they are sent; gradients are what distributed backward sends for the call."""

    id: int | None  # None: only the callee was traced
    op: str | None  # "rpc_sync", "rpc_async", "remote", "to_here", "backward" (of a remote reference)
    function: str
    internal: bool  # torch's own: shutdown's agreement, the type of a remote reference
    caller: str | None  # worker names
    callee: str | None
    rank: int | None  # of the caller
    callee_rank: int | None
    step: int | None  # of the caller
    launch_at_ns: int | None
    issued_at_ns: int | None  # the host may go on
    done_at_ns: int | None
    call_ns: int | None  # launch to done
    run_start_at_ns: int | None
    run_end_at_ns: int | None
    run_ns: int | None  # of a function that gives a future: until it gave it
    nbytes_out: int | None
    nbytes_back: int | None
    gradient_nbytes_out: int | None  # of the result, caller to callee; None where backward sent none
    gradient_nbytes_back: int | None  # of the arguments, callee to caller
    gradient_inferred: bool  # nobody saw those of the arguments leave: their size is that of the arguments
    failed: bool
    error: str | None  # type of what the caller was told, or "timeout"
    gives_future: bool = False  # its run ends when it has given that, not when its result is there


@dataclass(frozen=True, slots=True)
class RpcPairRow:
    """All calls of one kind from one worker to another. Sums leave out what was not measured, and are None where
    nothing was. Where both are the same worker nothing of it went over a wire."""

    caller: str | None
    callee: str | None
    op: str | None
    internal: bool
    calls: int
    failed: int
    unfinished: int  # neither a result nor an error was seen
    nbytes_out: int | None
    nbytes_back: int | None
    gradient_nbytes_out: int
    gradient_nbytes_back: int
    call_ns: int
    runs: int  # seen at the callee
    run_ns: int
    call_median_ns: int | None = None
    run_median_ns: int | None = None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One process group, as its own ranks describe it."""

    group: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]  # of those of its ranks that left records, each once


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """All collectives of one kind that one rank issued in one step, of sends, receives and ops with a root those of one
    peer: each counts once, in the step that launched it.

    Bytes are of tensors, None where nothing tells them. `sent_nbytes` is computed, not measured: what one rank of the
    group sends, on average, with an algorithm that sends as little as the op allows (a ring)."""

    rank: int
    step: int | None  # None: launched outside every step
    op: str
    group: str
    group_size: int | None
    origin: str | None  # a word of `schema.Origin`
    dtype: str
    calls: int
    nbytes_in: int | None  # handed over
    nbytes_out: int | None  # filled; 0 where the op works in place
    sent_nbytes: int | None  # None too where the op or the size of its group is not known
    peer: int | None = None  # as in `CollectiveRow`


@dataclass(frozen=True, slots=True)
class GradientTrafficRow:
    """What one reducer sent of its gradients in one step on one rank. Only backwards that gave it a gradient count."""

    rank: int
    step: int
    reducer: int
    name: str  # "DistributedDataParallel of Net"
    gradient_nbytes: int  # of all parameters in its buckets: what one synchronised backward should send
    backwards: int
    synchronised: int  # of them, those that sent gradients
    last_synchronised: bool
    one_update: bool  # the step has its update after all of these backwards, and none before
    nbytes: int | None  # tensors handed to its collectives; None where a hook communicated by other means
    dtypes: tuple[str, ...]  # as they were sent
    hook: str | None  # the user's communication hook, where its registration was seen
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
    """Everything `ddptrace analyze` knows of a run."""

    schema: str
    run_id: str
    zero_unix_ns: int
    world_size: int | None
    ranks: Table[RankRow]
    steps: Table[StepRow]
    phases: Table[PhaseRow]
    buckets: Table[BucketRow]
    collectives: Table[CollectiveRow]
    findings: Table[Finding]
    activity: tuple[Activity, ...] = field(repr=False)
    streams: Table[StreamRow] = field(default_factory=lambda: Table(StreamRow))
    launches: Table[LaunchRow] = field(default_factory=lambda: Table(LaunchRow))
    scopes: Table[ScopeRow] = field(default_factory=lambda: Table(ScopeRow))
    matches: Table[MatchRow] = field(default_factory=lambda: Table(MatchRow))
    recorded: bool = True  # by ddptrace; False: read out of profiler files alone
    rpcs: Table[RpcRow] = field(default_factory=lambda: Table(RpcRow))
    rpc_pairs: Table[RpcPairRow] = field(default_factory=lambda: Table(RpcPairRow))
    groups: Table[GroupRow] = field(default_factory=lambda: Table(GroupRow))
    traffic: Table[TrafficRow] = field(default_factory=lambda: Table(TrafficRow))
    gradient_traffic: Table[GradientTrafficRow] = field(default_factory=lambda: Table(GradientTrafficRow))
    partial_steps: Table[PartialStepRow] = field(default_factory=lambda: Table(PartialStepRow))
    blind_spots: tuple[str, ...] = ()  # what no surface of ddptrace sees, as the run itself says
    desyncs: Table[DesyncRow] = field(default_factory=lambda: Table(DesyncRow))
    clocks: Table[ClockRow] = field(default_factory=lambda: Table(ClockRow))
    arrivals: Table[ArrivalRow] = field(default_factory=lambda: Table(ArrivalRow))
    blame: Table[BlameRow] = field(default_factory=lambda: Table(BlameRow))
    suspects: Table[SuspectRow] = field(default_factory=lambda: Table(SuspectRow))
    critical_path: Table[PathRow] = field(default_factory=lambda: Table(PathRow))
    contention: Table[ContentionRow] = field(default_factory=lambda: Table(ContentionRow))
    jitter: Table[JitterRow] = field(default_factory=lambda: Table(JitterRow))

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {len(getattr(self, name))}" for name in ("ranks", "steps", "buckets", "findings"))
        return f"Result of run {printable(self.run_id[:8]) or 'without id'} (rows: {rows})"

    def _repr_html_(self) -> str:
        """For a notebook."""
        from ddptrace.analysis.tables.html import result_html

        return result_html(self)

    def to_json_dict(self) -> dict[str, Any]:
        """The documented keys of `ddptrace analyze --json`."""
        return {key: value.to_dicts() if isinstance(value, Table) else value for key, value in self.json_items()}

    def json_items(self) -> Iterator[tuple[str, Any]]:
        """The same, one by one, and tables as they are: as dicts they would take several times the memory."""
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
