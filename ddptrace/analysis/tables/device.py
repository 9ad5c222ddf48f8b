"""Rows of `ranks`, `streams`, `launches`, `idle`, `scopes`, `kernels` and `copies`: ranks, and what devices did."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.tables import DeviceWork, HostCalls, HostRanges, Intervals
from ddptrace.rows import row


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


@row
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


@row
@dataclass(frozen=True, slots=True)
class IdleRow:
    """Idle time of a rank's device in one step, by what the thread was in that launched the work after it. Where that
    thread waited for the device when it ran dry, its work after that belongs to the wait, for as long as it had waited.
    The rows of one step add up to `idle_ns` in `launches`. Where only events tell of a step, its rows have the idle
    time that is proved, in which the host fetched a batch (data) or all threads of the process stood still (still)."""

    rank: int  # global rank
    step: int | None  # ordinal of the step; None: outside of steps
    cause: str  # a word of `IdleCause`: nothing, operator, python, launch, runtime, data, copy, synchronize, allocate,
    #   collect, queued, still
    name: str  # the operator, call, function or range; empty where there was none
    operator: str  # the outermost operator around it; empty where there was none
    gaps: int  # gaps of the device that it has a part of
    idle_ns: int  # how long the device was idle meanwhile
    half_gap_ns: int  # half of `idle_ns` lies in gaps that are at least as long


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
class LongGaps:
    """The longest idle gaps of one window's device in time order, and what the launching threads did around them. The
    columns are the pieces that a gap consists of, but for those too short to be seen in it. They have shape (n,)."""

    gaps: Intervals
    gap: NDArray[np.int64]  # index into `gaps`
    begin_at_ns: NDArray[np.int64]
    end_at_ns: NDArray[np.int64]
    cause: NDArray[np.uint8]  # IdleCause
    name: NDArray[np.int64]  # index into `names`; -1 where the thread was in no range
    names: tuple[str, ...]
    around: HostRanges | None


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All kernels, copies or fills of one name and category, over all windows of a rank. Durations are added up, and
    may overlap. The rows of a rank add up to the durations of all of its device events."""

    rank: int  # global rank
    category: str  # a word of `Category`: matrix product, attention, convolution, normalization, reduction,
    #   elementwise, optimizer, copy, communication, other
    name: str  # as in the file
    events: int  # how often it ran
    total_ns: int  # sum of durations
    mean_ns: int  # mean duration
    counted_ns: int  # part of `total_ns` in operators whose FLOPs are known from the shapes of their inputs
    flops: int | None  # FLOPs of those operators, each at the longest of its kernels; None where none is known
    flops_per_s: float | None  # flops / counted_ns
    ideal_ns: int | None  # how long the device needs for `flops` at its stated peak; None where that is unknown


@dataclass(frozen=True, slots=True)
class CopyRow:
    """All copies or fills of one name in one step. Device time is that of the step's window."""

    rank: int  # global rank
    step: int | None  # ordinal of the step; None: all windows whole
    name: str  # as in the file, as in "Memcpy HtoD (Pageable -> Device)"
    pageable: bool  # host memory that is not pinned: the call holds the host until the copy is over
    events: int  # copies that began
    nbytes: int | None  # that they moved; None where the file does not tell
    copy_ns: int  # sum of their durations
    nbytes_per_s: float | None  # nbytes / copy_ns
    exposed_ns: int  # part of the window in which one ran, and no kernel
    blocked_ns: int  # how long the host was in the calls that launched them, if `pageable`; 0 else
    blocked_idle_ns: int  # part of blocked with nothing running on the device


@dataclass(frozen=True, slots=True)
class Activity:
    """What a picture of one rank needs beside the tables. Interval arrays are unions, shape (n, 2)."""

    rank: int
    compute: Intervals = field(repr=False)
    backend: tuple[tuple[str, str, int, int, int], ...] = field(repr=False)
    # lane, name, begin, end, seq: the backend's own ranges
    device: tuple[DeviceWork, ...] = field(default=(), repr=False)  # by window
    idle: tuple[LongGaps, ...] = field(default=(), repr=False)  # by window that saw a device
    host_calls: tuple[HostCalls, ...] = field(default=(), repr=False)  # by window, as `device`
