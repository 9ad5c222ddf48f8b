"""Whether small messages are sent in another way than large ones. Asked are those that had the wire to themselves: of
them alone it is known what they cost.

cost │            ..··
     │       ..··        all messages on one line: small ones cost less than it says
     │  ..··___---  small ones
     └────────────────── bytes
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.steps.jitter import SPREAD_OF_DEVIATION
from ddptrace.analysis.whatif.play import Floats
from ddptrace.analysis.whatif.sends import Sends
from ddptrace.analysis.whatif.wire import Small, Wire

FEWEST: Final = 5
"""Messages of a size that tell what it costs."""
QUICKER_RATIO: Final = 0.8
"""Small ones cost at most so many times what one line says, and are below it by more than chance."""
SURE: Final = 3.0
"""Standard errors."""
MOST_BOUNDS: Final = 5
LEAST_RANGE: Final = 2.0
"""From the smallest to the largest of the small: less tells no line."""


def smalls_of(sends: Sequence[Sends], wire: Wire) -> tuple[Small, ...]:
    """One for each bound that may be it. `wire`: one line for all sizes; none where no small messages lie below it, or
    of too few sizes, or where there are no others."""
    sizes, typical, off = _alone(sends)
    line = np.array([wire.alone_ns(size) for size in sizes])
    quicker = (typical <= QUICKER_RATIO * line) & (typical + SURE * off <= line)
    count = int(np.argmin([*quicker, False]))  # from the smallest on
    if count < 2 or sizes[count - 1] < LEAST_RANGE * sizes[0]:
        return ()
    cost = _line(sizes[:count], typical[:count])
    return tuple(Small(bound, *cost) for bound in _bounds(sends, sizes[count - 1], sizes[count:]))


def _bounds(sends: Sequence[Sends], small: int, known: Ints) -> list[float]:
    """Between the largest that is small and the first of which it is known that it is not."""
    larger = np.unique(np.concatenate([one.nbytes[one.nbytes > small] for one in sends]))
    open_to = larger[larger <= (known[0] if len(known) else np.inf)][:MOST_BOUNDS]
    return [float(np.sqrt(float(low) * high)) for low, high in itertools.pairwise([small, *open_to])]


def _alone(sends: Sequence[Sends]) -> tuple[Ints, Floats, Floats]:
    """Sizes of messages that were alone often enough, what one typically took, and how sure that is; ns."""
    nbytes = np.concatenate([one.nbytes[one.were_alone] for one in sends])
    took = np.concatenate([(one.done_ns - one.arrived_ns)[one.were_alone] for one in sends])
    sizes, counts = np.unique(nbytes, return_counts=True)
    told = (counts >= FEWEST) & (sizes > 0)
    sizes, counts = sizes[told], counts[told]
    typical = np.array([np.median(took[nbytes == size]) for size in sizes])
    away = [np.median(np.abs(took[nbytes == size] - one)) for size, one in zip(sizes, typical, strict=True)]
    return sizes, typical, SPREAD_OF_DEVIATION * np.array(away) / np.sqrt(counts)


def _line(sizes: Ints, typical: Floats) -> tuple[float, float]:
    """Latency and ns per byte, neither below zero; what is missed counts to what it is missed of."""
    weights = 1 / np.maximum(typical, 1.0)
    per_byte, latency = np.polyfit(sizes, typical, 1, w=weights)
    if per_byte < 0:
        return float(np.average(typical, weights=weights)), 0.0
    if latency < 0:
        return 0.0, float(np.average(typical / sizes))
    return float(latency), float(per_byte)
