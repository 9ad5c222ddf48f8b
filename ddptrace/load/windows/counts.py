"""How much each piece of device work computed and moved.

thread     aten::addmm, 2·m·n·k FLOPs   ├──────────────────────┤
                                          launch 7    launch 8
stream                                             ├── gemm, 7 ──┤├ splitK, 8 ┤
flops                                              2·m·n·k         0
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.kineto.events import Ints, KinetoEvents
from ddptrace.load.tables import Counts, Operation, Work
from ddptrace.load.windows.nesting import NOTHING, innermost_around

NOT_TOLD: Final = -1


def counts_of(events: KinetoEvents, position: Ints, kind: NDArray[np.uint8], launch: Ints) -> Counts:
    """Count the work at these positions of the events. `kind` and `launch` are as in `KinetoWork`."""
    operators = np.array(list(events.flops), np.int64)
    told = [events.flops[at] for at in operators.tolist()]
    dtypes = {dtype: number for number, dtype in enumerate(dict.fromkeys(one.dtype for one in told))}
    owner = _owners(events, operators, np.where(kind == Work.COMPUTE, launch, NOTHING))
    operation = np.array([*(one.operation for one in told), Operation.NONE], np.uint8)[owner]
    flops = np.array([*(NOT_TOLD if one.flops is None else one.flops for one in told), NOT_TOLD], np.int64)[owner]
    dtype = np.array([*(NOT_TOLD if one.flops is None else dtypes[one.dtype] for one in told), NOT_TOLD])[owner]
    is_other = np.ones(len(position), np.bool_)
    is_other[_longest(owner, events.end_ns[position] - events.begin_ns[position])] = False
    flops[is_other & (flops != NOT_TOLD)] = 0
    nbytes = np.full(len(position), NOT_TOLD)
    nbytes[np.searchsorted(position, list(events.nbytes))] = list(events.nbytes.values())
    return Counts(nbytes, operation, flops, dtype, tuple(dtypes))


def _owners(events: KinetoEvents, operators: Ints, launch: Ints) -> Ints:
    """By work: which of the operators is innermost around its launch, or NOTHING."""
    is_counted = np.zeros(len(events.name), np.bool_)
    is_counted[operators] = True
    launched = np.flatnonzero(launch != NOTHING)
    launches = launch[launched]
    around = innermost_around(events, is_counted, events.lane[launches], events.begin_ns[launches])
    owner = np.full(len(launch), NOTHING, np.int64)
    owner[launched] = np.where(around == NOTHING, NOTHING, np.searchsorted(operators, around))
    return owner


def _longest(owner: Ints, length: Ints) -> Ints:
    """Of each owner's work, the position of the longest; of several, the first."""
    owned = np.flatnonzero(owner != NOTHING)
    order = owned[np.lexsort((-length[owned], owner[owned]))]
    found: Ints = order[np.flatnonzero(np.diff(owner[order], prepend=NOTHING))]
    return found
