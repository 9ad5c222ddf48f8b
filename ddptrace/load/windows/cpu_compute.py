"""Finds in a Kineto file when a rank's host computed, in which operators, and when DDP brought rank 0's buffers.

A CPU computes at the instants at which the innermost operator that runs on a training thread is one that computes.
(Ranges without children alone would miss most of it: `aten::addmm` computes in its own time, beside the few
microseconds of the `aten::expand` and `aten::copy_` inside it.)

    evaluate_function: Addmm ├──────────────────────────────┤        engine: its own time is hooks and bookkeeping
      aten::mm                  ├───────────┤
        aten::resolve_conj        ├┤
      c10d::allreduce_                         ├────────┤            communication, with everything inside
    compute                     ├───────────┤

Each operator that computes counts once, as a whole:

    aten::linear          ├──────────────────────────────┤     all but a little of it is inside another: left out
      aten::addmm           ├──────────────────────────┤       more than half of it is its own: it is the operator
        aten::expand          ├─┤                              inside one that counts
      aten::relu                                         ├─┤

DDP brings rank 0's buffers at the begin of a forward:

    thread   DistributedDataParallel.forward  ├─────────────────────────────────────────────────┤
             flatten, broadcast, unflatten, copy_   ├────┤├──┤├──────┤├┤├┤├┤├┤
             the model                                                          ├── conv2d ──┤
    buffers                                         |------------------------|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.kineto.events import Category, Ints, KinetoEvents
from ddptrace.load.tables import Intervals, OperatorWork
from ddptrace.load.windows.device import Mask, named, of_category
from ddptrace.load.windows.nesting import NOTHING, Nest, innermost_around, outermost
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
COMPUTE, COMPILED, NOT_COMPUTE, COMMUNICATION, AS_PARENT = range(5)
"""What an instant is whose innermost range this is. COMPILED: a graph's fused kernels, whose waits are operators inside
it. AS_PARENT: a name without a namespace is an autograd node or a Python function, whose own time may be anything."""
NO_SPANS: Final[Intervals] = np.empty((0, 2), np.int64)


def union(spans: Intervals) -> Intervals:
    """Every instant inside any of the spans: sorted, apart, none empty. As `analysis.intervals.union`, which this room
    may not import, nor that room this."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    opens = np.flatnonzero(np.append(True, spans[1:, 0] > reach[:-1]))
    return np.column_stack((spans[opens, 0], reach[np.append(opens[1:], len(spans)) - 1]))


@dataclass(frozen=True, slots=True)
class ThreadRanges:
    """Operator ranges of one training thread. Columns have shape (n,); `nest` tells them by position there."""

    event: Ints  # position among the file's events
    begin_ns: Ints
    end_ns: Ints
    role: Ints  # what an instant is whose innermost range this is: never AS_PARENT
    nest: Nest

    @property
    def computes(self) -> NDArray[np.bool_]:
        return np.isin(self.role, (COMPUTE, COMPILED))


def cpu_compute(events: KinetoEvents, training_threads: frozenset[int]) -> Intervals:
    """`training_threads`: the system's thread ids; those on which the autograd engine ran are training threads too."""
    return computing(thread_ranges(events, training_threads))


def thread_ranges(events: KinetoEvents, training_threads: frozenset[int]) -> list[ThreadRanges]:
    """By training thread."""
    roles = np.array([_role(name) for name in events.names], np.int64)
    lanes = {i for i, lane in enumerate(events.lanes) if lane.tid.isdigit() and int(lane.tid) in training_threads}
    engine = [i for i, name in enumerate(events.names) if name.startswith(ENGINE_RANGE)]
    is_op = events.category == Category.OP
    lanes |= set(events.lane[is_op & np.isin(events.name, engine)].tolist())
    found = []
    for lane in sorted(lanes):
        mine = np.flatnonzero(is_op & (events.lane == lane))
        found.append(_ranges(mine, events.begin_ns[mine], events.end_ns[mine], roles[events.name[mine]]))
    return found


def computing(threads: Sequence[ThreadRanges]) -> Intervals:
    """The instants at which the innermost range of any of the threads computes."""
    return (
        union(np.concatenate([_innermost_compute(thread) for thread in threads], dtype=np.int64))
        if threads
        else NO_SPANS
    )


def _role(name: str) -> int:
    namespace, colons, _ = name.partition("::")
    if namespace in COMMUNICATION_NAMESPACES or name.startswith((RANGE_PREFIX, "record_param_comms")):
        return COMMUNICATION
    if name.startswith(COMPILED_GRAPH):
        return COMPILED
    if not colons:
        return AS_PARENT
    return NOT_COMPUTE if namespace in ENGINE_NAMESPACES else COMPUTE


def _ranges(event: Ints, begins: Ints, ends: Ints, roles: Ints) -> ThreadRanges:
    roles = np.where((roles == COMPUTE) & _holds_communication(begins, ends, roles), NOT_COMPUTE, roles)
    nest = Nest.of(begins, ends)
    return ThreadRanges(event, begins, ends, _in_their_place(nest, roles), nest)


def _innermost_compute(thread: ThreadRanges) -> Intervals:
    """The instants of one thread whose innermost range computes."""
    nest, inner = thread.nest, np.append(thread.computes, False)[thread.nest.inner]  # NOTHING is the last one
    computes = np.flatnonzero(inner[:-1])
    return np.column_stack((nest.edges[computes], nest.edges[computes + 1]))


def _in_their_place(nest: Nest, roles: Ints) -> Ints:
    """Roles of ranges, given those around them."""
    found = roles.tolist()
    for k, parent in zip(nest.order.tolist(), nest.parent[nest.order].tolist(), strict=True):
        outer = found[parent] if parent != NOTHING else NOT_COMPUTE
        if outer == COMMUNICATION or found[k] == AS_PARENT:
            found[k] = outer
    return np.array(found, np.int64)


def _holds_communication(begins: Ints, ends: Ints, roles: Ints) -> NDArray[np.bool_]:
    """An operator that communicates inside (a tensor subclass, a custom operator) waits in its own time."""
    at = np.sort(begins[roles == COMMUNICATION])
    return np.searchsorted(at, ends) > np.searchsorted(at, begins)


# Which operators computed ---------------------------------------------------------------------------------------------


def operator_work(events: KinetoEvents, threads: Sequence[ThreadRanges]) -> OperatorWork:
    """Of the training threads together. `threads`: as `thread_ranges` gives them for these events."""
    chosen = np.concatenate([np.empty(0, np.int64), *(_whole_operators(thread) for thread in threads)])
    chosen = chosen[np.argsort(events.begin_ns[chosen], kind="stable")]
    used, name = np.unique(events.name[chosen], return_inverse=True)
    names = tuple(events.names[i] for i in used.tolist())
    return OperatorWork(name.astype(np.int64), events.begin_ns[chosen], events.end_ns[chosen], names)


def _whole_operators(thread: ThreadRanges) -> Ints:
    """Positions of the events that compute for half of their time at least, in nothing inside them; none of them is
    inside another."""
    inner, length = thread.nest.inner[:-1], np.diff(thread.nest.edges)
    own = np.zeros(len(thread.event), np.int64)
    np.add.at(own, inner[inner != NOTHING], length[inner != NOTHING])
    whole = thread.end_ns - thread.begin_ns
    chosen = np.flatnonzero(thread.computes & (whole > 0) & (2 * own >= whole))
    chosen = chosen[np.lexsort((-thread.end_ns[chosen], thread.begin_ns[chosen]))]
    reach = np.maximum.accumulate(thread.end_ns[chosen])
    is_outermost = np.append(True, thread.begin_ns[chosen][1:] >= reach[:-1])[: len(chosen)]
    found: Ints = thread.event[chosen[is_outermost]]
    return found


# DDP's broadcasts of buffers ------------------------------------------------------------------------------------------


FORWARD: Final = "DistributedDataParallel.forward"
PACKS: Final = "aten::flatten_dense_tensors"
BROADCASTS: Final = ("c10d::broadcast_", "nccl:broadcast", "gloo:broadcast")
OF_BROADCAST: Final = (PACKS, "aten::unflatten_dense_tensors", "aten::copy_", "record_param_comms", *BROADCASTS)
"""What the broadcast of buffers consists of, at the top level of a forward."""


def buffer_broadcasts(events: KinetoEvents) -> tuple[tuple[int, int], ...]:
    """Return begin of the first and end of the last operator of each of DDP's broadcasts of buffers, in ns.

    The operators must follow each other: a model that broadcasts something itself does other things around it."""
    forwards = _named(events, FORWARD) & of_category(events, Category.OP, Category.ANNOTATION)
    inside = _in_forwards(events, forwards)
    if not inside:
        return ()
    kinds = [_named(events, *names) for names in (OF_BROADCAST, (PACKS,), BROADCASTS)]
    found = [_run(events, ops, *(kind[ops] for kind in kinds)) for ops in inside]
    return tuple(span for span in found if span is not None)


def _in_forwards(events: KinetoEvents, forwards: Mask) -> list[Ints]:
    """The outermost operators in each forward, in order of their begin."""
    if not forwards.any():
        return []
    ops = of_category(events, Category.OP) & ~forwards & ~named(events, (RANGE_PREFIX,))
    inside = np.flatnonzero(ops)
    around = innermost_around(events, forwards, events.lane[inside], events.begin_ns[inside])
    top = np.zeros(len(ops), np.bool_)
    top[inside[around != NOTHING]] = True
    top = outermost(events, top)
    forward = np.where(top[inside], around, NOTHING)
    return [np.sort(inside[forward == one]) for one in np.unique(forward[forward != NOTHING]).tolist()]


def _run(events: KinetoEvents, ops: Ints, owned: Mask, packs: Mask, sends: Mask) -> tuple[int, int] | None:
    """The first run of operators of `OF_BROADCAST` that both packs and broadcasts."""
    for is_own, run in groupby(range(len(ops)), key=lambda k: bool(owned[k])):
        ks = list(run)
        if is_own and packs[ks].any() and sends[ks].any():
            first = ks[int(np.argmax(packs[ks]))]
            return int(events.begin_ns[ops[first]]), int(events.end_ns[ops[ks]].max())
    return None


def _named(events: KinetoEvents, *names: str) -> Mask:
    """Events of exactly these names."""
    known = np.array([name in names for name in events.names], np.bool_)
    chosen: Mask = known[events.name]
    return chosen
