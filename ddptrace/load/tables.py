"""What a run directory holds, as plain records. With `diagnosis/tables.py`, all that analysis knows of load.

Instants are integer nanoseconds since the run's zero. Interval arrays are int64 of shape (n, 2), half-open.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.findings import Finding
from ddptrace.rows import row
from ddptrace.schema import Evidence, Phase, RpcOp, StepEnd, UnitMark, UnitRole

MOST_RANKS: Final = 1_000_000
"""Of a run; a file that says more is damaged."""

Intervals = NDArray[np.int64]
INSTANCE: Final = re.compile(r"_\d+$")


@row
@dataclass(frozen=True, slots=True)
class StepMark:
    """One step as it was found during training, from the end of the previous update to the end of this one."""

    ordinal: int
    ended_by: StepEnd
    begin_at_ns: int
    end_at_ns: int
    optimizer: str = ""  # that updated last, "Adam of 4 parameters at train.py:42 in train"; empty where not told
    optimizers: int = 0  # a bit for each that updated; 0 where not told


@row
@dataclass(frozen=True, slots=True)
class PhaseMark:
    """One stretch of a phase as it was seen; marks may nest (a forward inside a closure, an update inside backward)."""

    phase: Phase
    begin_at_ns: int
    end_at_ns: int
    thread: int
    backward: int | None  # ordinal among the rank's backwards, where phase is BACKWARD


class Identity(enum.StrEnum):
    """What tells which collective a call was, strongest first."""

    RECORDED = "recorded"  # ddptrace's own record of the call
    ARGUMENTS = "args"  # the arguments of its kernel or backend range
    ANNOTATION = "annotation"  # the `nccl:…` range around its launch
    NAME = "name"  # the kernel's name alone


@dataclass(frozen=True, slots=True)
class ExecRange:
    """When a collective itself ran, as a profiler saw it."""

    begin_at_ns: int
    end_at_ns: int
    evidence: Evidence  # DEVICE or BACKEND
    name: str
    lane: str  # the thread or stream it ran on


@dataclass(frozen=True, slots=True)
class CallEvents:
    """When a collective ran on the device, by events on its streams."""

    ready_at_ns: int  # the stream that launched it had come there: its inputs were ready
    end_at_ns: int | None  # None where only a stream that waits for it may tell
    duration_ns: int | None  # by its backend; None where it does not tell
    error_ns: int  # both instants may be off by this
    of_marks: bool = False  # it was issued on the stream of the training's marks


@dataclass(frozen=True, slots=True)
class StreamWait:
    """A stream of the device was made to wait for a collective: when it came there, and when it went on."""

    begin_at_ns: int
    end_at_ns: int
    of_marks: bool  # it is the stream of the training's marks


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """Where the compute stream was when, by events. Columns have shape (n,), in the order in which the host put the
    events on the stream."""

    device: str  # "cuda:0"
    mark: NDArray[np.uint8]  # DeviceMark
    placed_at_ns: NDArray[np.int64]  # by the host
    at_ns: NDArray[np.int64]  # on the device; 0 where `mark` is UNTIMED
    error_ns: int  # no instant is off by more
    waits: Intervals = field(default_factory=lambda: np.zeros((0, 2), np.int64))  # it waited for an event of a stream
    still: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))  # events behind which the host
    #   launched nothing: placed by the host, when the stream came there, until when


@row
@dataclass(frozen=True, slots=True)
class Call:
    """One collective call on one rank."""

    seq: int  # unique on the rank, in launch order
    op: str
    group: str
    ordinal: int  # k-th call of this group on this rank, from 0
    launch_at_ns: int
    issued_at_ns: int  # the launching call returned: not when communication began
    nbytes_in: int  # of the tensors that it sends, reduces or overwrites in place: numel x element size of each
    nbytes_out: int  # of the tensors that only receive: at a gather's root the whole list, elsewhere nothing
    dtype: str
    thread: int
    is_sync: bool
    is_native: bool
    reducer: int | None
    hook: int | None  # seq of the hook that issued it
    done_at_ns: int | None  # completion callback: the communication's end within microseconds
    waits: tuple[tuple[int, int], ...]  # the host blocked on it, begin and end
    exec: ExecRange | None  # from a profiler window
    group_size: int | None = None  # ranks in its group, where the call itself or its group tells
    identity: Identity = Identity.RECORDED
    origin: str | None = None  # who wanted it, a word of `schema.Origin`; None where a foreign trace does not tell
    site: str | None = None  # "train.py:42 in train_step": the program's line that it comes from
    through: str | None = None  # the line of the library that issued it for the program's
    module: str | None = None  # nn.Module whose forward or backward it belongs to, named from the outermost one
    turn: int | None = None  # k-th of this group, sends and receives left out; None for these and where unknown
    error: str | None = None  # what it failed with, where that was seen
    peer: int | None = None  # global rank that it sends to or receives from, or that is its root; None where unknown
    is_profiled: bool = False  # a profiler was told of it
    on_device: bool = False  # its tensors are a device's: a wait of the host only orders streams
    events: CallEvents | None = None  # on the device, where they were recorded
    stream_waits: tuple[StreamWait, ...] = ()  # of the device's streams, where they were recorded
    is_launch_recorded: bool = True  # False: `launch_at_ns` is the latest instant that is possible
    unit: int | None = None  # number of its unit, where that was recorded or a foreign trace tells
    role: UnitRole = UnitRole.OTHER  # what it does for its unit
    unit_phase: Phase | None = None  # the phase that it serves its unit in: FORWARD or BACKWARD
    microbatch: int | None = None  # of a pipeline, from 0
    unit_turn: int | None = None  # k-th time that the schedule of the pipeline ran, from 0
    sent_nbytes: tuple[int, ...] | None = None  # of an all-to-all: to each rank of its group, where that is recorded
    unknown_args: str | None = None  # JSON of what a profiler's file says of it and ddptrace does not know


@dataclass(frozen=True, slots=True)
class HookCall:
    """One call of a user's communication hook: `begin` to `end` on the host, `done` when its future completed."""

    seq: int
    name: str
    reducer: int
    index: int  # of the bucket
    backward: int
    nbytes: int
    dtype: str
    begin_at_ns: int
    end_at_ns: int
    done_at_ns: int | None


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    numel: int
    nbytes: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Which parameters share a bucket. `buckets` holds indices into the reducer's parameters, in launch order."""

    layout: int
    from_backward: int  # first backward (ordinal in the rank) that used it
    buckets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Reducer:
    reducer: int
    kind: str
    module: str
    group: str
    bucket_cap_nbytes: int | None
    parameters: tuple[Parameter, ...]
    layouts: tuple[Layout, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """Gradients of one reducer in one backward, in the order in which they were accumulated."""

    reducer: int
    backward: int
    parameters: NDArray[np.int64]
    at_ns: Intervals  # shape (n,)


class UnitKind(enum.StrEnum):
    """What a unit groups."""

    BUCKET = "bucket"  # gradients that one collective reduces
    FSDP = "fsdp"  # parameters that are gathered together: those of one `fully_shard`
    TENSOR = "tensor"  # a module whose tensors are divided among ranks
    PIPELINE = "pipeline"  # a stage of a pipeline
    EXPERT = "expert"  # a layer whose experts are divided among ranks
    OTHER = "other"  # no unit


@dataclass(frozen=True, slots=True)
class UnitParameter:
    """A parameter of a unit. Bytes are those of the whole parameter, and of this rank's shard of it."""

    name: str
    dtype: str
    nbytes: int
    sharded_nbytes: int


@dataclass(frozen=True, slots=True)
class UnitGroup:
    """A process group over which a unit communicates."""

    group: str  # its name
    dimension: str  # of the DeviceMesh, as the program named it; empty where it has no name
    role: UnitRole  # of the collectives in it; OTHER: any


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a pipeline, where a unit is one."""

    pipeline: int  # number of its schedule on the rank
    number: int  # from 0
    ranks: tuple[int, ...]  # global rank of each stage of the pipeline
    schedule: str  # its class
    microbatches: int


@dataclass(frozen=True, slots=True)
class Unit:
    """What one decision of the program communicates together, as the rank described it."""

    unit: int
    kind: UnitKind
    module: str  # path of its module, as in `Call.module`; several, divided by commas, where it has several
    parameters: tuple[UnitParameter, ...] = ()
    groups: tuple[UnitGroup, ...] = ()
    reshards: bool | None = None  # after forward, the whole parameters are let go; None where that means nothing
    is_root: bool = False  # it has what no unit inside it has
    stage: Stage | None = None

    @property
    def nbytes(self) -> int:
        """Of its whole parameters."""
        return sum(parameter.nbytes for parameter in self.parameters)

    @property
    def sharded_nbytes(self) -> int:
        return sum(parameter.sharded_nbytes for parameter in self.parameters)


@dataclass(frozen=True, slots=True)
class UnitEvent:
    """Something happened to a unit."""

    unit: int
    mark: UnitMark
    begin_at_ns: int
    end_at_ns: int
    phase: Phase | None = None
    microbatch: int | None = None  # of a pipeline, from 0
    turn: int | None = None  # k-th time that the schedule of the pipeline ran, from 0


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    ranks: tuple[int, ...]  # () where they are not known
    backend: str
    threads: int | None  # worker threads of the backend; None where it has no such queue
    description: str = ""  # by the program or its DeviceMesh: "mesh_tp"; empty where not told


def class_of(module: str) -> str:
    """The class of a module by its name in a file of a profiler, which numbers them: `Linear` of `Linear_12`."""
    return INSTANCE.sub("", module)


class Work(enum.IntEnum):
    """What a device was busy with."""

    COMPUTE = 0  # a kernel that does not communicate
    COMM = 1
    MEMORY = 2  # a copy or fill


class Operation(enum.IntEnum):
    """What kind of operator launched device work, of those whose FLOPs can be counted."""

    NONE = 0
    MATRIX = 1  # a matrix product
    ATTENTION = 2
    CONVOLUTION = 3


@dataclass(frozen=True, slots=True)
class Counts:
    """How much each piece of device work computed and moved, as far as its file tells. All columns have shape (n,)."""

    nbytes: NDArray[np.int64]  # that a copy or fill moved; -1 where not told
    operation: NDArray[np.uint8]  # Operation: of the operator around the launch
    flops: NDArray[np.int64]  # of that operator: at the longest of its kernels, 0 at the rest; -1 where not known
    dtype: NDArray[np.int64]  # index into `dtypes`: of its operands; -1 where not known
    dtypes: tuple[str, ...]  # as written: "c10::BFloat16", …


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """Every kernel, copy and fill of one window, in order of begin. All columns have shape (n,)."""

    kind: NDArray[np.uint8]  # Work
    stream: NDArray[np.int64]  # index into `streams`
    begin_at_ns: NDArray[np.int64]
    end_at_ns: NDArray[np.int64]
    launched: NDArray[np.bool_]  # the file holds its launch
    launch_begin_at_ns: NDArray[np.int64]  # the host's call that launched it; 0 where `launched` is false
    launch_end_at_ns: NDArray[np.int64]
    name: NDArray[np.int64]  # index into `names`, as are the next three, which are -1 where the trace tells nothing
    module: NDArray[np.int64]  # innermost nn.Module around the launch
    annotation: NDArray[np.int64]  # innermost user annotation around the launch, profiler steps left out
    operator: NDArray[np.int64]  # outermost operator around the launch
    streams: tuple[str, ...]  # device and stream, as in "0:7"
    names: tuple[str, ...]
    counts: Counts | None = None  # None where nobody asked


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """Innermost operators of the training threads in one window, in order of begin. Columns have shape (n,)."""

    name: NDArray[np.int64]  # index into `names`
    begin_at_ns: NDArray[np.int64]
    end_at_ns: NDArray[np.int64]
    names: tuple[str, ...]


class IdleCause(enum.IntEnum):
    """What held the thread that launches, while the device was idle."""

    NOTHING = 0  # in no operator or call: Python between them where no stacks are recorded, or not running at all
    OPERATOR = 1  # host work of an operator
    PYTHON = 2  # a Python function, where stacks are recorded
    LAUNCH = 3  # the runtime's call that launches
    RUNTIME = 4  # another call of the runtime or driver
    DATA = 5  # it fetched a batch
    COPY = 6  # a copy; or, for as long as it had waited in one, it caught up
    SYNCHRONIZE = 7  # it waited for the device; or, for as long as it had waited, it caught up
    ALLOCATE = 8  # it allocated or freed memory
    COLLECT = 9  # Python's garbage collection
    QUEUED = 10  # work was launched and had not begun: the host is not to blame
    STILL = 11  # by events: no thread of the process ran, each slept or waited

    @property
    def word(self) -> str:
        return self.name.lower()


HOST_AT_WORK: Final = (
    IdleCause.NOTHING,
    IdleCause.OPERATOR,
    IdleCause.PYTHON,
    IdleCause.LAUNCH,
    IdleCause.RUNTIME,
)
"""Causes that are one for a reader: the host has too much to do for what it launches."""


@dataclass(frozen=True, slots=True)
class HostCalls:
    """Calls in which the threads that launch a device's work may have waited for it (a cause of SYNCHRONIZE, COPY or
    ALLOCATE), and in which they fetched a batch (DATA), in order of begin. Columns have shape (n,)."""

    cause: NDArray[np.uint8]  # IdleCause
    begin_at_ns: NDArray[np.int64]
    end_at_ns: NDArray[np.int64]
    graphs: int = 0  # launches of graphs of kernels, as CUDA graphs are: files often lack some of their kernels


@dataclass(frozen=True, slots=True)
class HostRanges:
    """What threads did around a device's longest idle gaps: ranges in order of begin, outer before inner. Columns have
    shape (n,)."""

    name: NDArray[np.int64]  # index into `names`
    thread: NDArray[np.int64]  # index into `threads`
    begin_at_ns: NDArray[np.int64]
    end_at_ns: NDArray[np.int64]
    is_runtime: NDArray[np.bool_]  # a call of the device's runtime or driver; else an operator or annotation
    names: tuple[str, ...]
    threads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceIdle:
    """The idle time of one window's device in pieces, in time order. Columns have shape (n,)."""

    gap: NDArray[np.int64]  # index into `gaps`
    begin_at_ns: NDArray[np.int64]
    end_at_ns: NDArray[np.int64]
    cause: NDArray[np.uint8]  # IdleCause
    name: NDArray[np.int64]  # index into `names`: the range that the thread was in; -1 where it was in none
    operator: NDArray[np.int64]  # the same of the outermost operator around it
    gaps: Intervals  # from the end of the device's work to the next
    names: tuple[str, ...]
    around: HostRanges | None = None  # what the launching threads did around the longest gaps


@dataclass(frozen=True, slots=True)
class Window:
    """One profiler window, its Kineto file already joined to the calls."""

    file: str
    begin_at_ns: int
    end_at_ns: int
    compute: Intervals  # union; leaf operators of the training threads, or kernels that are not communication
    memory: Intervals  # union; device copies and fills
    on_device: bool  # compute is device time
    device: DeviceWork | None = None  # None where no device worked
    operators: OperatorWork | None = None  # None where compute is the device's
    idle: DeviceIdle | None = None  # None where no device worked
    searched_ns: tuple[int, ...] = ()  # how long DDP followed the graph for unused parameters, each time that it did
    buffers: tuple[tuple[int, int], ...] = ()  # begin and end of each broadcast of buffers by DDP, on the host
    comm_streams: tuple[str, ...] = ()  # streams of `device` that the file names after communication
    host_calls: HostCalls | None = None  # None where no device worked
    unclaimed: NDArray[np.bool_] | None = None  # by piece of `device`: it communicates and belongs to no recorded call;
    #   None where each one does that communicates


@dataclass(frozen=True, slots=True)
class Pause:
    """ddptrace itself held the training thread (starting, stopping or saving the profiler)."""

    begin_at_ns: int
    end_at_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class RpcCall:
    """One remote call, as its caller saw it. `callee` is a worker's name."""

    id: int  # no other call of the run has it
    op: RpcOp
    function: str
    callee: str
    is_internal: bool  # torch's own
    is_native: bool  # the callee runs it without Python
    begin_at_ns: int
    issued_at_ns: int  # the host may go on
    done_at_ns: int | None  # None: the records end before it
    error: str | None  # the type of what it failed with, or "timeout"
    nbytes_out: int | None  # payload and tensors
    nbytes_back: int | None
    wants_nbytes: int  # of its arguments, sent in an autograd context, the gradients
    gradient_nbytes: int | None  # of its result, sent to the callee in backward; None where none was sent
    thread: int = 0  # of its caller
    gives_future: bool = False  # the function's run ends before its result is there


@dataclass(frozen=True, slots=True)
class RpcWait:
    """The host was blocked on the future of remote calls, or in a distributed backward on other workers' parts."""

    begin_at_ns: int
    end_at_ns: int
    thread: int


@dataclass(frozen=True, slots=True)
class RpcRun:
    """One function run for a remote caller, as the callee saw it."""

    call: int | None  # id of its call; None where the caller was not traced
    function: str
    caller: str | None
    begin_at_ns: int
    end_at_ns: int
    is_internal: bool
    failed: bool
    nbytes_in: int
    nbytes_back: int | None  # None where it keeps its result (a remote reference), or its sending was not seen
    gradient_nbytes: int | None  # of its arguments, sent to the caller in backward; None where none was sent
    gives_future: bool = False  # it ends before its result is there


@dataclass(frozen=True, slots=True)
class RankRpc:
    """All remote calls that a rank made or served, in time order, and the worker ids and names that it went by.
    `waits` are those of futures and of distributed backwards: none before schema 1.2."""

    workers: tuple[tuple[int, str], ...] = ()
    calls: tuple[RpcCall, ...] = ()
    runs: tuple[RpcRun, ...] = ()
    waits: tuple[RpcWait, ...] = ()


@dataclass(frozen=True, slots=True)
class HostMark:
    """What the host did to the training thread between two ends of steps."""

    begin_at_ns: int
    end_at_ns: int
    cpu_ns: int  # it ran
    queued_ns: int  # it could have run, and no processor was free
    switches: int  # times that it was made to give its processor up


@dataclass(frozen=True, slots=True)
class GcPause:
    """Python's garbage collector held the training thread."""

    begin_at_ns: int
    end_at_ns: int
    generation: int


@dataclass(frozen=True, slots=True)
class Throttle:
    """A processor quota of the rank's group of processes, looked at now and then."""

    at_ns: int
    throttled_ns: int  # so far
    quota_cores: float


@dataclass(frozen=True, slots=True)
class LinkSample:
    """TCP connections between two addresses, looked at now and then; counts are so far, since they were opened."""

    at_ns: int
    own: str
    peer: str
    sent_nbytes: int  # acknowledged
    busy_ns: int  # data was under way
    rtt_min_ns: int
    resent: int  # segments


@dataclass(frozen=True, slots=True)
class Pulse:
    """Where the training thread is that has recorded nothing for a while."""

    at_ns: int
    phase: Phase | None
    site: str  # the program's line
    frame: str  # the innermost line, which may be a library's
    seq: int  # of its last call
    cpu_ns: int  # processor time of the thread so far


@dataclass(frozen=True, slots=True)
class HostLoad:
    """What held a rank up beside its own work; in time order, and empty where nobody looked."""

    marks: tuple[HostMark, ...] = ()
    collections: tuple[GcPause, ...] = ()
    throttles: tuple[Throttle, ...] = ()
    links: tuple[LinkSample, ...] = ()
    pulses: tuple[Pulse, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """How a rank's records came to be read: what a monitor of the run asks, beside what the tables tell."""

    rank: int  # global rank
    worked_unix_ns: int  # of the newest record of the training itself; 0 if unknown
    backends: tuple[str, ...]  # of its process groups, sorted
    dropped: int = 0  # as in `Records`, as are the next four
    dropped_without_room: int = 0  # part of dropped: the disk had no room
    dropped_in_bursts: int = 0  # part of dropped: too many at once
    torn: int = 0  # slots that never became whole
    damaged: tuple[str, ...] = ()  # what is damaged, in words


@dataclass(frozen=True, slots=True)
class RankRun:
    """Everything one rank recorded, in time order."""

    rank: int
    host: str
    pid: int
    device: str
    clean: bool  # it said that it ended; False: the process died or still runs
    dropped: int  # records lost, counted by the writer
    begin_at_ns: int
    end_at_ns: int  # of the last record where it did not end cleanly
    steps: tuple[StepMark, ...]
    phases: tuple[PhaseMark, ...]
    calls: tuple[Call, ...]
    hooks: tuple[HookCall, ...]
    ready: tuple[Ready, ...]
    reducers: tuple[Reducer, ...]
    groups: tuple[Group, ...]
    windows: tuple[Window, ...]
    pauses: tuple[Pause, ...]
    recorded: bool = True  # by ddptrace; False: all of it is read out of profiler files
    rpc: RankRpc = RankRpc()
    partial_steps: tuple[StepMark, ...] = ()  # not recorded, or let go in part: only when they began and ended is known
    let_go: int = 0  # records that the writer let go, the oldest first
    sampled: bool = False  # some steps were not recorded, as `ddptrace.Keep` had it
    load: HostLoad = HostLoad()
    clock: str = ""  # ranks whose instants are of one clock have the same; "" where not told: those of one host have
    tie_ns: int | None = None  # Unix time less that clock, as its instants have it; None where it was not read
    device_events: DeviceEvents | None = None  # None where no device was timed
    device_ranks: tuple[int, ...] = ()  # that compute on its device, itself among them; empty: none other is known to
    serves: str = ""  # the engine or library with which it serves a model; empty where it trains, or nothing tells
    recording: Recording | None = None  # of its records; None where there are none
    units: tuple[Unit, ...] = ()  # that were recorded; buckets are those of `reducers`
    unit_events: tuple[UnitEvent, ...] = ()
    unrecorded_from_at_ns: int | None = None  # from when on collectives were not recorded; None where all were


@dataclass(frozen=True, slots=True)
class LoadedRank:
    """One rank, read whole. What was found on the way stands beside it."""

    run: RankRun
    findings: tuple[Finding, ...]
    said_world_size: int | None = None  # by its own files


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory. `ranks` are those found; `world_size` those that took part, None where nobody said."""

    path: Path
    schema: str
    run_id: str
    zero_unix_ns: int
    world_size: int | None
    ranks: tuple[RankRun, ...]
    findings: tuple[Finding, ...]
    manifest: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """How NCCL carried out collectives of one function and size, as its log says."""

    function: str  # NCCL's name, "AllReduce"
    nbytes: int  # as NCCL counts: of an all-gather and a reduce-scatter one rank's part
    algorithm: str
    protocol: str  # empty where there is no choice of one
    channels: int | None  # None where the log does not tell


@dataclass(frozen=True, slots=True)
class NcclTime:
    """One collective or message of one rank, as NCCL Inspector timed it."""

    function: str
    nbytes: int  # as in `NcclChoice`
    rank: int  # in its communicator
    ranks: int | None  # of the communicator
    took_ns: int
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    source: str  # what timed it: "kernel_gpu", "kernel_cpu", "collective_cpu"


@dataclass(frozen=True, slots=True)
class NcclTold:
    """What NCCL's own logs and NCCL Inspector tell of a job."""

    choices: Mapping[NcclChoice, int] = field(default_factory=dict)  # how often each was made
    times: tuple[NcclTime, ...] = ()


UNTOLD: Final = NcclTold()
