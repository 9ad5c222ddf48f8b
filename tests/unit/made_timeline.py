"""A device's work and its host by hand, for tests of what is played again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.timeline.rank_window import Host, host_of
from ddptrace.load.tables import DeviceWork, HostCalls, IdleCause
from tests.unit.made_device import Piece, device_work

Held = tuple[IdleCause, int, int]
"""Cause, begin and end of a call."""


def held(*calls: Held) -> HostCalls:
    columns = [np.array([call[at] for call in calls], np.int64) for at in range(3)]
    return HostCalls(columns[0].astype(np.uint8), columns[1], columns[2])


def host(pieces: Sequence[Piece], *calls: Held, steps: Sequence[int] = ()) -> tuple[DeviceWork, Host]:
    """A launch takes 10 ns. `steps`: when they ended on the host."""
    work = device_work(pieces)
    ends: Ints = np.array(steps, np.int64)
    return work, host_of(work, held(*calls), ends)
