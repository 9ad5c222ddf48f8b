"""Understands one file that torch.profiler wrote without ddptrace: its window, steps, phases and collectives.

Steps and phases are found in what the profiler recorded of the loop:

main     ├ data ┤ ops ops ops ops                  ├ Optimizer.step ┤ ├ data ┤ ops …
engine                            node node node
phases   ├ DATA ┤├── FORWARD ───┤├─ BACKWARD ──┤   ├── OPTIMIZER ───┤
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.findings import COMM_KERNEL_UNUSED, EXEC_MISSING, TRACE_DAMAGED, TRACE_EMPTY, Finding
from ddptrace.load.foreign.calls import device_calls, gloo_calls, in_launch_order, issued_calls
from ddptrace.load.foreign.experts import with_experts
from ddptrace.load.foreign.origins import with_origins
from ddptrace.load.foreign.trace import DATA, DDP_COPY, DDP_MARKS, OPTIMIZER_STEP, Trace
from ddptrace.load.foreign.units import UnitName, backward_at, until_copied, with_reducer, with_stages, with_units
from ddptrace.load.kineto.events import Category, FileFacts, Ints, KinetoEvents
from ddptrace.load.tables import Call, Group, Intervals, PhaseMark, StepMark, UnitEvent, Window, Work
from ddptrace.load.windows.comm_kernels import CommRule
from ddptrace.load.windows.cpu_compute import buffer_broadcasts, computing, operator_work, thread_ranges, union
from ddptrace.load.windows.device import PROFILER_STEP, comm_streams, of_category
from ddptrace.load.windows.idle import device_idle, host_calls
from ddptrace.load.windows.nesting import NOTHING, innermost_around
from ddptrace.schema import Evidence, Phase, StepEnd

MOST_DIGITS = 15  # of a step's number


@dataclass(frozen=True, slots=True)
class ForeignWindow:
    """The content of one file. Collectives are in launch order."""

    window: Window
    steps: tuple[StepMark, ...]
    phases: tuple[PhaseMark, ...]
    calls: tuple[Call, ...]
    groups: tuple[Group, ...]
    facts: FileFacts
    pid: int  # of the main thread; 0 where the file does not tell
    main_thread: int
    findings: tuple[Finding, ...]
    serves: str  # as in `RankRun`
    reducer_kind: str  # class of the wrapper that reduces gradients; "" where the file shows none
    units: tuple[UnitName, ...] = ()  # by their numbers from 1
    unit_events: tuple[UnitEvent, ...] = ()


def foreign_window(
    events: KinetoEvents, *, file: str, where: str, zero_unix_ns: int, rules: Sequence[CommRule]
) -> ForeignWindow:
    """`where` names rank and file in findings."""
    trace = Trace(events.since(zero_unix_ns), rules)
    on_device, backwards = device_calls(trace), _backwards_of(trace)
    found = on_device + gloo_calls(trace)
    issued = [] if found else issued_calls(trace)
    launched = in_launch_order(found or issued)
    known = with_origins(trace, backwards, launched, with_reducer(trace, backwards, launched))
    of_fsdp = with_units(trace, launched, until_copied(trace, backwards, known))
    calls, units, unit_events = with_experts(trace, launched, with_stages(trace, launched, of_fsdp))
    phases = _until_awaited(_phases_of(trace, backwards), trace, _awaited(calls, backwards))
    return ForeignWindow(
        _window(trace, file),
        tuple(_steps_of(trace, backwards)),
        tuple(phases),
        tuple(calls),
        _groups(trace),
        events.facts,
        _pid(trace),
        trace.main_thread,
        tuple(_findings(trace, where, len(issued))),
        _served_by(trace),
        trace.reducer_kind,
        units,
        unit_events,
    )


def _window(trace: Trace, file: str) -> Window:
    memory, begin, end = union(trace.device.spans(Work.MEMORY)), trace.begin_at_ns, trace.end_at_ns
    buffers = buffer_broadcasts(trace.events)
    if trace.events.on_device:
        compute = union(trace.device.spans(Work.COMPUTE))
        idle = device_idle(trace.events, trace.device, trace.main_lane, begin, end)
        streams, device = comm_streams(trace.device), trace.device.table()
        return Window(
            file,
            begin,
            end,
            compute,
            memory,
            True,
            device,
            idle=idle,
            buffers=buffers,
            comm_streams=streams,
            host_calls=host_calls(trace.events, trace.device),
        )
    threads = thread_ranges(trace.events, frozenset({trace.main_thread}))
    operators = operator_work(trace.events, threads)
    device = trace.device.table()
    return Window(file, begin, end, computing(threads), memory, False, device, operators, buffers=buffers)


def _awaited(calls: Sequence[Call], backwards: Intervals) -> dict[int, int]:
    """Return, by backward, the end of the last gradient reduction for which DDP blocks the host. On a device only a
    stream waits."""
    ends: dict[int, int] = {}
    held = [call for call in calls if call.is_native and call.exec and call.exec.evidence is Evidence.BACKEND]
    at = np.array([call.launch_at_ns for call in held], np.int64)
    for call, backward in zip(held, backward_at(backwards, at).tolist(), strict=True):
        assert call.exec is not None
        ends[backward] = max(ends.get(backward, 0), call.exec.end_at_ns)
    return ends


def _groups(trace: Trace) -> tuple[Group, ...]:
    """Return the groups that the file lists, and those that only the arguments of collectives name."""
    groups = {name: Group(name, ranks, backend, None) for name, backend, ranks in trace.events.facts.groups}
    for arguments in trace.events.collectives.values():
        if arguments.group is not None and arguments.ranks and arguments.group not in groups:
            groups[arguments.group] = Group(arguments.group, arguments.ranks, trace.events.facts.backend or "", None)
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
    notes = [
        (damage, TRACE_DAMAGED, f"{damage}; what could be read is shown"),
        (not len(trace.events.name), TRACE_EMPTY, empty),
        (unused and trace.events.on_device, COMM_KERNEL_UNUSED, no_match),
        (issued, EXEC_MISSING, f"{issued} collectives were launched, but {no_exec}"),
    ]
    return [kind(where, message) for applies, kind, message in notes if applies]


# Steps and phases -----------------------------------------------------------------------------------------------------


def _steps_of(trace: Trace, backwards: Intervals) -> list[StepMark]:
    """Return the steps of the profiler's own ranges; without any, one step per update, numbered from 0."""
    return _marked(trace) or _updates(trace, backwards)


def _marked(trace: Trace) -> list[StepMark]:
    """Give the time between two ranges to the second, since the batch is fetched there. Because times are rounded, a
    range may begin before the previous range ended. A range that also ends before that lies inside the previous one."""
    marks: list[StepMark] = []
    ranges = np.flatnonzero(trace.named((PROFILER_STEP,)) & (trace.events.lane == trace.main_lane))
    for position, (begin, end) in zip(ranges.tolist(), trace.spans(ranges), strict=True):
        number = trace.name(position).removeprefix(PROFILER_STEP)
        begins = marks[-1].end_at_ns if marks else begin
        if number.isdecimal() and len(number) <= MOST_DIGITS and end > begins:
            marks.append(StepMark(int(number), StepEnd.SAID, begins, end))
    return marks


def _updates(trace: Trace, backwards: Intervals) -> list[StepMark]:
    """Count several optimizers between two backwards as one update."""
    ends = [end for _, end in trace.spans(trace.main_ranges(OPTIMIZER_STEP))]
    after = np.searchsorted(backwards[:, 0], ends).tolist()
    last = [end for k, end in enumerate(ends) if not len(backwards) or k + 1 == len(ends) or after[k + 1] > after[k]]
    spans = itertools.pairwise([trace.begin_at_ns, *last])
    return [StepMark(k, StepEnd.OPTIMIZER, begin, end) for k, (begin, end) in enumerate(spans) if end > begin]


def _phases_of(trace: Trace, backwards: Intervals) -> list[PhaseMark]:
    """Return the phases in time order; backwards are numbered from 0."""
    thread = trace.main_thread
    marks = [PhaseMark(Phase.FORWARD, *span, thread, None) for span in _forwards(trace, backwards)]
    for k, (begin, end) in enumerate(backwards.tolist()):
        marks.append(PhaseMark(Phase.BACKWARD, begin, end, thread, k))
    for phase, prefix in ((Phase.OPTIMIZER, OPTIMIZER_STEP), (Phase.DATA, DATA)):
        marks += [PhaseMark(phase, *span, thread, None) for span in trace.spans(trace.main_ranges(prefix))]
    return sorted(marks, key=lambda mark: (mark.begin_at_ns, -mark.end_at_ns))


def _backwards_of(trace: Trace) -> Intervals:
    """Return stretches of the engine's nodes on any thread that no work of the main thread interrupts. The work of
    DDP's reducer, up to copying a bucket back, belongs to the backward that has begun."""
    events = trace.events
    nodes = np.flatnonzero(trace.is_node)
    if not len(nodes):
        return np.empty((0, 2), np.int64)
    ours = np.flatnonzero(trace.is_node | trace.named(DDP_MARKS[1:]))
    begins, reach = events.begin_ns[ours], np.maximum.accumulate(events.end_ns[ours])
    by_op, by_loop = (
        np.searchsorted(at, begins[1:], side="right") > np.searchsorted(at, reach[:-1])
        for at in (np.sort(events.begin_ns[trace.main_ops]), np.sort(_loop_begins(trace)))
    )
    before = by_loop | (by_op & ~trace.named((DDP_COPY,))[ours[1:]])
    opens = np.flatnonzero(np.append(True, before))
    has_node = np.add.reduceat(trace.is_node[ours].astype(np.int64), opens) > 0
    spans = np.column_stack((begins[opens], reach[np.append(opens[1:], len(ours)) - 1]))
    return spans[has_node]


def _loop_begins(trace: Trace) -> Ints:
    prefixes = (PROFILER_STEP, OPTIMIZER_STEP, DATA)
    ranges = np.concatenate([trace.main_ranges(prefix) for prefix in prefixes])
    begins: Ints = trace.events.begin_ns[ranges]
    return begins


def _forwards(trace: Trace, backwards: Intervals) -> list[tuple[int, int]]:
    """Return the main thread's operators between a backward and the last boundary before it. Gradients may be zeroed
    before or after them."""
    events, ops = trace.events, _outside(trace, trace.main_ops, "Optimizer.")
    begins, bounds = events.begin_ns[ops], _boundaries(trace, backwards)
    found = []
    for backward in backwards[:, 0].tolist():
        first = int(np.searchsorted(begins, _last_before(bounds, backward)))
        last = int(np.searchsorted(begins, backward)) - 1
        if first <= last:
            found.append((int(begins[first]), min(int(events.end_ns[ops[last]]), backward)))
    return [(begin, end) for begin, end in found if end > begin]


def _outside(trace: Trace, ops: Ints, prefix: str) -> Ints:
    """Return the main thread's operators outside of ranges of this name."""
    begins = trace.events.begin_ns[ops]
    around = innermost_around(trace.events, trace.named((prefix,)), trace.events.lane[ops], begins)
    outside: Ints = ops[around == NOTHING]
    return outside


def _boundaries(trace: Trace, backwards: Intervals) -> Ints:
    """Return the sorted ends of all that is no forward: a batch, an update, a backward, a step."""
    ranges = [trace.main_ranges(prefix) for prefix in (OPTIMIZER_STEP, DATA)]
    ends = trace.events.end_ns[np.concatenate(ranges)]
    steps = trace.events.begin_ns[trace.main_ranges(PROFILER_STEP)]
    return np.sort(np.concatenate((ends, backwards[:, 1], steps)))


def _last_before(bounds: Ints, at: int) -> int:
    k = int(np.searchsorted(bounds, at, side="right"))
    return int(bounds[k - 1]) if k else -(2**62)


def _until_awaited(marks: Sequence[PhaseMark], trace: Trace, ends: dict[int, int]) -> list[PhaseMark]:
    """Extend backwards by what DDP awaits on the host at their end. `ends`: by ordinal, when the last of that ended."""
    nexts = np.sort(np.concatenate((trace.events.begin_ns[trace.main_ops], _loop_begins(trace))))
    found = []
    for mark in marks:
        over = ends.get(mark.backward, mark.end_at_ns) if mark.backward is not None else mark.end_at_ns
        k = int(np.searchsorted(nexts, mark.end_at_ns))
        bound = int(nexts[k]) if k < len(nexts) else over
        found.append(dataclasses.replace(mark, end_at_ns=max(mark.end_at_ns, min(over, bound))))
    return found


# Engines that serve a model -------------------------------------------------------------------------------------------


ENGINES: Final = (
    ("vLLM", r"^vllm::|(?:^|/)vllm/"),
    ("SGLang", r"^sgl_kernel::|(?:^|/)sglang/srt/|^step\[(?:DECODE|EXTEND|PREFILL|MIXED)\b"),
    ("TensorRT-LLM", r"^trtllm::|(?:^|/)tensorrt_llm/"),
    ("Transformers", r"(?:^|/)transformers/(?:pipelines|generation)/"),
    ("an inference engine", r"^execute_(?:\d+_)?context_\d*\(.*_generation_\d*\("),
)
"""Names of operators, annotations and Python functions; the first engine that has any is it."""
OF_ENGINES: Final = re.compile("|".join(pattern for _, pattern in ENGINES))


def _served_by(trace: Trace) -> str:
    """The engine that serves a model here; empty where a backward or an update was recorded, or no engine is seen."""
    if trace.is_node.any() or trace.named((OPTIMIZER_STEP,)).any():
        return ""
    ranges = of_category(trace.events, Category.OP, Category.ANNOTATION, Category.FRAME)
    names = (trace.events.names[i] for i in np.unique(trace.events.name[ranges]).tolist())
    seen = [name for name in names if OF_ENGINES.search(name)]
    return next((engine for engine, pattern in ENGINES if any(re.search(pattern, name) for name in seen)), "")
