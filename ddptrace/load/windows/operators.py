"""Which operators computed on a CPU, by a window's Kineto file: each once, as a whole.

aten::linear          ├──────────────────────────────┤     all but a little of it is inside another: left out
  aten::addmm           ├──────────────────────────┤       more than half of it is its own: it is the operator
    aten::expand          ├─┤                              inside one that counts
  aten::relu                                         ├─┤
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddptrace.load.kineto.events import Ints, KinetoEvents
from ddptrace.load.tables import OperatorWork
from ddptrace.load.windows.cpu_compute import ThreadRanges
from ddptrace.load.windows.nesting import NOTHING


def operator_work(events: KinetoEvents, threads: Sequence[ThreadRanges]) -> OperatorWork:
    """Of the training threads together. `threads`: as `cpu_compute.thread_ranges` gives them for these events."""
    chosen = np.concatenate([np.empty(0, np.int64), *(_whole_operators(one) for one in threads)])
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
