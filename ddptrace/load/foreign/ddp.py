"""Which all-reduces torch's DistributedDataParallel launched for gradients, in a file without records of its
reducer."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ddptrace.load.foreign.calls import Found
from ddptrace.load.foreign.trace import DDP_COPY, DDP_MARKS, Trace
from ddptrace.load.kineto.events import Ints
from ddptrace.load.records.calls import NO_GRADIENT
from ddptrace.load.tables import Call, Intervals, Reducer
from ddptrace.load.windows.device import operators
from ddptrace.load.windows.nesting import NOTHING, innermost_around
from ddptrace.schema import Evidence, Origin

REDUCER: Final = 0


def with_reducer(trace: Trace, backwards: Intervals, found: Sequence[Found]) -> list[Call]:
    """Return DDP's calls: those that the engine launched inside a backward, in a file that shows DDP at work. What a
    compiled graph or a hook without DDP launches there is no bucket."""
    lanes = np.array([one.lane for one in found], np.int64)
    at = np.array([one.call.launch_at_ns for one in found], np.int64)
    by_engine = innermost_around(trace.events, trace.is_node, lanes, at) != NOTHING
    by_engine |= np.isin(lanes, sorted(trace.engine_lanes - {trace.main_lane}))
    native = by_engine & (backward_at(backwards, at) != NOTHING) & trace.has_ddp
    return [_marked(one.call) if native[k] else one.call for k, one in enumerate(found)]


def backward_at(backwards: Intervals, at: np.ndarray) -> np.ndarray:
    """Return the position of the backward around each instant, or NOTHING."""
    if not len(backwards):
        return np.full(len(at), NOTHING, np.int64)
    k = np.searchsorted(backwards[:, 0], at, side="right") - 1
    return np.where((k >= 0) & (at < backwards[k, 1]), k, NOTHING)


def until_copied(trace: Trace, backwards: Intervals, calls: Sequence[Call]) -> list[Call]:
    """Return the calls with executions cut where DDP used their results. Gloo's range stays open for
    longer: a callback in it waits for the interpreter.

    main   launch 0  launch 1 ├┄ waits ┄┤ copies of bucket 0 ├┄┄ waits ┄┄┤ copies of bucket 1
    gloo         ├── exec 0 ───────────┤┄┄┄├────── exec 1 ───────────────┤┄┄┄┄┄┤
    """
    buckets: dict[int, list[int]] = defaultdict(list)
    for k, backward in enumerate(backward_at(backwards, np.array([call.launch_at_ns for call in calls])).tolist()):
        if calls[k].is_native:
            buckets[backward].append(k)
    used = _used_at(trace, backwards, {backward: [calls[k] for k in ks] for backward, ks in buckets.items()})
    until = {k: at for backward, ks in buckets.items() for k, at in zip(ks, used.get(backward, ()), strict=False)}
    return [_until(call, until[k]) if k in until else call for k, call in enumerate(calls)]


def _until(call: Call, at_ns: int) -> Call:
    """Cut a range, unless it began later: then its result cannot have been in use."""
    ran = call.exec
    if ran is None or ran.evidence is not Evidence.BACKEND or not ran.begin_at_ns < at_ns < ran.end_at_ns:
        return call
    return dataclasses.replace(call, exec=dataclasses.replace(ran, end_at_ns=at_ns))


def _used_at(trace: Trace, backwards: Intervals, buckets: Mapping[int, Sequence[Call]]) -> dict[int, list[int]]:
    """Return, by backward, when the result of each of its buckets was in use. Buckets are copied in launch order; if
    their copies cannot be distinguished, all buckets were complete when the last copy began."""
    begins, opens = _copies(trace)
    of, single = backward_at(backwards, begins), _has_one_forward(trace, backwards)
    found = {}
    for backward, calls in buckets.items():
        mine = of == backward
        firsts = begins[mine & opens].tolist()
        if mine.any():
            told = single[backward] and _can_be_over(calls, firsts)
            found[backward] = firsts if told else [int(begins[mine].max())] * len(calls)
    return found


def _can_be_over(calls: Sequence[Call], at_ns: Sequence[int]) -> bool:
    """Each by its instant."""
    pairs = zip(calls, at_ns, strict=False)
    return len(calls) == len(at_ns) and all(call.exec is None or call.exec.begin_at_ns < at for call, at in pairs)


def _copies(trace: Trace) -> tuple[Ints, np.ndarray]:
    """Begins of DDP's copies, and whether each is its bucket's first: other operators of its thread lead to it."""
    events = trace.events
    copies, ops = trace.named((DDP_COPY,)), operators(events)
    found, opens = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    for lane in np.unique(events.lane[copies]).tolist():
        begins, ends = (at[copies & (events.lane == lane)] for at in (events.begin_ns, events.end_ns))
        at = events.begin_ns[ops & (events.lane == lane)]
        found.append(begins)
        opens.append(np.append(True, np.searchsorted(at, begins[1:]) > np.searchsorted(at, ends[:-1])))
    return np.concatenate(found), np.concatenate(opens)


def _has_one_forward(trace: Trace, backwards: Intervals) -> list[bool]:
    """Group by backward: two modules under DDP launch their buckets mixed and copy them module by module."""
    forwards = trace.events.begin_ns[trace.named(DDP_MARKS[:1])]
    before = np.searchsorted(forwards, backwards[:, 0])
    return [count <= 1 for count in np.diff(before, prepend=0).tolist()]


def reducers_of(calls: Sequence[Call], kind: str) -> tuple[Reducer, ...]:
    """Return one reducer, without parameters or layouts, if any call belongs to a reducer. `kind`: its wrapper."""
    groups = Counter(call.group for call in calls if call.is_native)
    if not groups:
        return ()
    return (Reducer(REDUCER, kind, "", groups.most_common(1)[0][0], None, (), ()),)


def _marked(call: Call) -> Call:
    if call.op != "all_reduce":
        return call
    if call.dtype.startswith(NO_GRADIENT):
        return dataclasses.replace(call, origin=Origin.UNUSED_PARAMETERS.word)
    return dataclasses.replace(call, is_native=True, reducer=REDUCER, origin=Origin.GRADIENTS.word)
