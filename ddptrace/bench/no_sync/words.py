"""What is won for each sample by synchronising less often, what it costs in loss, and which of both weighs more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddptrace.bench.statistics import Spread
from ddptrace.render.words import counted, duration, millis


@dataclass(frozen=True, slots=True)
class Way:
    """`count` micro-batches for each update. `time`: of a sample, in ns. `ratio`: to count 1, within a round. `losses`:
    before training, and after equal numbers of samples, in nats. `truth`: of a traced update."""

    count: int
    time: Spread
    ratio: Spread
    losses: tuple[float, ...]
    truth: Mapping[str, Any]

    @property
    def interval(self) -> str:
        return f"{self.ratio.low:.2f} .. {self.ratio.high:.2f}"


def words(ways: Sequence[Way], samples: int, ranks: int) -> list[str]:
    """`ways` ascending, the first of them with count 1. `samples`: of all ranks, between two points of the curves."""
    first, others = ways[0], ways[1:]
    end = (len(first.losses) - 1) * samples
    told = [f"With {counted(ranks, 'rank')} a sample costs {millis(first.time.median)} ms where every micro-batch is "
            f"synchronised{_won(others)}."]  # fmt: skip
    at_others = "".join(f", {way.losses[-1]:.3f} at {way.count}" for way in others)
    told.append(
        f"After the same {end:,} samples, with the same learning rate, the held-out loss is {first.losses[-1]:.3f} "
        f"nats at n = 1{at_others} (from {first.losses[0]:.3f}; one seed, so small differences say nothing)."
    )
    return told + [_weighed(first, way, samples, ranks) for way in others[-1:]]


def _won(others: Sequence[Way]) -> str:
    parts = [f"{way.ratio.median:.2f} times that at n = {way.count} ({way.interval}{_doubt(way)})" for way in others]
    return f"; {', '.join(parts)}" if parts else ""


def _doubt(way: Way) -> str:
    if way.ratio.low == way.ratio.high:  # of a single round
        return ", one round, which tells nothing of noise"
    if way.ratio.low > 1:
        return ", so it costs more"
    return "" if way.ratio.high < 1 else ", not beyond the noise"


def _weighed(first: Way, way: Way, samples: int, ranks: int) -> str:
    """Time to the same loss."""
    loss, points = way.losses[-1], len(way.losses) - 1
    at = next((at for at, of_first in enumerate(first.losses) if of_first <= loss), None)
    if at is None:
        return f"n = 1 never got as low as {loss:.3f}: here fewer updates cost no loss."
    each = samples / ranks  # a rank's samples from point to point
    mine, firsts = points * each * way.time.median, at * each * first.time.median
    return (
        f"n = 1 was at {loss:.3f} nats or lower after {at * samples:,} samples: {duration(firsts)} at its time of a "
        f"sample, where n = {way.count} takes {duration(mine)}; {_verdict(at / points, way)}. A "
        "higher learning rate for larger n was not tried."
    )


def _verdict(share: float, way: Way) -> str:
    """`share`: of `way`'s samples that n = 1 needs for the same loss; of `way`'s time it needs share ÷ ratio."""
    if way.ratio.low == way.ratio.high:
        return "more rounds would tell which is less"
    if share < way.ratio.low:
        return "synchronising less often loses more than it wins"
    return "it wins more than it loses" if share > way.ratio.high else "which is less is not beyond the noise"
