"""One file that torch.profiler wrote, understood: its window, steps, phases and collectives, numbered from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddptrace.findings import COMM_KERNEL_UNUSED, EXEC_MISSING, TRACE_DAMAGED, TRACE_EMPTY, Finding
from ddptrace.load.foreign.calls import device_calls, gloo_calls, in_launch_order, issued_calls
from ddptrace.load.foreign.ddp import backward_at, until_copied, with_reducer
from ddptrace.load.foreign.steps import backwards_of, phases_of, steps_of, until_awaited
from ddptrace.load.foreign.trace import Trace
from ddptrace.load.kineto.events import FileFacts, KinetoEvents
from ddptrace.load.tables import Call, Group, Intervals, PhaseMark, StepMark, Window, Work
from ddptrace.load.windows.buffers import buffer_broadcasts
from ddptrace.load.windows.comm_kernels import CommRule
from ddptrace.load.windows.cpu_compute import computing, operator_work, thread_ranges, union
from ddptrace.load.windows.idle import device_idle
from ddptrace.load.windows.nesting import NOTHING
from ddptrace.schema import Evidence


@dataclass(frozen=True, slots=True)
class ForeignWindow:
    """What one file tells. Collectives are in launch order."""

    window: Window
    steps: tuple[StepMark, ...]
    phases: tuple[PhaseMark, ...]
    calls: tuple[Call, ...]
    groups: tuple[Group, ...]
    facts: FileFacts
    pid: int  # of the main thread; 0 where the file does not tell
    main_thread: int
    findings: tuple[Finding, ...]


def foreign_window(
    events: KinetoEvents, *, file: str, where: str, zero_unix_ns: int, rules: Sequence[CommRule]
) -> ForeignWindow:
    """`where` names rank and file in findings."""
    trace = Trace(events.since(zero_unix_ns), rules)
    on_device, backwards = device_calls(trace), backwards_of(trace)
    found = on_device + gloo_calls(trace)
    issued = [] if found else issued_calls(trace)
    calls = until_copied(trace, backwards, with_reducer(trace, backwards, in_launch_order(found or issued)))
    phases = until_awaited(phases_of(trace, backwards), trace, _awaited(calls, backwards))
    return ForeignWindow(
        _window(trace, file),
        tuple(steps_of(trace, backwards)),
        tuple(phases),
        tuple(calls),
        _groups(trace),
        events.facts,
        _pid(trace),
        trace.main_thread,
        tuple(_findings(trace, where, len(issued))),
    )


def _window(trace: Trace, file: str) -> Window:
    memory, begin, end = union(trace.device.spans(Work.MEMORY)), trace.begin_at_ns, trace.end_at_ns
    buffers = buffer_broadcasts(trace.events)
    if trace.events.on_device:
        compute = union(trace.device.spans(Work.COMPUTE))
        idle = device_idle(trace.events, trace.device, trace.main_lane, begin, end)
        return Window(file, begin, end, compute, memory, True, trace.device.table(), idle=idle, buffers=buffers)
    threads = thread_ranges(trace.events, frozenset({trace.main_thread}))
    operators = operator_work(trace.events, threads)
    device = trace.device.table()
    return Window(file, begin, end, computing(threads), memory, False, device, operators, buffers=buffers)


def _awaited(calls: Sequence[Call], backwards: Intervals) -> dict[int, int]:
    """By backward, when the last gradient reduction was over for which DDP holds the host: on a device only a stream
    waits."""
    ends: dict[int, int] = {}
    held = [call for call in calls if call.is_native and call.exec and call.exec.evidence is Evidence.BACKEND]
    at = np.array([call.launch_at_ns for call in held], np.int64)
    for call, backward in zip(held, backward_at(backwards, at).tolist(), strict=True):
        assert call.exec is not None
        ends[backward] = max(ends.get(backward, 0), call.exec.end_at_ns)
    return ends


def _groups(trace: Trace) -> tuple[Group, ...]:
    """Those that the file lists, and those that only the arguments of collectives name."""
    groups = {name: Group(name, ranks, backend, None) for name, backend, ranks in trace.events.facts.groups}
    for said in trace.events.collectives.values():
        if said.group is not None and said.ranks and said.group not in groups:
            groups[said.group] = Group(said.group, said.ranks, trace.events.facts.backend or "", None)
    return tuple(groups.values())


def _pid(trace: Trace) -> int:
    pid = trace.events.lanes[trace.main_lane].pid if trace.main_lane != NOTHING else ""
    return int(pid) if pid.isdecimal() and len(pid) < 19 else 0


def _findings(trace: Trace, where: str, issued: int) -> list[Finding]:
    damage = trace.events.facts.damage
    no_exec = (
        "no kernel in the file is known to carry them out, so it is unknown when they ran; name such kernels with"
        " --comm-kernel"
        if trace.events.on_device
        else "the file holds no activity of a device, so it is unknown when they ran; record with ProfilerActivity.CUDA"
    )
    unused = [rule.pattern for rule in trace.rules if rule not in trace.used_rules]
    no_match = f"no kernel matches --comm-kernel {', '.join(unused)}; look at the names in the trace"
    empty = "the file holds no events of work; record some steps with CPU and GPU activity"
    said = [
        (damage, TRACE_DAMAGED, f"{damage}; what could be read is shown"),
        (not len(trace.events.name), TRACE_EMPTY, empty),
        (unused and trace.events.on_device, COMM_KERNEL_UNUSED, no_match),
        (issued, EXEC_MISSING, f"{issued} collectives were launched, but {no_exec}"),
    ]
    return [kind(where, message) for applies, kind, message in said if applies]
