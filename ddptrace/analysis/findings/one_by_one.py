"""A program that all-reduces each gradient by itself: each call costs the latency of one, and the host its launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary, typical_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.findings import GRADIENTS_ONE_BY_ONE, Finding
from ddptrace.load.tables import Identity
from ddptrace.schema import Origin
from ddptrace.units import duration, percent, size

MANY: Final = 16
"""Calls in a step; DDP sends most models in fewer buckets."""
EXPOSED_MIN_RATIO: Final = 0.02
"""Of the step, that must wait for them."""
MOST_MIN_RATIO: Final = 0.5
"""Of all exposed communication, that must be theirs: else another kind is worth more."""
FEW_NBYTES: Final = 8 << 20
"""In the mean; larger calls are in their bytes, and gain nothing."""


def one_by_one_findings(summary: Summary, result: Result) -> Iterator[Finding]:
    """One for the run, if the typical step waits for many all-reduces of single gradients."""
    steps, _ = typical_steps(result.steps)
    wanted = {(row.rank, row.step) for row in steps}
    rows = [row for row in result.collectives if (row.rank, row.step) in wanted and _is_alone(row)]
    calls = len({(row.rank, row.seq) for row in rows})
    if not steps or not summary.window_ns or calls < MANY * len(steps):
        return
    exposed = sum(row.exposed_charged_ns or 0 for row in rows) / len(steps)
    known = [row.nbytes for row in rows if row.nbytes is not None]
    mean_nbytes = sum(known) / len(known) if known else None
    all_exposed = next((part.ns for part in summary.parts if part.name == "exposed_comm"), 0)
    least = max(EXPOSED_MIN_RATIO * summary.window_ns, MOST_MIN_RATIO * all_exposed)
    if exposed < least or (mean_nbytes or 0) > FEW_NBYTES:
        return
    mean = sum(row.comm_ns or 0 for row in rows) / calls
    of = f", {size(round(mean_nbytes))} in the mean" if mean_nbytes is not None else ""
    yield GRADIENTS_ONE_BY_ONE(
        "run",
        f"The program all-reduces each gradient by itself: {calls / len(steps):.0f} calls in a step{of}, of"
        f" {duration(mean)} each. {duration(exposed)} of a step wait for them, {percent(exposed / summary.window_ns)},"
        " and the host launches each one. Put many gradients into one call: DistributedDataParallel sends buckets of"
        " 25 MB while backward computes; without it, flatten gradients into a few tensors before the all-reduce.",
    )


def _is_alone(row: CollectiveRow) -> bool:
    """Gradients that no reducer sends. What ddptrace recorded as gradients is always a reducer's."""
    is_own = row.origin == Origin.GRADIENTS.word and row.identity is not Identity.RECORDED
    return is_own and row.bucket is None and row.op == "all_reduce"
