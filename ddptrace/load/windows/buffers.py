"""When DDP brought rank 0's buffers to its rank, at the begin of a forward.

thread   DistributedDataParallel.forward  ├─────────────────────────────────────────────────┤
         flatten, broadcast, unflatten, copy_   ├────┤├──┤├──────┤├┤├┤├┤├┤
         the model                                                          ├── conv2d ──┤
buffers                                         |------------------------|
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

import numpy as np

from ddptrace.load.kineto.events import Category, Ints, KinetoEvents
from ddptrace.load.windows.device import Mask, named, of_category
from ddptrace.load.windows.nesting import NOTHING, innermost_around, outermost
from ddptrace.schema import RANGE_PREFIX

FORWARD: Final = "DistributedDataParallel.forward"
PACKS: Final = "aten::flatten_dense_tensors"
BROADCASTS: Final = ("c10d::broadcast_", "nccl:broadcast", "gloo:broadcast")
OWN: Final = (PACKS, "aten::unflatten_dense_tensors", "aten::copy_", "record_param_comms", *BROADCASTS)
"""What the broadcast of buffers consists of, at the top level of a forward."""


def buffer_broadcasts(events: KinetoEvents) -> tuple[tuple[int, int], ...]:
    """Return begin of the first and end of the last operator of each broadcast of buffers, in ns.

    The operators must follow each other: a model that broadcasts something itself does other things around it."""
    forwards = _named(events, FORWARD) & of_category(events, Category.OP, Category.ANNOTATION)
    inside = _in_forwards(events, forwards)
    if not inside:
        return ()
    kinds = [_named(events, *names) for names in (OWN, (PACKS,), BROADCASTS)]
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
    """The first run of operators of `OWN` that both packs and broadcasts."""
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
