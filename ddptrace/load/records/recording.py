"""How a rank's records came to be read, from the same reading as its tables."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ddptrace.load.records.events import BESIDE, Clock
from ddptrace.load.tables import Group, Recording
from ddptrace.record import Records


def recording_of(records: Records, groups: Iterable[Group], rank: int) -> Recording:
    """Return what was lost, and when the rank worked last. `groups`: those that its records describe."""
    return Recording(
        rank,
        _worked_unix_ns(records),
        tuple(sorted({group.backend for group in groups if group.backend})),
        records.dropped,
        records.dropped_without_room,
        records.dropped_in_bursts,
        records.torn,
        records.damaged,
    )


def _worked_unix_ns(records: Records) -> int:
    clock = Clock.of(records.events, None)
    if clock.tie_ns is None:
        return 0
    near = clock.near(records.events)
    worked = near[~np.isin(near["kind"], BESIDE)]
    ends = np.maximum(worked["begin"], worked["end"])
    return max(0, int(ends.max(initial=-clock.tie_ns)) + clock.tie_ns)
