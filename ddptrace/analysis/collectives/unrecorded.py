"""Tells which collectives of a rank were not recorded, as far as its profiler windows and its records show that.

recorded        [all-reduce 4]                      the recording of collectives failed, or cannot see them
kernels         ├─ nccl… 4 ──┤ ├─ nccl… ─┤ ├ nccl ┤
unclaimed                      ├─────────┤ ├──────┤
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.collectives.execution import Communication, executions
from ddptrace.analysis.device.steps import device_spans
from ddptrace.analysis.intervals import Pieces, intersect, subtract, union
from ddptrace.load.tables import DeviceWork, Intervals, RankRun


def unclaimed_kernels(
    rank: RankRun, windows: Pieces, profiled: NDArray[np.bool_], comms: Sequence[Communication]
) -> Intervals:
    """Union of the communication kernels of no recorded call, in the windows of profiled steps, while no recorded
    collective ran."""
    spans = union(*(device_spans(work, unclaimed) for work, unclaimed in _unclaimed(rank)))
    return subtract(intersect(spans, union(windows.spans()[profiled])), executions(comms))


def unrecorded_steps(rank: RankRun, walls: Intervals) -> NDArray[np.bool_]:
    """By step: whether collectives may have been left out of its records. If a window shows that one of its launches
    was, that may be so in all steps."""
    if any((work.launched & unclaimed).any() for work, unclaimed in _unclaimed(rank)):
        return np.ones(len(walls), np.bool_)
    since = rank.unrecorded_from_at_ns
    return np.zeros(len(walls), np.bool_) if since is None else walls[:, 1] > since


def _unclaimed(rank: RankRun) -> Iterator[tuple[DeviceWork, NDArray[np.bool_]]]:
    for window in rank.windows:
        if window.device is not None and window.unclaimed is not None:
            yield window.device, window.unclaimed
