"""The collectives of a foreign file: what each was, who launched it, and when it ran.

On a device:

thread   record_param_comms ├───────────────┤
         nccl:all_reduce       ├─────────┤          launch: its begin; what it was, if the kernel does not say it
         cudaLaunchKernel         ├───┤  correlation 7
stream                                    ├───────┤ exec: the hull of the kernels launched in one such range

Without a device, Gloo's own ranges are the evidence, or only the launch is known:

main         c10d::allreduce_ ├┤   c10d::allreduce_ ├┤        launch: the k-th of the same kind, if all are there
gloo thread                     gloo:all_reduce ├───────┤     exec
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.load.foreign.identity import NO_ARGUMENTS, Described, Groups, described, identified, merged, usual_op
from ddptrace.load.foreign.trace import Trace
from ddptrace.load.kineto.events import FAR_NS, Ints
from ddptrace.load.tables import Call, ExecRange, Identity, Work
from ddptrace.load.windows.backend_ranges import gloo_ranges
from ddptrace.load.windows.device import GLOO_PREFIX, NCCL_PREFIXES
from ddptrace.load.windows.nesting import NOTHING, innermost_around, outermost
from ddptrace.schema import Evidence

PARAMETERS: Final = "record_param_comms"


@dataclass(frozen=True, slots=True)
class Found:
    """A collective before it is numbered. `lane`: the thread that launched it, NOTHING if unknown; `description`: what
    the program calls its group, empty if the file does not tell."""

    call: Call
    lane: int
    description: str = ""


def in_launch_order(found: Iterable[Found]) -> list[Found]:
    """Sort by launch. At one instant, calls launched before the file begins come first."""

    def key(one: Found) -> tuple[int, bool, int]:
        return one.call.launch_at_ns, one.lane != NOTHING, one.call.exec.begin_at_ns if one.call.exec else 0

    return sorted(found, key=key)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Communication kernels, in order of their begin: positions of events, NOTHING for a missing event."""

    kernel: Ints
    launch: Ints
    annotation: Ints  # the backend's range around the launch
    parameters: Ints  # `record_param_comms` around the launch, which has arguments in newer files
    stream: Ints

    @classmethod
    def of(cls, trace: Trace) -> _Kernels:
        device, events = trace.device, trace.events
        comm = device.kind == Work.COMM
        launch = device.launch[comm]
        lanes = np.where(launch == NOTHING, NOTHING, events.lane[launch])
        ranges = (trace.named(NCCL_PREFIXES), trace.named((PARAMETERS,)))
        annotation, parameters = (innermost_around(events, range, lanes, events.begin_ns[launch]) for range in ranges)
        return cls(device.position[comm], launch, annotation, parameters, device.stream[comm])

    def by_call(self) -> Iterable[list[int]]:
        """Kernels launched in one range carry out one call; others stand for themselves. In order of begin."""
        alone = -2 - np.arange(len(self.kernel))
        ranges = np.where(self.annotation != NOTHING, self.annotation, self.parameters)
        calls: dict[int, list[int]] = {}
        for k, key in enumerate(np.where(ranges != NOTHING, ranges, alone).tolist()):
            calls.setdefault(key, []).append(k)
        return calls.values()


def device_calls(trace: Trace) -> list[Found]:
    """Return one call per communication kernel, or per range of the backend in which several were launched.

    A kernel without a launch in the file was launched before all others: at its begin or at the first launch, whichever
    is earlier. That is the latest possible time.
    """
    kernels = _Kernels.of(trace)
    groups = Groups(trace.events.facts, alone=len(np.unique(kernels.stream)) <= 1)
    found = [_device_call(trace, kernels, ks, groups) for ks in kernels.by_call()]
    latest_ns = min((one.call.launch_at_ns for one in found if one.lane != NOTHING), default=FAR_NS)
    return [one if one.lane != NOTHING else _launched_by(one, latest_ns) for one in found]


def _launched_by(found: Found, latest_ns: int) -> Found:
    at = min(found.call.launch_at_ns, latest_ns)
    call = dataclasses.replace(found.call, launch_at_ns=at, issued_at_ns=at, is_launch_recorded=False)
    return Found(call, NOTHING, found.description)


def _device_call(trace: Trace, kernels: _Kernels, ks: list[int], groups: Groups) -> Found:
    execution = _exec(trace, kernels, ks)
    collective = _described(trace, kernels, ks[0], groups)
    launch = int(kernels.launch[ks[0]])
    if launch == NOTHING:
        at = execution.begin_at_ns
        return Found(call_of(collective, at, at, trace.main_thread, execution), NOTHING, collective.description)
    annotation, lane = int(kernels.annotation[ks[0]]), int(trace.events.lane[launch])
    begin, end = next(trace.spans(np.array([launch if annotation == NOTHING else annotation])))
    return Found(call_of(collective, begin, end, trace.thread(lane), execution), lane, collective.description)


def _exec(trace: Trace, kernels: _Kernels, ks: list[int]) -> ExecRange:
    events, mine = trace.events, kernels.kernel[ks]
    return ExecRange(
        int(events.begin_ns[mine].min()),
        int(events.end_ns[mine].max()),
        Evidence.DEVICE,
        trace.name(int(mine[0])),
        trace.device.streams[int(kernels.stream[ks[0]])],
    )


def _described(trace: Trace, kernels: _Kernels, k: int, groups: Groups) -> Described:
    annotation, parameters = int(kernels.annotation[k]), int(kernels.parameters[k])
    arguments = trace.events.collectives
    around = merged(arguments.get(annotation, NO_ARGUMENTS), arguments.get(parameters, NO_ARGUMENTS))
    kernel = int(kernels.kernel[k])
    return identified(
        trace.name(kernel),
        arguments.get(kernel, NO_ARGUMENTS),
        "" if annotation == NOTHING else trace.name(annotation),
        around,
        groups,
        trace.rules,
    )


def call_of(collective: Described, launch: int, issued: int, thread: int, execution: ExecRange | None) -> Call:
    """Make the call, not yet numbered."""
    return Call(
        seq=0,
        op=collective.op,
        group=collective.group,
        ordinal=0,
        launch_at_ns=launch,
        issued_at_ns=issued,
        nbytes_in=collective.nbytes_in,
        nbytes_out=collective.nbytes_out,
        dtype=collective.dtype,
        thread=thread,
        is_sync=False,
        is_native=False,
        reducer=None,
        hook=None,
        done_at_ns=None,
        waits=(),
        exec=execution,
        group_size=collective.group_size,
        identity=collective.identity,
        sent_nbytes=collective.sent_nbytes,
        on_device=execution is not None and execution.evidence is Evidence.DEVICE,
        turn=collective.turn,
        peer=collective.peer,
        unknown_args=collective.unknown,
    )


# Without a device: Gloo's own ranges, or what was only launched -------------------------------------------------------


ISSUING_PREFIX = "c10d::"


def gloo_calls(trace: Trace) -> list[Found]:
    """Return one call per range of Gloo. The range contains the bytes; without a known launch, the call begins with
    it."""
    ranges = np.flatnonzero(trace.named((GLOO_PREFIX,)))
    launches = _launches(trace, ranges.tolist())
    return [_gloo_call(trace, one, launches.get(one)) for one in ranges.tolist()]


def issued_calls(trace: Trace) -> list[Found]:
    """Return launches without a known execution: the backend's ranges on the host, else c10d's operators."""
    is_range = trace.named(NCCL_PREFIXES)
    chosen = outermost(trace.events, is_range if is_range.any() else trace.named((ISSUING_PREFIX,)))
    groups, found = _groups_of_ranges(trace), []
    for position in np.flatnonzero(chosen).tolist():
        arguments = trace.events.collectives.get(position, NO_ARGUMENTS)
        begin, end = next(trace.spans(np.array([position])))
        lane = int(trace.events.lane[position])
        collective = described(usual_op(trace.name(position)), arguments, groups, Identity.ANNOTATION)
        call = call_of(collective, begin, end, trace.thread(lane), None)
        call = dataclasses.replace(call, on_device=bool(is_range.any()))  # NCCL runs nowhere else
        found.append(Found(call, lane, collective.description))
    return found


def _gloo_call(trace: Trace, position: int, launch: int | None) -> Found:
    arguments = trace.events.collectives.get(position, NO_ARGUMENTS)
    name, lane = trace.name(position), trace.events.lanes[int(trace.events.lane[position])]
    identity = Identity.ANNOTATION if arguments == NO_ARGUMENTS else Identity.ARGUMENTS
    begin, end = next(trace.spans(np.array([position])))
    execution = ExecRange(begin, end, Evidence.BACKEND, name, lane.name or f"thread {lane.tid}")
    if launch is None:
        collective = described(usual_op(name), arguments, _groups_of_ranges(trace), identity)
        return Found(call_of(collective, begin, begin, trace.main_thread, execution), NOTHING)
    collective = described(usual_op(trace.name(launch)), arguments, _groups_of_ranges(trace), identity)
    issuer = int(trace.events.lane[launch])
    call = call_of(collective, *next(trace.spans(np.array([launch]))), trace.thread(issuer), execution)
    return Found(call, issuer, collective.description)


def _launches(trace: Trace, ranges: list[int]) -> dict[int, int]:
    """Return, by position of a range, the operator that launched it: the k-th operator that Gloo carries out that
    way."""
    issued: dict[str, list[int]] = defaultdict(list)
    for position in np.flatnonzero(outermost(trace.events, trace.named((ISSUING_PREFIX,)))).tolist():
        for kind in gloo_ranges(usual_op(trace.name(position))):
            issued[kind].append(position)
    return dict(pair for kind in sorted(issued) for pair in _pairs(trace, issued[kind], _of_kind(trace, ranges, kind)))


def _of_kind(trace: Trace, ranges: list[int], kind: str) -> list[int]:
    return [range for range in ranges if trace.name(range) == GLOO_PREFIX + kind]


def _pairs(trace: Trace, issued: list[int], ranges: list[int]) -> Iterator[tuple[int, int]]:
    """Yield each range with its operator; nothing if any is missing, or a range would have run before its launch."""
    begins = trace.events.begin_ns
    if len(issued) == len(ranges) and (begins[issued] <= begins[ranges]).all():
        yield from zip(ranges, issued, strict=True)


def _groups_of_ranges(trace: Trace) -> Groups:
    return Groups(trace.events.facts, alone=True)
