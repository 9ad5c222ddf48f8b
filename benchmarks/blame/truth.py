"""What a plant really costs: the same run's steps with it and without it, in turns.

plain  plain  plain  plain  plain | late  late  late  late  late | plain ...      the first two of each are left out
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.blame.plants import blocks, is_on, is_settled
from ddptrace.bench.statistics import median_interval


@dataclass(frozen=True, slots=True)
class Truth:
    """`cost_ns`: median step with the plant less median step without. `low_ns` and `high_ns` hold it with 95 %, by
    what each block differs from those around it."""

    cost_ns: float
    low_ns: float
    high_ns: float
    plain_ns: float


def truth_of(ranks: Sequence[Sequence[int]]) -> Truth:
    """From ns of each step, by rank. The first block, in which programs warm up, is left out."""
    steps = [statistics.fmean(times) for times in zip(*ranks, strict=True)]
    settled = [(block[0], [steps[step] for step in block if is_settled(step)]) for block in blocks(len(steps))][1:]
    on = [time for begin, times in settled if is_on(begin) for time in times]
    plain = [time for begin, times in settled if not is_on(begin) for time in times]
    low, high = median_interval(_beyond_neighbours([(is_on(begin), statistics.median(t)) for begin, t in settled]))
    return Truth(statistics.median(on) - statistics.median(plain), low, high, statistics.median(plain))


def _beyond_neighbours(medians: Sequence[tuple[bool, float]]) -> list[float]:
    """Of each block with the plant, its median less the mean of those of the blocks beside it."""
    beyond = []
    for at, (with_plant, value) in enumerate(medians):
        beside = [medians[near][1] for near in (at - 1, at + 1) if 0 <= near < len(medians)]
        if with_plant and beside:
            beyond.append(value - statistics.fmean(beside))
    return beyond


def share_on(steps: Sequence[int]) -> float:
    """How many of these steps have the plant, 0..1."""
    return statistics.fmean(is_on(step) for step in steps)


def as_json(truth: Truth) -> dict[str, Any]:
    return {name: getattr(truth, name) for name in Truth.__slots__}
