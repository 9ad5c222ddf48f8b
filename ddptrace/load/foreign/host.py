"""The collectives of a foreign file without a device: Gloo's own ranges, or only what was launched.

main         c10d::allreduce_ ├┤   c10d::allreduce_ ├┤        launch: the k-th of the same kind, if all are there
gloo thread                     gloo:all_reduce ├───────┤     exec
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ddptrace.load.foreign.calls import Found, call_of
from ddptrace.load.foreign.identity import NOTHING_SAID, Groups, told, usual_op
from ddptrace.load.foreign.trace import Trace
from ddptrace.load.tables import ExecRange, Identity
from ddptrace.load.windows.backend_ranges import OPS
from ddptrace.load.windows.device import GLOO_PREFIX, NCCL_PREFIXES
from ddptrace.load.windows.nesting import NOTHING, outermost
from ddptrace.schema import Evidence

ISSUING_PREFIX = "c10d::"


def gloo_calls(trace: Trace) -> list[Found]:
    """One per range of Gloo's. Its range tells bytes; where no launch can be told, it began when it ran."""
    ranges = np.flatnonzero(trace.named((GLOO_PREFIX,)))
    launches = _launches(trace, ranges.tolist())
    return [_gloo_call(trace, one, launches.get(one)) for one in ranges.tolist()]


def issued_calls(trace: Trace) -> list[Found]:
    """What was launched, where nothing shows when it ran: the backend's ranges on the host, else c10d's operators."""
    is_range = trace.named(NCCL_PREFIXES)
    chosen = outermost(trace.events, is_range if is_range.any() else trace.named((ISSUING_PREFIX,)))
    groups, found = _groups(trace), []
    for position in np.flatnonzero(chosen).tolist():
        said = trace.events.collectives.get(position, NOTHING_SAID)
        begin, end = next(trace.spans(np.array([position])))
        lane = int(trace.events.lane[position])
        told_so = told(usual_op(trace.name(position)), said, groups, Identity.ANNOTATION)
        call = call_of(told_so, begin, end, trace.thread(lane), None)
        found.append(Found(dataclasses.replace(call, on_device=bool(is_range.any())), lane))  # NCCL runs nowhere else
    return found


def _gloo_call(trace: Trace, position: int, launch: int | None) -> Found:
    said = trace.events.collectives.get(position, NOTHING_SAID)
    name, lane = trace.name(position), trace.events.lanes[int(trace.events.lane[position])]
    identity = Identity.ANNOTATION if said == NOTHING_SAID else Identity.ARGUMENTS
    begin, end = next(trace.spans(np.array([position])))
    execution = ExecRange(begin, end, Evidence.BACKEND, name, lane.name or f"thread {lane.tid}")
    if launch is None:
        told_so = told(usual_op(name), said, _groups(trace), identity)
        return Found(call_of(told_so, begin, begin, trace.main_thread, execution), NOTHING)
    told_so = told(usual_op(trace.name(launch)), said, _groups(trace), identity)
    issuer = int(trace.events.lane[launch])
    return Found(call_of(told_so, *next(trace.spans(np.array([launch]))), trace.thread(issuer), execution), issuer)


def _launches(trace: Trace, ranges: list[int]) -> dict[int, int]:
    """By position of a range, that of the operator which launched it: the k-th of those that Gloo carries out so."""
    issued: dict[str, list[int]] = defaultdict(list)
    for position in np.flatnonzero(outermost(trace.events, trace.named((ISSUING_PREFIX,)))).tolist():
        for kind in OPS.get(usual_op(trace.name(position)), ()):
            issued[kind].append(position)
    return dict(pair for kind in sorted(issued) for pair in _pairs(trace, issued[kind], _of_kind(trace, ranges, kind)))


def _of_kind(trace: Trace, ranges: list[int], kind: str) -> list[int]:
    return [one for one in ranges if trace.name(one) == GLOO_PREFIX + kind]


def _pairs(trace: Trace, issued: list[int], ranges: list[int]) -> Iterator[tuple[int, int]]:
    """None where one is missing, or would have run before its launch."""
    begins = trace.events.begin_ns
    if len(issued) == len(ranges) and (begins[issued] <= begins[ranges]).all():
        yield from zip(ranges, issued, strict=True)


def _groups(trace: Trace) -> Groups:
    return Groups(trace.events.facts, alone=True)
