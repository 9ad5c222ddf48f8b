"""The late ranks that a run's analysis names, so that a forecast tells the same of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddptrace.analysis.result import Result
from ddptrace.analysis.savings import LATE
from ddptrace.findings import SLOW_LINK


@dataclass(frozen=True, slots=True)
class Late:
    """What a late rank costs, as shares of the typical step. `low_ratio`, `high_ratio`: the 95 % interval; None where
    the steps are too few for one."""

    rank: int
    cost_ratio: float
    low_ratio: float | None = None
    high_ratio: float | None = None
    steps: int = 0  # that this rests on


def late_ranks(result: Result) -> tuple[Late, ...]:
    """List the ranks that could be as fast as the others, the dearest first."""
    return tuple(_late_ranks(result))


def _late_ranks(result: Result) -> Iterator[Late]:
    suspects = {f"rank {suspect.rank}": suspect for suspect in result.suspects}
    for saving in result.savings:
        if saving.cause != LATE or saving.finding == SLOW_LINK.code:
            continue
        one = suspects.get(saving.where)
        if one is None:
            yield Late(int(saving.where.removeprefix("rank ")), saving.cost_ratio)
        else:
            low, high = (end / saving.whole_ns for end in (one.low_ns, one.high_ns))
            yield Late(one.rank, saving.cost_ratio, low, high, one.steps)
