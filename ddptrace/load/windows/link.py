"""Joins a profiler window to the calls recorded in it: which events carried out which call, and when the rank computed.

A call's range `ddptrace#<seq>` stands in the file on the thread that launched it. From there:

    device    a kernel's correlation id names its launch, which begins inside the range: evidence DEVICE
    backend   the range of Gloo's own thread in which the call's completion was stamped: evidence BACKEND
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.load.kineto.events import NO_CORRELATION, Category, Ints, KinetoEvents
from ddptrace.load.tables import Call, DeviceWork, ExecRange, Finding, Intervals, OperatorWork, Work
from ddptrace.load.windows.backend_link import BackendLink
from ddptrace.load.windows.comm_kernels import CommRule, communication_kernels
from ddptrace.load.windows.cpu_compute import computing, thread_ranges, union
from ddptrace.load.windows.device import DeviceEvents
from ddptrace.load.windows.events import WindowEvents
from ddptrace.load.windows.operators import operator_work
from ddptrace.schema import Evidence

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
    findings: tuple[Finding, ...]
    searched_ns: tuple[int, ...]  # as in `Window`


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
) -> Joined:
    """`calls`: all of the rank, with the file's thread ids. `done_threads`: by seq, the system's id of the thread that
    stamped its completion. `over_by`: see `completion.known_over_by`. `where` names rank and file in findings.
    `unix_to_at` shifts an array of instants by one offset. `rules`: kernels that communicate, beside those known."""
    window = WindowEvents.of(events, calls, unix_to_at)
    events = window.events
    execs, strange_kernels = _device_execs(window, rules)
    on_device = {window.calls[seq].group for seq in execs}
    on_host = [call for call in calls if call.group not in on_device]
    backend, doubtful, strange_ranges = BackendLink(window, on_host, done_threads, over_by).execs()
    works = DeviceEvents.of(events, rules)
    threads = None if events.on_device else thread_ranges(events, training_threads)
    compute = union(works.spans(Work.COMPUTE)) if threads is None else computing(threads)
    operators = None if threads is None else operator_work(events, threads)
    findings = _findings(where, len(events.name), doubtful, strange_kernels, 0 if doubtful else strange_ranges)
    memory = union(works.spans(Work.MEMORY))
    return Joined(
        execs | backend, compute, memory, events.on_device, works.table(), operators, findings, _searched(events)
    )


def _searched(events: KinetoEvents) -> tuple[int, ...]:
    named = [i for i, name in enumerate(events.names) if name == SEARCH]
    found = np.flatnonzero(np.isin(events.name, named))
    return tuple((events.end_ns[found] - events.begin_ns[found]).tolist())


def _device_execs(window: WindowEvents, rules: Sequence[CommRule]) -> tuple[dict[int, ExecRange], int]:
    """The hull of each call's communication kernels, by seq, and how many such kernels no recorded call launched."""
    events = window.events
    launches = np.flatnonzero((events.category == Category.RUNTIME) & (events.correlation != NO_CORRELATION))
    seq_of = {int(events.correlation[launch]): seq for launch, seq in window.issued_by(launches).items()}
    kernels: dict[int | None, list[int]] = {}
    for kernel in np.flatnonzero(communication_kernels(events, rules)).tolist():
        kernels.setdefault(seq_of.get(int(events.correlation[kernel])), []).append(kernel)
    strange = len(kernels.pop(None, []))
    return {seq: _hull(window, mine) for seq, mine in kernels.items() if seq is not None}, strange


def _hull(window: WindowEvents, kernels: list[int]) -> ExecRange:
    lane = window.events.lanes[int(window.events.lane[kernels[0]])]
    return ExecRange(
        int(window.events.begin_ns[kernels].min()), int(window.events.end_ns[kernels].max()), Evidence.DEVICE,
        window.name(kernels[0]), lane.name or f"stream {lane.tid}",
    )  # fmt: skip


def _findings(
    where: str, events: int, doubtful: Sequence[int], strange_kernels: int, strange_ranges: int
) -> tuple[Finding, ...]:
    listed = ", ".join(map(str, doubtful[:8])) + (" …" if len(doubtful) > 8 else "")
    doubt = (
        f"{len(doubtful)} collectives (seq {listed}) ran in the window, but which of the backend's ranges is whose "
        "cannot be told: their exec rests on weaker evidence"
    )
    strange = f"{strange_kernels} communication kernels and {strange_ranges} backend ranges belong to no recorded call"
    said = [
        (not events, "window-empty", "warning", "the profiler's file holds no events that tell of work"),
        (doubtful, "exec-unlinked", "warning", doubt),
        (strange_kernels or strange_ranges, "exec-unclaimed", "info", strange),
    ]
    return tuple(Finding(code, severity, where, message) for applies, code, severity, message in said if applies)
