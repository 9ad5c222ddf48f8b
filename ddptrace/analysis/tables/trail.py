"""A rank's trail: its launches, waits and step ends, from which the ranks are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
LAUNCH: Final = 0
WAIT: Final = 1
STEP_END: Final = 2
LOCAL_PHASES: Final = ("data", "forward", "backward", "optimizer", "other")
"""Columns of `Trail.local_ns`."""


@dataclass(frozen=True, slots=True)
class Trail:
    """One rank's life between its meetings with others, in time order. Columns of shape (n,), `local_ns` (n, 5).

    An event is a launch of a collective, the end of a wait for one, or the end of a step. `local_ns` is what the rank
    itself did since the event before, waiting left out, by phase. The first event is the begin of the first step, as a
    wait for nothing; others of that kind are stretches between steps of which nothing was recorded."""

    rank: int
    kind: Ints  # LAUNCH, WAIT or STEP_END
    at_ns: Ints  # of a wait, its end
    seq: Ints  # of the collective; -1 at the end of a step, and of a wait for nothing
    step: Ints  # that it lies in; -1 outside
    local_ns: Ints
    on_device: bool = False  # it is the device's time: a launch is the begin of an execution
