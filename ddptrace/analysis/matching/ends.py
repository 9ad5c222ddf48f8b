"""What the ends of collectives tell of clocks, before it is known that these are the same ones on all ranks.

Ranks end a collective together, so one line through the differences of their ends takes wrong clocks off. In the wrong
order the ends lie on a line too where the collectives come at even intervals:

even      |    |    |    |    |          shifted by one they fit as well: nothing is proved
uneven    | |      |   |         |       they fit in one order only, whatever the clocks say
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRIFT_MIN: Final = (20, 1e9)
"""So many collectives over so many ns at least tell a clock that runs fast from one that is late."""

DRIFT_MAX_RATIO: Final = 1e-3

FITS_RATIO: Final = 1 / 250
"""How far off the line the ends may lie (median), of the time between two collectives, for their order to be proved: on
one real set of 8 GPUs it is 1/1300; different steps of one rank, which a file that begins later would show, lie 1/90 to
1/30 off in the one real file with three."""

OTHERS_RATIO: Final = 4
"""So much farther they must lie in any other order."""

ENDS: Final = (6, 2000)
"""So few prove no order; so many do as well as all of them."""

SHIFTS_MAX: Final = 500


def clock_lines(ends: Floats) -> Floats:
    """How far each rank's clock is off the ranks' middle at each end. Shape (collectives, ranks), in time order."""
    middle = np.median(ends, axis=1)
    return np.column_stack([_line(middle, off) for off in (ends - middle[:, None]).T])


def _line(at_ns: Floats, off_ns: Floats) -> Floats:
    """Through medians of the halves, so that a few late ends do not bend it."""
    drift = 0.0
    if len(at_ns) >= DRIFT_MIN[0] and np.ptp(at_ns) >= DRIFT_MIN[1]:
        half = len(at_ns) // 2
        rise, run = (float(np.median(one[-half:]) - np.median(one[:half])) for one in (off_ns, at_ns))
        drift = float(np.clip(rise / run, -DRIFT_MAX_RATIO, DRIFT_MAX_RATIO))
    line: Floats = drift * (at_ns - np.median(at_ns))
    return line + np.median(off_ns - line)


def only_fit(ends: Floats, clocks: Floats, gap_ns: float, near_ns: float) -> bool:
    """Whether each rank whose clock is off by more than `near_ns` fits the others in this order and in no other.
    `clocks`: how far each is off; `gap_ns`: between two collectives."""
    first = int(np.argmin(np.abs(clocks - np.median(clocks))))
    apart = np.flatnonzero(np.abs(clocks - clocks[first]) > near_ns)
    few = ends[: ENDS[1]]
    return len(few) >= ENDS[0] and all(_fits_one_way(few[:, first], few[:, rank], gap_ns) for rank in apart)


def _fits_one_way(one: Floats, other: Floats, gap_ns: float) -> bool:
    residual_ns = _residual_ns(one, other)
    if residual_ns > FITS_RATIO * gap_ns:
        return False
    shifts = range(1, min(len(one) // 2, SHIFTS_MAX) + 1)
    others_ns = (_residual_ns(*pair) for k in shifts for pair in ((one[k:], other[:-k]), (one[:-k], other[k:])))
    return min(others_ns) > OTHERS_RATIO * residual_ns


def _residual_ns(one: Floats, other: Floats) -> float:
    off = other - one
    return float(np.median(np.abs(off - _line(one, off))))
