"""What the ranks of a traced run sent in a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ddptrace.analysis.collectives.bandwidth import FACTORS
from ddptrace.analysis.result import Result


@dataclass(frozen=True, slots=True)
class Sent:
    """Of one rank in one step, means over the profiled steps. `nbytes`: through its link, as a ring sends them: for an
    all-reduce twice the tensor's bytes, less the part that is its own; None where an op or size is not known."""

    calls: float
    nbytes: float | None


def sent(result: Result) -> Sent | None:
    """None where no step was profiled."""
    steps = Counter((row.rank, row.step) for row in result.steps if row.profiled)
    calls = [row for row in result.collectives if not row.part and (row.rank, row.step) in steps]
    if not steps:
        return None
    total = 0.0
    for row in calls:
        if row.nbytes is None or not row.group_size or row.op.rstrip("_") not in FACTORS:
            return Sent(len(calls) / len(steps), None)
        total += row.nbytes * FACTORS[row.op.rstrip("_")](row.group_size)
    return Sent(len(calls) / len(steps), total / len(steps))
