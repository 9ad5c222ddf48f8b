"""The collectives of a foreign file that ran on a device: what each was, who launched it, and when it ran.

thread   record_param_comms ├───────────────┤
         nccl:all_reduce       ├─────────┤          launch: its begin; what it was, where the kernel does not say
         cudaLaunchKernel         ├───┤  correlation 7
stream                                    ├───────┤ exec: the hull of the kernels launched in one such range
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.load.foreign.identity import NOTHING_SAID, Groups, Said, identified, merged
from ddptrace.load.foreign.trace import Trace
from ddptrace.load.kineto.events import FAR_NS, Ints
from ddptrace.load.tables import Call, ExecRange, Work
from ddptrace.load.windows.device import NCCL_PREFIXES
from ddptrace.load.windows.nesting import NOTHING, innermost_around
from ddptrace.schema import Evidence

PARAMETERS: Final = "record_param_comms"


@dataclass(frozen=True, slots=True)
class Found:
    """A collective before it is numbered. `lane`: the thread that launched it, NOTHING where that is not known."""

    call: Call
    lane: int


def in_launch_order(found: Iterable[Found]) -> list[Found]:
    """Of those at one instant, what was launched before the file begins comes first."""

    def key(one: Found) -> tuple[int, bool, int]:
        return one.call.launch_at_ns, one.lane != NOTHING, one.call.exec.begin_at_ns if one.call.exec else 0

    return sorted(found, key=key)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Communication kernels, in order of their begin: positions of events, NOTHING where there is none."""

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
        annotation, parameters = (innermost_around(events, one, lanes, events.begin_ns[launch]) for one in ranges)
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
    """One per communication kernel, or per range of the backend in which several were launched.

    A kernel without launch in the file was launched before all that have one: at its begin, or before the first launch,
    which is the latest that it can have been.
    """
    kernels = _Kernels.of(trace)
    groups = Groups(trace.events.facts, alone=len(np.unique(kernels.stream)) <= 1)
    found = [_device_call(trace, kernels, ks, groups) for ks in kernels.by_call()]
    latest_ns = min((one.call.launch_at_ns for one in found if one.lane != NOTHING), default=FAR_NS)
    return [one if one.lane != NOTHING else _launched_by(one, latest_ns) for one in found]


def _launched_by(found: Found, latest_ns: int) -> Found:
    at = min(found.call.launch_at_ns, latest_ns)
    return Found(dataclasses.replace(found.call, launch_at_ns=at, issued_at_ns=at), NOTHING)


def _device_call(trace: Trace, kernels: _Kernels, ks: list[int], groups: Groups) -> Found:
    execution = _exec(trace, kernels, ks)
    said = _said(trace, kernels, ks[0], groups)
    launch = int(kernels.launch[ks[0]])
    if launch == NOTHING:
        at = execution.begin_at_ns
        return Found(call_of(said, at, at, trace.main_thread, execution), NOTHING)
    annotation, lane = int(kernels.annotation[ks[0]]), int(trace.events.lane[launch])
    begin, end = next(trace.spans(np.array([launch if annotation == NOTHING else annotation])))
    return Found(call_of(said, begin, end, trace.thread(lane), execution), lane)


def _exec(trace: Trace, kernels: _Kernels, ks: list[int]) -> ExecRange:
    events, mine = trace.events, kernels.kernel[ks]
    return ExecRange(
        int(events.begin_ns[mine].min()), int(events.end_ns[mine].max()), Evidence.DEVICE, trace.name(int(mine[0])),
        trace.device.streams[int(kernels.stream[ks[0]])],
    )  # fmt: skip


def _said(trace: Trace, kernels: _Kernels, k: int, groups: Groups) -> Said:
    annotation, parameters = int(kernels.annotation[k]), int(kernels.parameters[k])
    arguments = trace.events.collectives
    around = merged(arguments.get(annotation, NOTHING_SAID), arguments.get(parameters, NOTHING_SAID))
    kernel = int(kernels.kernel[k])
    return identified(
        trace.name(kernel), arguments.get(kernel, NOTHING_SAID),
        "" if annotation == NOTHING else trace.name(annotation), around, groups, trace.rules,
    )  # fmt: skip


def call_of(said: Said, launch: int, issued: int, thread: int, execution: ExecRange | None) -> Call:
    """Not yet numbered."""
    return Call(
        seq=0, op=said.op, group=said.group, ordinal=0, launch_at_ns=launch, issued_at_ns=issued,
        nbytes_in=said.nbytes_in, nbytes_out=said.nbytes_out, dtype=said.dtype, thread=thread, is_sync=False,
        is_native=False, reducer=None, hook=None, done_at_ns=None, waits=(), exec=execution,
        group_size=said.group_size, identity=said.identity,
        on_device=execution is not None and execution.evidence is Evidence.DEVICE,
    )  # fmt: skip
