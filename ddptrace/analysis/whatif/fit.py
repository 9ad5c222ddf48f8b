"""What the recorded collectives say of the wire: latency and bytes per second, so that buckets played over it end when
they did."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.steps.variation import SPREAD_OF_DEVIATION
from ddptrace.analysis.whatif.observed import Sends
from ddptrace.analysis.whatif.play import Floats, play
from ddptrace.analysis.whatif.wire import Small, Wire

LATENCIES_NS: Final = (0.0, 3e4, 1e5, 2e5, 4e5, 8e5, 1.6e6, 3.2e6, 6.4e6, 1.3e7)
AS_GOOD_RATIO: Final = 1.2
AS_GOOD: Final = 0.001
"""A fit is as good as the best whose error is at most so many times as large, or by so much of the time sent larger."""
LIKELY_NS: Final = 2e6
"""More latency is believed only where the smallest message is mostly that: large ones of few sizes tell nothing of
it."""
WORTH_RATIO: Final = 0.8
"""Two regimes are believed where they miss the ends by at most so many times as much as one."""
MOST_STEPS: Final = 12
MOST_SENDS: Final = 400
GOLDEN: Final = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class WireFit:
    """`wire`: in the middle of those that fit. `others`: the ones with least and most latency, each with its own rate.
    `error_ratio` of the time that was sent: how far the played ends lie from the recorded ones, mean."""

    wire: Wire
    others: tuple[Wire, ...]
    error_ratio: float
    sends: int
    least_nbytes: int
    most_nbytes: int


def fit_wire(sends: Sequence[Sends], workers: int) -> WireFit:
    """Of several backwards, of at least one bucket each."""
    chosen = _chosen(sends)
    alike = _fitted(chosen, workers, None)
    apart = [_fitted(chosen, workers, small) for small in smalls_of(sends, alike.wire)]
    best = min(apart, key=lambda one: one.error_ratio, default=alike)
    return best if best.error_ratio <= WORTH_RATIO * alike.error_ratio else alike


def _fitted(chosen: Sequence[Sends], workers: int, small: Small | None) -> WireFit:
    sizes = np.concatenate([sends.nbytes for sends in chosen])
    found = [_at_latency(chosen, latency, workers, small) for latency in LATENCIES_NS]
    took = np.concatenate([sends.done_ns - sends.arrived_ns for sends in chosen])
    large = sizes > (0 if small is None else small.most_nbytes)
    told = [one for one in found if _is_told(one[1], int(sizes[large].min()), float(took[large].min()))]
    best = min(error for error, _ in told)
    as_good = [wire for error, wire in told if error <= max(AS_GOOD_RATIO * best, best + AS_GOOD)]
    ends = as_good[0], as_good[-1]
    return WireFit(as_good[len(as_good) // 2], ends, best, len(sizes), int(sizes.min()), int(sizes.max()))


def _is_told(wire: Wire, least_nbytes: int, fastest_ns: float) -> bool:
    """`least_nbytes`, `fastest_ns`: of any large message, which had the latency too."""
    return wire.latency_ns <= LIKELY_NS or least_nbytes * wire.ns_per_byte < wire.latency_ns <= fastest_ns


def _chosen(sends: Sequence[Sends]) -> list[Sends]:
    """Evenly over the run, and of every size that there is: the first step's buckets are others."""
    ends = {one.nbytes.tobytes(): one for one in reversed(sends)}
    most = max(min(MOST_STEPS, MOST_SENDS // max(len(one.nbytes) for one in sends)), 1)
    return [*ends.values(), *sends[:: -(-len(sends) // most)]]


def _at_latency(sends: Sequence[Sends], latency_ns: float, workers: int, small: Small | None) -> tuple[float, Wire]:
    """The best rate for this latency, and its error."""
    nbytes = sum(int(one.nbytes.sum()) for one in sends)
    guess = sum(_length(one.busy) for one in sends) / nbytes
    wires: dict[float, Wire] = {}

    def error(ratio: float) -> float:
        wires[ratio] = Wire(latency_ns, guess * ratio, workers, small=small)
        return _error(sends, wires[ratio])

    ratio = _least(error, 0.2, 1.2)
    return error(ratio), wires[ratio]


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one valley is least, within half a per cent of the range, by golden section."""
    inner = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    values = [function(at) for at in inner]
    while high - low > 0.005:
        if values[0] <= values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - GOLDEN * (high - low)
            values[0] = function(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + GOLDEN * (high - low)
            values[1] = function(inner[1])
    return (low + high) / 2


def _error(sends: Sequence[Sends], wire: Wire) -> float:
    """Distance of the played ends from the recorded ones, to the time that anything was sent. The end of all, which the
    step waits for, counts as much as those of the buckets together; a small bucket may be over before a larger one that
    was launched earlier."""
    off = took = 0.0
    for one in sends:
        done = play(one.arrived_ns, one.nbytes.tolist(), wire).done_ns
        off += float(np.abs(done - one.done_ns).mean() + abs(done.max() - one.done_ns.max())) / 2
        took += _length(one.busy)
    return off / took if took else 0.0


def _length(spans: Floats) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())


# Small messages -------------------------------------------------------------------------------------------------------


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
    sizes, typical, off = _typical_alone(sends)
    line = np.array([wire.alone_ns(size) for size in sizes])
    quicker = (typical <= QUICKER_RATIO * line) & (typical + SURE * off <= line)
    count = int(np.argmin([*quicker, False]))  # from the smallest on
    if count < 2 or sizes[count - 1] < LEAST_RANGE * sizes[0]:
        return ()
    cost = _line_through(sizes[:count], typical[:count])
    return tuple(Small(bound, *cost) for bound in _possible_bounds(sends, sizes[count - 1], sizes[count:]))


def _possible_bounds(sends: Sequence[Sends], small: int, known: Ints) -> list[float]:
    """Between the largest that is small and the first of which it is known that it is not."""
    larger = np.unique(np.concatenate([one.nbytes[one.nbytes > small] for one in sends]))
    open_to = larger[larger <= (known[0] if len(known) else np.inf)][:MOST_BOUNDS]
    return [float(np.sqrt(float(low) * high)) for low, high in itertools.pairwise([small, *open_to])]


def _typical_alone(sends: Sequence[Sends]) -> tuple[Ints, Floats, Floats]:
    """Sizes of messages that were alone often enough, what one typically took, and how sure that is; ns."""
    nbytes = np.concatenate([one.nbytes[one.were_alone] for one in sends])
    took = np.concatenate([(one.done_ns - one.arrived_ns)[one.were_alone] for one in sends])
    sizes, counts = np.unique(nbytes, return_counts=True)
    told = (counts >= FEWEST) & (sizes > 0)
    sizes, counts = sizes[told], counts[told]
    typical = np.array([np.median(took[nbytes == size]) for size in sizes])
    away = [np.median(np.abs(took[nbytes == size] - one)) for size, one in zip(sizes, typical, strict=True)]
    return sizes, typical, SPREAD_OF_DEVIATION * np.array(away) / np.sqrt(counts)


def _line_through(sizes: Ints, typical: Floats) -> tuple[float, float]:
    """Latency and ns per byte, neither below zero; what is missed counts to what it is missed of."""
    weights = 1 / np.maximum(typical, 1.0)
    per_byte, latency = np.polyfit(sizes, typical, 1, w=weights)
    if per_byte < 0:
        return float(np.average(typical, weights=weights)), 0.0
    if latency < 0:
        return 0.0, float(np.average(typical / sizes))
    return float(latency), float(per_byte)
