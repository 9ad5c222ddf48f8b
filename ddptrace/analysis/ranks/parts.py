"""The parts of a step that are the same on all ranks: what lies between two launches of matched collectives.

rank 0   forward, backward . backward . backward ░░ wait ░░ update |     . launch     | end of the step
rank 1   forward, backward .  backward   . backward ░ wait ░ update|
part     0                   1             2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.ranks.crossings import NONE, Crossings
from ddptrace.analysis.ranks.replay import positions
from ddptrace.analysis.tables.trail import LAUNCH, Trail

MOST_PARTS: Final = 64
"""Of a step with more launches several make one part."""


def parts_of(trails: Sequence[Trail], crossings: Crossings, steps: Ints) -> list[Ints]:
    """By trail, the part of its step that each event ends. All are one part where ranks launch unlike many."""
    launches = [
        (trail.kind == LAUNCH) & (crosses != NONE) for trail, crosses in zip(trails, crossings.of_events, strict=True)
    ]
    counts = [_per_step(trail, one, steps) for trail, one in zip(trails, launches, strict=True)]
    if any((count != counts[0]).any() for count in counts):
        return [np.zeros(len(trail.step), np.int64) for trail in trails]
    return [_parts(trail, one, counts[0], steps) for trail, one in zip(trails, launches, strict=True)]


def _per_step(trail: Trail, which: NDArray[np.bool_], steps: Ints) -> Ints:
    count: Ints = np.zeros(len(steps) + 1, np.int64)
    np.add.at(count, positions(trail.step[which], steps), 1)
    return count[:-1]


def _parts(trail: Trail, launches: NDArray[np.bool_], count: Ints, steps: Ints) -> Ints:
    """So many of its step's launches lie before each event; fewer where these are more than there are parts."""
    before: Ints = np.cumsum(launches) - launches
    at = positions(trail.step, steps)
    first = np.full(len(steps) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, at, before)
    several = np.append(-(-(count + 1) // MOST_PARTS), 1)
    return np.where(at == NONE, 0, (before - first[at]) // several[at])
