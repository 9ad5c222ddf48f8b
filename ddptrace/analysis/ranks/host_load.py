"""What held each rank's training thread up beside its own work, per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.replay import positions
from ddptrace.load.tables import Throttle


@dataclass(frozen=True, slots=True)
class Held:
    """Means over steps of one rank, in ns; None where nobody looked."""

    collecting_ns: float  # Python's garbage collector ran
    throttled_ns: float | None  # its group of processes had used its quota up
    queued_ns: float | None  # it could have run, and no processor was free
    cpu_ns: float | None  # it ran

    @property
    def is_watched(self) -> bool:
        return self.cpu_ns is not None


def held_in(table: RankTables, steps: Ints) -> Held:
    """In these steps, which the rank has. A throttled time is spread over the run, since it is seen now and then."""
    walls = np.array([(row.begin_at_ns, row.end_at_ns, row.step) for row in table.steps], np.int64).reshape(-1, 3)
    load, count = table.load, max(len(steps), 1)
    collected = _in_steps(
        [(one.begin_at_ns, one.end_at_ns - one.begin_at_ns) for one in load.collections], walls, steps
    )
    marks = [(mark.begin_at_ns + mark.end_at_ns) // 2 for mark in load.marks]
    queued, cpu = (
        _in_steps(list(zip(marks, values, strict=True)), walls, steps) / count if marks else None
        for values in ([mark.queued_ns for mark in load.marks], [mark.cpu_ns for mark in load.marks])
    )
    judged = walls[positions(walls[:, 2], steps) >= 0]
    step_ns = int((judged[:, 1] - judged[:, 0]).sum()) / count
    return Held(collected / count, _throttled(load.throttles, step_ns), queued, cpu)


def _in_steps(events: Sequence[tuple[int, int]], walls: Ints, steps: Ints) -> float:
    """Sum of the values, each with its instant, of those whose instant lies in one of the steps. None is longer than
    its step."""
    at, values = np.array(events, np.int64).reshape(-1, 2).T
    if not len(walls) or not len(at):
        return 0.0
    step = np.searchsorted(walls[:, 0], at, side="right") - 1
    inside = (step >= 0) & (at < walls[step, 1])
    values = np.minimum(values, walls[step, 1] - walls[step, 0])
    return float(values[inside & (positions(walls[step, 2], steps) >= 0)].sum())


def _throttled(seen: Sequence[Throttle], step_ns: float) -> float | None:
    """Per step of this length."""
    span = sum(b.at_ns - a.at_ns for a, b in pairwise(seen))
    return (seen[-1].throttled_ns - seen[0].throttled_ns) / span * step_ns if span > 0 else None


def beyond_others(values: Sequence[float | None], rank: int) -> float | None:
    """Of one rank, over the median of the others that know theirs; None where it knows nothing itself."""
    own = values[rank]
    others = [value for at, value in enumerate(values) if at != rank and value is not None]
    return None if own is None else own - (median(others) if others else 0.0)
