"""When a call was over, as far as the host's own doings tell."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from ddptrace.load.tables import Call, PhaseMark
from ddptrace.schema import Phase

GRADIENT_DTYPES: Final = ("float", "bfloat", "complex")


def with_proven_ends(calls: Iterable[Call], phases: Iterable[PhaseMark]) -> tuple[Call, ...]:
    """The calls with their completion stamps cut to what is known better. A stamp needs the interpreter's lock, so it
    is late by as long as the training thread holds that."""
    calls = tuple(calls)
    over_by = known_over_by(calls, phases)
    return tuple(_cut(call, over_by[call.seq]) if call.seq in over_by else call for call in calls)


def _cut(call: Call, over_by: int) -> Call:
    late = call.done_at_ns is not None and call.done_at_ns > over_by
    return dataclasses.replace(call, done_at_ns=over_by) if late else call


def known_over_by(calls: Iterable[Call], phases: Iterable[PhaseMark]) -> dict[int, int]:
    """By seq, an instant at which the host is known to have gone on, so that the call was over: the end of its wait, or
    of the backward whose gradients it reduced. It bounds completion stamps too, which come late by as long as the
    training thread holds the interpreter. Nothing of what runs on a device, which the host does not wait for."""
    backwards = sorted((phase for phase in phases if phase.phase is Phase.BACKWARD), key=lambda one: one.begin_at_ns)
    begins = [phase.begin_at_ns for phase in backwards]
    found: dict[int, int] = {}
    for call in calls:
        if call.on_device:
            continue
        ends = [end for _, end in call.waits]
        # The reducer's own integer map of unused parameters may still run when backward ends.
        if call.is_native and call.reducer is not None and call.dtype.startswith(GRADIENT_DTYPES):
            nth = bisect_right(begins, call.launch_at_ns) - 1
            if nth >= 0 and call.launch_at_ns < backwards[nth].end_at_ns:
                ends.append(backwards[nth].end_at_ns)
        if ends:
            found[call.seq] = min(ends)
    return found
