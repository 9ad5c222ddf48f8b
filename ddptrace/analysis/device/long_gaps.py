"""The longest idle gaps of each window's device, for the picture of a rank: what held the host in them."""

from __future__ import annotations

from typing import Final

import numpy as np

from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.device import LongGaps
from ddptrace.load.tables import DeviceIdle

MOST_GAPS: Final = 50  # of one window
NOTHING: Final = -1
SEEN_RATIO: Final = 0.005
"""Of its gap: a shorter piece could not be seen beside the others."""


def long_gaps(view: RankView) -> tuple[LongGaps, ...]:
    """Take them window by window."""
    return tuple(_of_window(window.idle) for window in view.rank.windows if window.idle is not None)


def _of_window(idle: DeviceIdle) -> LongGaps:
    length = idle.gaps[:, 1] - idle.gaps[:, 0]
    longest = np.sort(np.argsort(-length, kind="stable")[:MOST_GAPS])
    nth = np.full(len(length) + 1, -1, np.int64)
    nth[longest] = np.arange(len(longest))
    lasted = idle.end_at_ns - idle.begin_at_ns
    seen = np.flatnonzero((nth[idle.gap] >= 0) & (lasted >= SEEN_RATIO * length[idle.gap]))
    used, name = np.unique(np.append(idle.name[seen], NOTHING), return_inverse=True)  # so that NOTHING comes first
    return LongGaps(
        idle.gaps[longest],
        nth[idle.gap[seen]],
        idle.begin_at_ns[seen],
        idle.end_at_ns[seen],
        idle.cause[seen],
        name.reshape(-1)[:-1] - 1,
        tuple(idle.names[index] for index in used[1:].tolist()),
        idle.around,
    )
