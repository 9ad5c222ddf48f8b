"""What is won for each sample by synchronising less often, what it costs in loss, and which of both weighs more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddptrace.bench.cells import doubt, ratio_interval
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
        return ratio_interval(self.ratio, 2)


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
    found = doubt(way.ratio) or ("so it costs more" if way.ratio.low > 1 else "")
    return f", {found}" if found else ""


def _weighed(first: Way, way: Way, samples: int, ranks: int) -> str:
    """Time to the same loss, which the curve of n = 1 reached somewhere between two of its points."""
    loss, points = way.losses[-1], len(way.losses) - 1
    at = next((at for at, of_first in enumerate(first.losses) if of_first <= loss), None)
    if at is None:
        return f"n = 1 was at no point as low as {loss:.3f}: in these trainings fewer updates cost no loss."
    before, each = max(0, at - 1), samples / ranks  # a rank's samples from point to point
    earliest, latest = (duration(point * each * first.time.median) for point in (before, at))
    mine = duration(points * each * way.time.median)
    return (
        f"n = 1 came down to {loss:.3f} nats between {before * samples:,} and {at * samples:,} samples, {earliest} to "
        f"{latest} at its time of a sample, where n = {way.count} takes {mine}; "
        f"{_verdict(before / points, at / points, way)}. One training of each tells nothing of other seeds, and a "
        "higher learning rate for larger n was not tried."
    )


def _verdict(least: float, most: float, way: Way) -> str:
    """`least`, `most`: the share of `way`'s samples that n = 1 needs for the same loss lies between them; of `way`'s
    time it needs share ÷ ratio. A verdict holds for both and for the whole interval of the ratio."""
    if way.ratio.count == 1:
        return "more rounds would tell which is less"
    if most < way.ratio.low:
        return "synchronising less often loses more than it wins"
    if least > way.ratio.high:
        return "it wins more than it loses"
    return "which is less is not to be told from the curve's points and beyond the noise"
