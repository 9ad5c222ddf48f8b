"""What analyzing a number of ranks costs, and how that grows with the data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

GROWTH_MOST: Final = 1.15
"""Of a cost, over that of the records, for each time that these double."""

FEWER: Final = 4
"""Growth is judged between the most ranks and the least that are no fewer than a fourth of them."""

Part = Callable[["Point"], float | None]


@dataclass(frozen=True, slots=True)
class Point:
    """So many ranks. `nbytes`: of the records, and of what was written, by file. `cpu_s`, `wall_s`, `peak_nbytes`: one
    per round; a peak is None where the system does not tell."""

    ranks: int
    nbytes: Mapping[str, int]
    cpu_s: tuple[float, ...]
    wall_s: tuple[float, ...]
    peak_nbytes: tuple[int | None, ...]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Point:
        lists = {name: tuple(told[name]) for name in ("cpu_s", "wall_s", "peak_nbytes")}
        return cls(told["ranks"], told["nbytes"], **lists)


RECORDS: Final = "records"
PARTS: Final[dict[str, Part]] = {
    "processor time": lambda point: statistics.median(point.cpu_s),
    "peak memory": lambda point: median_peak(point),
    "trace": lambda point: point.nbytes["trace"],
    "report": lambda point: point.nbytes["report"],
    "tables": lambda point: point.nbytes["tables"],
}
"""What may grow no faster than the records, by the words for it."""


def median_peak(point: Point) -> float | None:
    """In bytes."""
    known = [peak for peak in point.peak_nbytes if peak is not None]
    return statistics.median(known) if known else None


def growth(part: Part, alone: Point, few: Point, many: Point) -> float | None:
    """How many times faster than the records a cost grows, each time that these double. `alone`: the run that was
    replicated; what it costs is taken off both, since most of that is the start of Python, or plotly in each report.
    None where it was not measured, or few ranks cost no more than that run."""
    costs = [part(point) for point in (alone, few, many)]
    least, before, after = (0.0 if cost is None else cost for cost in costs)
    if None in costs or before <= least:
        return None
    records = (many.nbytes[RECORDS] - alone.nbytes[RECORDS]) / (few.nbytes[RECORDS] - alone.nbytes[RECORDS])
    beyond = max(after - least, 0.0) / (before - least) / records
    return math.pow(beyond, 1 / math.log2(records))


def judged(points: Sequence[Point]) -> tuple[Point, Point] | None:
    """Few and many ranks between which growth is judged; None where one number alone was measured."""
    few = next((point for point in points if point.ranks * FEWER >= points[-1].ranks), points[-1])
    return None if few is points[-1] else (few, points[-1])
