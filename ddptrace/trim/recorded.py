"""The numbers of a run's steps, as ddptrace recorded them: a profiler counts from the begin of its window."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ddptrace.load.records.rank_run import Recorded
from ddptrace.load.run_folder import open_folder, read_rank
from ddptrace.load.tables import RankRun, StepMark


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """By rank, what ddptrace recorded; nothing of files without a run."""

    ranks: Mapping[int, Recorded] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Path) -> RecordedSteps:
        """Read the records of all ranks. Raises RunDirectoryError where they cannot be read."""
        return cls({rank.rank: read_rank(rank, []) for rank in open_folder(run).ranks})

    def numbered(self, run: RankRun, zero_unix_ns: int) -> RankRun:
        """Give the steps of a rank's profiler files the numbers of the recorded steps that they lie in. Those that lie
        in none are left out."""
        recorded = self.ranks.get(run.rank)
        if recorded is None:
            return run
        middles = np.array([(step.begin_at_ns + step.end_at_ns) // 2 for step in run.steps], np.int64)
        at = recorded.clock.from_unix(middles + zero_unix_ns).tolist()
        found = (_around(recorded.run.steps, middle) for middle in at)
        pairs = zip(run.steps, found, strict=True)
        return replace(
            run, steps=tuple(replace(step, ordinal=mark.ordinal) for step, mark in pairs if mark is not None)
        )


def _around(steps: tuple[StepMark, ...], at_ns: int) -> StepMark | None:
    k = bisect.bisect_right(steps, at_ns, key=lambda step: step.begin_at_ns) - 1
    return steps[k] if k >= 0 and at_ns < steps[k].end_at_ns else None
