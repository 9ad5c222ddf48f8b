"""Many short intervals as a few bars: what a picture can show of them without saying what is not so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Measure, total
from ddptrace.load.tables import Intervals

GROWN_MAX_RATIO: Final = 1.25
"""Closing pauses may draw intervals so much longer than they are; above that it would lie."""
SEEN_MIN_RATIO: Final = 1 / 1500
"""Of the drawing's width: what is narrower than this would be drawn wider than it is."""


@dataclass(frozen=True, slots=True)
class Shade:
    """`bars`: begin, end, and the share of it that is covered. `covered`: what counts as covered beside them."""

    bars: list[tuple[int, int, float]]
    covered: Intervals


def shade(spans: Intervals, begin: int, end: int, most: int) -> Shade:
    """At most `most` bars of the union `spans`, which lies in [begin, end): as it is but for the shortest pauses, or
    where it is mostly pauses, bars of one width with the share that each holds of it."""
    closed = simplified(spans, most, (end - begin) * SEEN_MIN_RATIO)
    if total(closed) <= GROWN_MAX_RATIO * total(spans):
        return Shade([(low, high, 1.0) for low, high in closed.tolist()], closed)
    edges = np.linspace(begin, end, most + 1).astype(np.int64)
    covered = Measure(spans).within(edges[:-1], edges[1:])
    ratios = covered / np.maximum(np.diff(edges), 1)
    bars = zip(edges[:-1].tolist(), edges[1:].tolist(), ratios.tolist(), strict=True)
    return Shade([bar for bar in bars if bar[2] > 0], spans)


def simplified(spans: Intervals, most: int, gap_min_ns: float) -> Intervals:
    """A union of at most `most` intervals, for drawing: gaps below `gap_min_ns` and the narrowest ones are closed."""
    gaps = spans[1:, 0] - spans[:-1, 1]
    order = np.argsort(gaps, kind="stable")[max(0, len(gaps) - (most - 1)) :]
    keep = np.sort(order[gaps[order] >= gap_min_ns])
    begins = np.concatenate((spans[:1, 0], spans[keep + 1, 0]))
    return np.column_stack((begins, np.concatenate((spans[keep, 1], spans[-1:, 1]))))
