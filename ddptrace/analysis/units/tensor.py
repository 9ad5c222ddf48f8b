"""What of the exposed communication of tensor parallelism is exposed by nature, and what by the program's order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.units import UnitRow
from ddptrace.load.tables import UnitKind

AT_ONCE_NS: Final = 100_000
"""Computing less than this between launch and need is the way from one operator to the next."""
AT_ONCE_RATIO: Final = 0.1
"""The same, of the communication's own time."""


@dataclass(frozen=True, slots=True)
class TensorCost:
    """Exposed communication of tensor-parallel modules: means over the typical steps, in ns."""

    exposed_ns: int
    by_nature_ns: int  # the result was needed at once
    by_order_ns: int  # the rank computed between launch and need, for less time than the communication took
    worst: tuple[str, str | None]  # module and phase that expose most


def tensor_cost(result: Result) -> TensorCost | None:
    """None without tensor parallelism, or where nothing tells when a result was needed."""
    steps, _ = measured_steps(result.steps)
    wanted = {(row.rank, row.step) for row in steps}
    tensor = UnitKind.TENSOR.value
    rows = [row for row in result.units if row.kind == tensor and (row.rank, row.step) in wanted]
    rows = [row for row in rows if row.exposed_charged_ns]
    if not rows or not any(row.slack_ns is not None for row in rows):
        return None
    costs: Counter[tuple[str, str | None]] = Counter()
    for row in rows:
        costs[row.name, row.phase] += row.exposed_charged_ns or 0
    regions: defaultdict[tuple[int, str, str | None, str], list[UnitRow]] = defaultdict(list)
    for row in rows:
        if row.slack_ns is not None:
            regions[row.rank, row.name, row.phase, row.role].append(row)
    nature = sum(_sum(mine) for mine in regions.values() if is_needed_at_once(mine))
    order = sum(map(_sum, regions.values())) - nature
    exposed, nature, order = (round(ns / len(steps)) for ns in (_sum(rows), nature, order))
    return TensorCost(exposed, nature, order, max(costs, key=costs.__getitem__))


def is_needed_at_once(rows: Sequence[UnitRow]) -> bool:
    """Whether a rank mostly computes next to nothing between launch and need. `rows`: of one region, with their
    slack."""
    slack, took = (median_low([getattr(row, name) or 0 for row in rows]) for name in ("slack_ns", "comm_ns"))
    return slack <= max(AT_ONCE_NS, AT_ONCE_RATIO * took)


def _sum(rows: Iterable[UnitRow]) -> int:
    return sum(row.exposed_charged_ns or 0 for row in rows)
