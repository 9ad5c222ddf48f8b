"""What held the threads that launch a device's work, beside their own work: calls of the runtime in which the host may
wait for its device, and the fetching of batches.

thread   ├ enumerate(DataLoader) ┤ ├ cudaLaunchKernel ┤ ├ cudaStreamSynchronize ──────┤ ├ cudaMalloc ┤
cause    DATA                                           SYNCHRONIZE                     ALLOCATE
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ddptrace.load.kineto.events import Category, KinetoEvents
from ddptrace.load.tables import HostCalls, IdleCause
from ddptrace.load.windows.device import KinetoWork, Mask, of_category
from ddptrace.load.windows.idle import AROUND, RUNTIME
from ddptrace.load.windows.nesting import NOTHING

FETCH: Final = next(pattern for pattern, cause in AROUND if cause is IdleCause.DATA)
HOLDING: Final = (IdleCause.SYNCHRONIZE, IdleCause.COPY, IdleCause.ALLOCATE)
NEVER_WAITS: Final = re.compile(r"Query")
GRAPH: Final = re.compile(r"GraphLaunch")


def host_calls(events: KinetoEvents, works: KinetoWork) -> HostCalls | None:
    """List such calls of one file, in order of begin; None where no device worked. Launches are left out: they stand
    beside the work that they launched."""
    if not len(works.position):
        return None
    launches = np.unique(works.launch[works.launch != NOTHING])
    mine = np.isin(events.lane, np.unique(events.lane[launches]))
    mine[launches] = False
    cause = np.full(len(events.name), IdleCause.NOTHING, np.uint8)
    on_host = of_category(events, Category.OP, Category.ANNOTATION, Category.FRAME)
    cause[on_host & _named(events, FETCH)] = IdleCause.DATA
    for pattern, kind in reversed([rule for rule in RUNTIME if rule[1] in HOLDING]):
        cause[of_category(events, Category.RUNTIME) & _named(events, pattern)] = kind
    chosen = np.flatnonzero(mine & (cause != IdleCause.NOTHING) & ~_named(events, NEVER_WAITS))
    graphs = int((of_category(events, Category.RUNTIME) & _named(events, GRAPH)).sum())
    return HostCalls(cause[chosen], events.begin_ns[chosen], events.end_ns[chosen], graphs)


def _named(events: KinetoEvents, pattern: re.Pattern[str]) -> Mask:
    matches: Mask = np.array([pattern.search(name) is not None for name in events.names], np.bool_)[events.name]
    return matches
