"""Tells what the device did in one window, which call launched it, and how much it computed and moved.

thread   nn.Module: Linear_0  ├─────────────────────────┤       module: innermost of those around the launch
         ## forward ##      ├──────────────────────────────┤    annotation: innermost
         aten::linear          ├──────────────────┤             operator: outermost
           aten::addmm           ├──────────────┤
             cudaLaunchKernel       ├────┤  correlation 7
stream                                       ├──────┤ gemm, correlation 7

What an operator computes counts for the longest work that it launched:

thread     aten::addmm, 2·m·n·k FLOPs   ├──────────────────────┤
                                          launch 7    launch 8
stream                                             ├── gemm, 7 ──┤├ splitK, 8 ┤
flops                                              2·m·n·k         0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.kineto.events import NO_CORRELATION, Category, Ints, KinetoEvents, Lane
from ddptrace.load.tables import Counts, DeviceWork, Intervals, Operation, Work
from ddptrace.load.windows.comm_kernels import CommRule, communication_kernels
from ddptrace.load.windows.nesting import NOTHING, innermost_around, outermost
from ddptrace.ops import is_named_after_communication
from ddptrace.schema import RANGE_PREFIX

MODULE_PREFIX: Final = "nn.Module: "
PROFILER_STEP: Final = "ProfilerStep#"
LOOP_PREFIXES: Final = (PROFILER_STEP, "Optimizer.", "enumerate(DataLoader)#")
"""Ranges that torch itself puts around parts of the loop. Old files hold them as operators."""

NCCL_PREFIXES: Final = ("nccl:", "rccl:")
GLOO_PREFIX: Final = "gloo:"
NO_SCOPE: Final = (PROFILER_STEP, RANGE_PREFIX, *NCCL_PREFIXES, GLOO_PREFIX)
"""Annotations that tell nothing of the model."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KinetoWork:
    """The device's work among a file's events. All columns have shape (n,), in order of begin."""

    events: KinetoEvents
    position: Ints  # among the events
    kind: NDArray[np.uint8]  # Work
    launch: Ints  # position of the runtime call that launched it, or NOTHING
    stream: Ints  # index into `streams`
    streams: tuple[str, ...]

    @classmethod
    def of(cls, events: KinetoEvents, rules: Sequence[CommRule] = ()) -> KinetoWork:
        is_comm = communication_kernels(events, rules)
        kind = np.where(is_comm, Work.COMM, np.where(events.category == Category.MEMORY, Work.MEMORY, Work.COMPUTE))
        position = np.flatnonzero(of_category(events, Category.KERNEL, Category.MEMORY))
        stream, streams = _streams(events, position)
        launch = _launches(events, position)
        return cls(events, position, kind[position].astype(np.uint8), launch, stream, streams)

    def spans(self, kind: Work) -> Intervals:
        """Begin and end of each piece of one kind."""
        chosen = self.position[self.kind == kind]
        return np.column_stack((self.events.begin_ns[chosen], self.events.end_ns[chosen]))

    def table(self, with_scopes: bool = True) -> DeviceWork | None:
        """None where no device worked. Scopes (module, annotation, operator) cost more than all the rest."""
        if not len(self.position):
            return None
        events, launched = self.events, self.launch != NOTHING
        begins, ends = (np.where(launched, column[self.launch], 0) for column in (events.begin_ns, events.end_ns))
        (name, module, annotation, operator), names = _names(
            events, (events.name[self.position], *(self._scopes() if with_scopes else self._no_scopes()))
        )
        return DeviceWork(
            self.kind,
            self.stream,
            events.begin_ns[self.position],
            events.end_ns[self.position],
            launched,
            begins,
            ends,
            name,
            module,
            annotation,
            operator,
            self.streams,
            names,
            _counts_of(events, self.position, self.kind, self.launch) if with_scopes else None,
        )

    def _no_scopes(self) -> tuple[Ints, Ints, Ints]:
        nothing = np.full(len(self.position), NOTHING, np.int64)
        return nothing, nothing, nothing

    def _scopes(self) -> tuple[Ints, Ints, Ints]:
        """Module, annotation and operator around each launch: indices into the events' names, or NOTHING."""
        events, launched = self.events, self.launch != NOTHING
        launches, again = np.unique(self.launch[launched], return_inverse=True)
        found = []
        for chosen in (_modules(events), _annotations(events), outermost(events, operators(events))):
            around = innermost_around(events, chosen, events.lane[launches], events.begin_ns[launches])
            names = np.full(len(launched), NOTHING, np.int64)
            names[launched] = np.where(around == NOTHING, NOTHING, events.name[around])[again]
            found.append(names)
        return found[0], found[1], found[2]


def named(events: KinetoEvents, prefixes: tuple[str, ...]) -> Mask:
    """Events of any category whose name begins so."""
    chosen: Mask = np.array([name.startswith(prefixes) for name in events.names], np.bool_)[events.name]
    return chosen


def operators(events: KinetoEvents) -> Mask:
    """What is an operator of the model's, old files' ranges of the loop left out."""
    return of_category(events, Category.OP) & ~named(events, (*LOOP_PREFIXES, RANGE_PREFIX))


def of_category(events: KinetoEvents, *categories: Category) -> Mask:
    wanted = np.zeros(len(Category), np.bool_)
    wanted[list(categories)] = True
    chosen: Mask = wanted[events.category]
    return chosen


def judged_by_name(events: KinetoEvents, some: Ints, judge: Callable[[str], int]) -> Ints:
    """What `judge` says of the name of each of these events. It is asked once of each name."""
    name = events.name[some]
    used = np.flatnonzero(np.bincount(name, minlength=len(events.names)))
    said = np.zeros(len(events.names), np.int64)
    said[used] = [judge(events.names[index]) for index in used.tolist()]
    return said[name]


def stream_name(lane: Lane) -> str:
    """Device and stream, as in "0:7": old files write the latter as "stream 7"."""
    return f"{lane.pid}:{lane.tid.removeprefix('stream ')}"


def _modules(events: KinetoEvents) -> Mask:
    return of_category(events, Category.FRAME) & named(events, (MODULE_PREFIX,))


def _annotations(events: KinetoEvents) -> Mask:
    of_loop = of_category(events, Category.OP) & named(events, LOOP_PREFIXES)
    return (of_category(events, Category.ANNOTATION) | of_loop) & ~named(events, NO_SCOPE)


def _streams(events: KinetoEvents, position: Ints) -> tuple[Ints, tuple[str, ...]]:
    lanes, index = np.unique(events.lane[position], return_inverse=True)
    names = [stream_name(events.lanes[lane]) for lane in lanes.tolist()]
    streams = tuple(dict.fromkeys(names))
    return np.array([streams.index(name) for name in names], np.int64)[index], streams


def _launches(events: KinetoEvents, position: Ints) -> Ints:
    """By correlation: one launch can own much work (a CUDA graph). The last launch, where ids were used again."""
    launches = np.flatnonzero((events.category == Category.RUNTIME) & (events.correlation != NO_CORRELATION))
    if not len(launches):
        return np.full(len(position), NOTHING, np.int64)
    launches = launches[np.argsort(events.correlation[launches], kind="stable")]
    last = np.searchsorted(events.correlation[launches], events.correlation[position], side="right") - 1
    same = (last >= 0) & (events.correlation[launches[last]] == events.correlation[position])
    return np.where(same, launches[last], NOTHING)


def _names(events: KinetoEvents, columns: tuple[Ints, ...]) -> tuple[list[Ints], tuple[str, ...]]:
    """The columns over the names that they use; a module's without what all modules' have."""
    used = np.unique(np.concatenate(columns))
    used = used[used != NOTHING]
    numbers = np.append(np.full(len(events.names), NOTHING, np.int64), NOTHING)  # the last one is NOTHING's own
    numbers[used] = np.arange(len(used))
    return [numbers[column] for column in columns], tuple(
        events.names[i].removeprefix(MODULE_PREFIX) for i in used.tolist()
    )


def comm_streams(works: KinetoWork) -> tuple[str, ...]:
    """Those whose name in the file says so, as `DeviceWork.streams` has them."""
    lanes = [works.events.lanes[lane] for lane in np.unique(works.events.lane[works.position]).tolist()]
    named = (lane for lane in lanes if is_named_after_communication(f"{lane.name} {lane.tid}"))
    return tuple(dict.fromkeys(map(stream_name, named)))


# How much the work computed and moved ---------------------------------------------------------------------------------


NOT_TOLD: Final = -1


def _counts_of(events: KinetoEvents, position: Ints, kind: NDArray[np.uint8], launch: Ints) -> Counts:
    """Count the work at these positions of the events. `kind` and `launch` are as in `KinetoWork`."""
    counted = np.array(list(events.flops), np.int64)
    told = [events.flops[at] for at in counted.tolist()]
    dtypes = {dtype: number for number, dtype in enumerate(dict.fromkeys(one.dtype for one in told))}
    owner = _owners(events, counted, np.where(kind == Work.COMPUTE, launch, NOTHING))
    operation = np.array([*(one.operation for one in told), Operation.NONE], np.uint8)[owner]
    flops = np.array([*(NOT_TOLD if one.flops is None else one.flops for one in told), NOT_TOLD], np.int64)[owner]
    dtype = np.array([*(NOT_TOLD if one.flops is None else dtypes[one.dtype] for one in told), NOT_TOLD])[owner]
    is_other = np.ones(len(position), np.bool_)
    is_other[_longest(owner, events.end_ns[position] - events.begin_ns[position])] = False
    flops[is_other & (flops != NOT_TOLD)] = 0
    nbytes = np.full(len(position), NOT_TOLD)
    nbytes[np.searchsorted(position, list(events.nbytes))] = list(events.nbytes.values())
    return Counts(nbytes, operation, flops, dtype, tuple(dtypes))


def _owners(events: KinetoEvents, counted: Ints, launch: Ints) -> Ints:
    """By work: which of the counted operators is innermost around its launch, or NOTHING."""
    is_counted = np.zeros(len(events.name), np.bool_)
    is_counted[counted] = True
    launched = np.flatnonzero(launch != NOTHING)
    launches = launch[launched]
    around = innermost_around(events, is_counted, events.lane[launches], events.begin_ns[launches])
    owner = np.full(len(launch), NOTHING, np.int64)
    owner[launched] = np.where(around == NOTHING, NOTHING, np.searchsorted(counted, around))
    return owner


def _longest(owner: Ints, length: Ints) -> Ints:
    """Of each owner's work, the position of the longest; of several, the first."""
    owned = np.flatnonzero(owner != NOTHING)
    order = owned[np.lexsort((-length[owned], owner[owned]))]
    found: Ints = order[np.flatnonzero(np.diff(owner[order], prepend=NOTHING))]
    return found
