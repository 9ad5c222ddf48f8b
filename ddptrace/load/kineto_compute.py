"""When a rank computed, by its Kineto file: unions of half-open intervals, on the events' own time axis.

On a device: its kernels that are not communication. On a CPU: the instants at which the innermost operator that runs on
a training thread is one that computes. (Ranges without children alone would miss most of it: `aten::addmm` computes in
its own time, beside the few microseconds of the `aten::expand` and `aten::copy_` inside it.)

    evaluate_function: Addmm ├──────────────────────────────┤        engine: its own time is hooks and bookkeeping
      aten::mm                  ├───────────┤
        aten::resolve_conj        ├┤
      c10d::allreduce_                         ├────────┤            communication, with everything inside
    compute                     ├───────────┤
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.kineto import FAR_NS, Category, Ints, KinetoEvents
from ddptrace.load.tables import Intervals
from ddptrace.schema import RANGE_PREFIX

COMMUNICATION_NAMESPACES: Final = frozenset(
    {"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "gloo"}
)
"""Launching a collective or waiting for one (`_c10d_functional::wait_tensor`) is not compute."""

ENGINE_NAMESPACES: Final = frozenset({"autograd", "torch"})
"""`autograd::engine::evaluate_function: X` and `torch::autograd::AccumulateGrad`: hooks run in their own time, and a
hook may wait or sleep."""

COMPILED_GRAPH: Final = "## Call CompiledFxGraph"
ENGINE_RANGE: Final = "autograd::engine::evaluate_function"
DEVICE_LIBRARIES: Final = ("nccl", "rccl")

COMPUTE, COMPILED, NOT_COMPUTE, COMMUNICATION, AS_PARENT = range(5)
"""What an instant is whose innermost range this is. COMPILED: a graph's fused kernels, whose waits are operators inside
it. AS_PARENT: a name without a namespace is an autograd node or a Python function, whose own time may be anything."""


def union(spans: Intervals) -> Intervals:
    """Every instant inside any of the spans: sorted, apart, none empty."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    opens = np.flatnonzero(np.append(True, spans[1:, 0] > reach[:-1]))
    return np.column_stack((spans[opens, 0], reach[np.append(opens[1:], len(spans)) - 1]))


def device_compute(events: KinetoEvents) -> Intervals:
    return _spans(events, (events.category == Category.KERNEL) & ~communication_kernels(events))


def device_communication(events: KinetoEvents) -> Intervals:
    return _spans(events, communication_kernels(events))


def device_memory(events: KinetoEvents) -> Intervals:
    """Copies and fills by the device."""
    return _spans(events, events.category == Category.MEMORY)


def communication_kernels(events: KinetoEvents) -> NDArray[np.bool_]:
    """By what the kernel's arguments say, or by its library's name in its own."""
    known = [i for i, name in enumerate(events.names) if any(library in name.lower() for library in DEVICE_LIBRARIES)]
    is_kernel: NDArray[np.bool_] = events.category == Category.KERNEL
    return is_kernel & (np.isin(events.name, known) | events.is_collective)


def cpu_compute(events: KinetoEvents, training_threads: frozenset[int]) -> Intervals:
    """`training_threads`: the system's thread ids; those on which the autograd engine ran are training threads too."""
    roles = np.array([_role(name) for name in events.names], np.int64)
    lanes = {i for i, lane in enumerate(events.lanes) if lane.tid.isdigit() and int(lane.tid) in training_threads}
    engine = [i for i, name in enumerate(events.names) if name.startswith(ENGINE_RANGE)]
    is_op = events.category == Category.OP
    lanes |= set(events.lane[is_op & np.isin(events.name, engine)].tolist())
    parts = []
    for lane in sorted(lanes):
        mine = is_op & (events.lane == lane)
        parts.append(_innermost_compute(events.begin_ns[mine], events.end_ns[mine], roles[events.name[mine]]))
    return union(np.concatenate(parts)) if parts else np.empty((0, 2), np.int64)


def _spans(events: KinetoEvents, chosen: NDArray[np.bool_]) -> Intervals:
    return union(np.column_stack((events.begin_ns[chosen], events.end_ns[chosen])))


def _role(name: str) -> int:
    namespace, colons, _ = name.partition("::")
    if namespace in COMMUNICATION_NAMESPACES or name.startswith((RANGE_PREFIX, "record_param_comms")):
        return COMMUNICATION
    if name.startswith(COMPILED_GRAPH):
        return COMPILED
    if not colons:
        return AS_PARENT
    return NOT_COMPUTE if namespace in ENGINE_NAMESPACES else COMPUTE


def _innermost_compute(begins: Ints, ends: Ints, roles: Ints) -> Intervals:
    """The instants of one thread whose innermost range computes."""
    roles = np.where((roles == COMPUTE) & _holds_communication(begins, ends, roles), NOT_COMPUTE, roles)
    order = np.lexsort((-ends, begins))
    ranges = zip(begins[order].tolist(), ends[order].tolist(), roles[order].tolist(), strict=True)
    spans = [(begin, end) for begin, end, role in _stretches(ranges) if role in (COMPUTE, COMPILED)]
    return np.array(spans, np.int64).reshape(-1, 2)


def _stretches(ranges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """From nested (begin, end, role), outer before inner: (begin, end, role of the innermost), in order and apart."""
    open_ranges = [(FAR_NS, NOT_COMPUTE)]  # (end, role), outermost first
    at = -FAR_NS
    for begin, end, role in itertools.chain(ranges, [(FAR_NS - 1, FAR_NS, NOT_COMPUTE)]):
        while open_ranges[-1][0] <= begin:
            inner_end, inner_role = open_ranges.pop()
            yield at, inner_end, inner_role
            at = inner_end
        outer_end, outer_role = open_ranges[-1]
        yield at, begin, outer_role
        at = begin
        role = outer_role if outer_role == COMMUNICATION or role == AS_PARENT else role
        open_ranges.append((min(end, outer_end), role))  # whole microseconds can make a child outlive its parent


def _holds_communication(begins: Ints, ends: Ints, roles: Ints) -> NDArray[np.bool_]:
    """An operator that communicates inside (a tensor subclass, a custom operator) waits in its own time."""
    at = np.sort(begins[roles == COMMUNICATION])
    return np.searchsorted(at, ends) > np.searchsorted(at, begins)
