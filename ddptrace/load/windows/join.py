"""A rank's profiler windows: each Kineto file read, and joined to the calls recorded in it.

A call's range `ddptrace#<seq>` stands in the file on the thread that launched it. From there:

    device    a kernel's correlation id names its launch, which begins inside the range: evidence DEVICE; the ranges of
              calls that the backend starts together lie in each other around it
    backend   the range of Gloo's own thread in which the call's completion was stamped: evidence BACKEND
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.errors import RunDirectoryError
from ddptrace.findings import EXEC_UNCLAIMED, EXEC_UNLINKED, WINDOW_EMPTY, WINDOW_UNREADABLE, WINDOWS_LET_GO, Finding
from ddptrace.load.kineto.events import NO_CORRELATION, Category, Ints, KinetoEvents
from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.records.calls import known_over_by
from ddptrace.load.records.rank_events import Clock
from ddptrace.load.records.rank_run import Recorded, WindowMark
from ddptrace.load.tables import (
    Call,
    DeviceIdle,
    DeviceWork,
    ExecRange,
    HostCalls,
    Intervals,
    OperatorWork,
    RankRun,
    Window,
    Work,
)
from ddptrace.load.windows.backend_ranges import BackendLink, WindowEvents
from ddptrace.load.windows.comm_kernels import CommRule, communication_kernels
from ddptrace.load.windows.cpu_compute import buffer_broadcasts, computing, operator_work, thread_ranges, union
from ddptrace.load.windows.device import KinetoWork
from ddptrace.load.windows.idle import device_idle, host_calls
from ddptrace.load.windows.nesting import NOTHING
from ddptrace.schema import Evidence
from ddptrace.units import counted


def join_windows(
    folder: Path, recorded: Recorded, cache: Path | None = None, rules: Sequence[CommRule] = ()
) -> tuple[RankRun, list[Finding]]:
    """The rank's run with its windows and, for the calls inside them, when they really ran. A file that is missing or
    broken is a finding; the records stand without it. `cache`: see `read_kineto`. `rules`: kernels that communicate,
    beside those known."""
    findings = _let_go(recorded)
    windows: list[Window] = []
    execs: dict[int, ExecRange] = {}
    for mark in recorded.windows:
        where = f"rank {recorded.run.rank}, {mark.file}"
        try:
            events = read_kineto(_place(folder, mark.file), cache)
            joined = _join(mark, events, recorded, rules, where)
        except (RunDirectoryError, ValueError, IndexError, OverflowError, MemoryError) as error:
            message = f"{error}: its steps are judged without a profiler"
            findings.append(WINDOW_UNREADABLE(where, message))
            continue
        findings.extend(joined.findings)
        execs |= joined.execs
        windows.append(_window(mark, events, joined, recorded.clock))
    calls = tuple(_ran(call, execs[call.seq]) if call.seq in execs else call for call in recorded.run.calls)
    return dataclasses.replace(recorded.run, calls=calls, windows=tuple(windows)), findings


def _place(folder: Path, file: str) -> Path:
    """Return where a window's file lies.

    Raises:
        RunDirectoryError: the record names a file outside of the rank's own folder.
    """
    place = folder / file
    if place.name != file or "\0" in file:
        raise RunDirectoryError(f"{file} is no name of a file in {folder.name}")
    return place


def _ran(call: Call, found: ExecRange) -> Call:
    """Before schema 1.6 a kernel alone tells that it ran on a device."""
    return dataclasses.replace(call, exec=found, on_device=call.on_device or found.evidence is Evidence.DEVICE)


def _let_go(recorded: Recorded) -> list[Finding]:
    if not recorded.files_let_go:
        return []
    message = (
        f"{recorded.files_let_go} profiler files were removed, the oldest first, to stay within the limit of"
        " ddptrace.Keep: their steps are judged without a profiler"
    )
    return [WINDOWS_LET_GO(f"rank {recorded.run.rank}", message)]


def _join(mark: WindowMark, events: KinetoEvents, recorded: Recorded, rules: Sequence[CommRule], where: str) -> Joined:
    run = recorded.run
    return join_window(
        events,
        unix_to_at=recorded.clock.from_unix,
        calls=run.calls,
        done_threads=recorded.done_threads,
        over_by=known_over_by(run.calls, run.phases),
        training_threads=frozenset(mark.thread for mark in run.phases),
        rules=rules,
        where=where,
        opened=(mark.begin_at_ns, mark.end_at_ns),
    )


def _window(mark: WindowMark, events: KinetoEvents, joined: Joined, clock: Clock) -> Window:
    """Where torch did not tell when the window was open, it was from the first to the last event of the file."""
    begin, end = mark.begin_at_ns, mark.end_at_ns
    if begin is None or end is None:
        spans = clock.from_unix(np.stack((events.begin_ns, events.end_ns)))
        begin, end = (int(spans[0].min()), int(spans[1].max())) if spans.size else (0, 0)
    return Window(
        mark.file,
        begin,
        end,
        joined.compute,
        joined.memory,
        joined.on_device,
        joined.device,
        joined.operators,
        joined.idle,
        joined.searched_ns,
        joined.buffers,
        host_calls=joined.host_calls,
        unclaimed=joined.unclaimed,
    )


# One window and the calls recorded in it ------------------------------------------------------------------------------


SEARCH: Final = "torch.distributed.ddp.reducer::search_unused_parameters"
"""What DDP calls its walk from the outputs to the leaves, under find_unused_parameters."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What one window's file tells. Intervals are unions, since the run's zero."""

    execs: dict[int, ExecRange]  # by seq
    compute: Intervals
    memory: Intervals
    on_device: bool  # compute is device time
    device: DeviceWork | None
    operators: OperatorWork | None
    idle: DeviceIdle | None
    findings: tuple[Finding, ...]
    searched_ns: tuple[int, ...]  # as in `Window`
    buffers: tuple[tuple[int, int], ...]  # as in `Window`
    host_calls: HostCalls | None  # as in `Window`
    unclaimed: NDArray[np.bool_] | None  # as in `Window`


def join_window(
    events: KinetoEvents,
    *,
    unix_to_at: Callable[[Ints], Ints],
    calls: Sequence[Call],
    done_threads: Mapping[int, int],
    over_by: Mapping[int, int],
    training_threads: frozenset[int],
    where: str,
    rules: Sequence[CommRule] = (),
    opened: tuple[int | None, int | None] = (None, None),
) -> Joined:
    """`calls`: all of the rank, with the file's thread ids. `done_threads`: by seq, the system's id of the thread that
    stamped its completion. `over_by`: see `calls.known_over_by`. `where` names rank and file in findings.
    `unix_to_at` shifts an array of instants by one offset. `rules`: kernels that communicate, beside those known.
    `opened`: begin and end of the window, None where torch did not tell them."""
    window = WindowEvents.of(events, calls, unix_to_at)
    events = window.events
    execs, strange = _device_execs(window, rules)
    on_host = [call for call in calls if not call.on_device and call.seq not in execs]
    backend, doubtful, strange_ranges = BackendLink(window, on_host, done_threads, over_by).execs()
    works = KinetoWork.of(events, rules)
    threads = None if events.on_device else thread_ranges(events, training_threads)
    compute = union(works.spans(Work.COMPUTE)) if threads is None else computing(threads)
    operators = None if threads is None else operator_work(events, threads)
    unclaimed = np.isin(works.position, strange)
    launched = int((works.launch[unclaimed] != NOTHING).sum())
    ranges = 0 if doubtful else strange_ranges
    findings = _link_findings(where, len(events.name), doubtful, launched, ranges)
    memory = union(works.spans(Work.MEMORY))
    idle = device_idle(events, works, _training_lane(events, training_threads), *_span(events, opened))
    return Joined(
        execs | backend,
        compute,
        memory,
        events.on_device,
        works.table(),
        operators,
        idle,
        findings,
        _searched(events),
        buffer_broadcasts(events),
        host_calls(events, works),
        unclaimed if len(strange) else None,
    )


def _training_lane(events: KinetoEvents, training_threads: frozenset[int]) -> int:
    """The training thread with most operators; NOTHING where the file shows none."""
    ours = [i for i, lane in enumerate(events.lanes) if lane.tid.isdigit() and int(lane.tid) in training_threads]
    mine = events.lane[(events.category == Category.OP) & np.isin(events.lane, ours)]
    return int(np.bincount(mine).argmax()) if len(mine) else NOTHING


def _span(events: KinetoEvents, opened: tuple[int | None, int | None]) -> tuple[int, int]:
    """From where the window was open, or its first event, to where it closed, or its last event."""
    begins, ends = ([at] if at is not None else [] for at in opened)
    if len(events.begin_ns):
        begins, ends = [*begins, int(events.begin_ns.min())], [*ends, int(events.end_ns.max())]
    return min(begins, default=0), max(ends, default=0)


def _searched(events: KinetoEvents) -> tuple[int, ...]:
    named = [i for i, name in enumerate(events.names) if name == SEARCH]
    found = np.flatnonzero(np.isin(events.name, named))
    return tuple((events.end_ns[found] - events.begin_ns[found]).tolist())


def _device_execs(window: WindowEvents, rules: Sequence[CommRule]) -> tuple[dict[int, ExecRange], list[int]]:
    """The hull of each call's communication kernels, by seq, and the positions of those that no recorded call
    launched. Calls that were started together share theirs."""
    events = window.events
    launches = np.flatnonzero((events.category == Category.RUNTIME) & (events.correlation != NO_CORRELATION))
    seq_of = {int(events.correlation[launch]): seq for launch, seq in window.issued_by(launches).items()}
    kernels: dict[int | None, list[int]] = {}
    for kernel in np.flatnonzero(communication_kernels(events, rules)).tolist():
        kernels.setdefault(seq_of.get(int(events.correlation[kernel])), []).append(kernel)
    strange = kernels.pop(None, [])
    hulls = {seq: _hull(window, mine) for seq, mine in kernels.items() if seq is not None}
    return {each: hull for seq, hull in hulls.items() for each in window.started_with(seq)}, strange


def _hull(window: WindowEvents, kernels: list[int]) -> ExecRange:
    lane = window.events.lanes[int(window.events.lane[kernels[0]])]
    return ExecRange(
        int(window.events.begin_ns[kernels].min()),
        int(window.events.end_ns[kernels].max()),
        Evidence.DEVICE,
        window.name(kernels[0]),
        lane.name or f"stream {lane.tid}",
    )


def _link_findings(where: str, events: int, doubtful: Sequence[int], kernels: int, ranges: int) -> tuple[Finding, ...]:
    """`kernels`: those of no recorded call that were launched in the window; `ranges`: likewise, of the backend. Whose
    the kernels are that were launched before it, the file does not tell, and nobody needs to know."""
    listed = ", ".join(map(str, doubtful[:8])) + (" …" if len(doubtful) > 8 else "")
    doubt = (
        f"{len(doubtful)} collectives (seq {listed}) ran in the window, but the backend's ranges cannot be assigned to "
        "them: their execution is based on weaker evidence"
    )
    strange = (
        f"{counted(kernels, 'communication kernel')} {_belong(kernels)} to no recorded call: in profiled steps they"
        " count as communication, but of no bucket, unit or known dimension"
    )
    unknown = (
        f"{counted(ranges, 'range of the backend', 'ranges of the backend')} {_belong(ranges)} to no recorded call: no"
        " step counts them"
    )
    said = [
        (not events, WINDOW_EMPTY, "the profiler's file holds no events of work"),
        (doubtful, EXEC_UNLINKED, doubt),
        (kernels, EXEC_UNCLAIMED, strange),
        (ranges, EXEC_UNCLAIMED, unknown),
    ]
    return tuple(kind(where, message) for applies, kind, message in said if applies)


def _belong(count: int) -> str:
    return "belongs" if count == 1 else "belong"
