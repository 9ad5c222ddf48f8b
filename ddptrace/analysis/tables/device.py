"""Rows of `ranks`, `streams`, `launches` and `scopes`: what each rank is, and what its devices did."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.load.tables import DeviceWork, Intervals


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
class Activity:
    """What a picture of one rank needs beside the tables. Interval arrays are unions, shape (n, 2)."""

    rank: int
    compute: Intervals
    backend: tuple[tuple[str, str, int, int, int], ...]  # lane, name, begin, end, seq: the backend's own ranges
    device: tuple[DeviceWork, ...] = ()  # by window
