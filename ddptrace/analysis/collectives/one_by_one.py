"""Gradients that a program all-reduces each by itself: each call costs the latency of one, and the host its launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary, measured_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.load.tables import Identity
from ddptrace.schema import Origin

MANY: Final = 16
"""Calls in a step; DDP sends most models in fewer buckets."""
EXPOSED_MIN_RATIO: Final = 0.02
"""Of the step, that must wait for them."""
MOST_MIN_RATIO: Final = 0.5
"""Of all exposed communication, that must be theirs: else another kind is worth more."""
FEW_NBYTES: Final = 8 << 20
"""In the mean; larger calls are in their bytes, and gain nothing."""


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Such all-reduces: means over the typical steps, and over the calls."""

    calls: float  # in a step
    exposed_ns: float  # of a step
    mean_ns: float  # of a call
    mean_nbytes: float | None  # of a call, where any is known


def gradients_one_by_one(summary: Summary, result: Result) -> OneByOne | None:
    """Find them, if they are most of what the typical step waits for."""
    steps, _ = measured_steps(result.steps)
    wanted = {(row.rank, row.step) for row in steps}
    rows = [row for row in result.collectives if (row.rank, row.step) in wanted and _is_alone(row)]
    calls = len({(row.rank, row.seq) for row in rows})
    if not steps or calls < MANY * len(steps):
        return None
    known = [row.nbytes for row in rows if row.nbytes is not None]
    found = OneByOne(
        calls / len(steps),
        sum(row.exposed_charged_ns or 0 for row in rows) / len(steps),
        sum(row.comm_ns or 0 for row in rows) / calls,
        sum(known) / len(known) if known else None,
    )
    return found if _is_worth_it(found, summary) else None


def _is_alone(row: CollectiveRow) -> bool:
    """Gradients that no reducer sends. What ddptrace recorded as gradients is always a reducer's."""
    is_own = row.origin == Origin.GRADIENTS.word and row.identity is not Identity.RECORDED
    return is_own and row.bucket is None and row.op == "all_reduce"


def _is_worth_it(found: OneByOne, summary: Summary) -> bool:
    exposed = summary.part("exposed_comm")
    all_ns = exposed.ns if exposed is not None else 0
    least_ns = max(EXPOSED_MIN_RATIO * (summary.window_ns or 0), MOST_MIN_RATIO * all_ns)
    return 0 < least_ns <= found.exposed_ns and (found.mean_nbytes or 0) <= FEW_NBYTES
