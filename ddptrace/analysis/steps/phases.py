"""What the main training thread was doing: a partition of each step into data, forward, backward, optimizer, other."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints, Pieces, innermost
from ddptrace.load.tables import PhaseMark, RankRun
from ddptrace.schema import Phase

OTHER: Final = 0
PHASE_NAMES: Final = ("other", *(phase.name.lower() for phase in Phase))
"""By label: 0 is other, the rest are `Phase`'s own numbers."""


def main_thread(rank: RankRun) -> int | None:
    """The thread that trains: the one with most backwards, else with most marks of any phase. None without marks."""
    backwards = Counter(mark.thread for mark in rank.phases if mark.phase is Phase.BACKWARD)
    threads = backwards or Counter(mark.thread for mark in rank.phases)
    return threads.most_common(1)[0][0] if threads else None


def main_marks(rank: RankRun) -> tuple[PhaseMark, ...]:
    """The main thread's marks by begin; a forward that the backward follows reaches to it, since what lies between
    computes the loss."""
    thread = main_thread(rank)
    marks = sorted((m for m in rank.phases if m.thread == thread), key=lambda m: (m.begin_at_ns, -m.end_at_ns))
    begins = [mark.begin_at_ns for mark in marks]
    return tuple(_with_loss(mark, marks, begins) for mark in marks)


def _with_loss(mark: PhaseMark, marks: Sequence[PhaseMark], begins: list[int]) -> PhaseMark:
    following = bisect_left(begins, mark.end_at_ns)
    if mark.phase is not Phase.FORWARD or following == len(marks) or marks[following].phase is not Phase.BACKWARD:
        return mark
    return replace(mark, end_at_ns=begins[following])


def phase_pieces(marks: Sequence[PhaseMark], rank: RankRun) -> Pieces:
    """At each instant the innermost mark's phase; a pause, in which ddptrace itself held the thread, is OTHER."""
    stretches = [(mark.begin_at_ns, mark.end_at_ns, int(mark.phase)) for mark in marks]
    return innermost(stretches + [(pause.begin_at_ns, pause.end_at_ns, OTHER) for pause in rank.pauses])


def stretches(steps: Pieces, phases: Pieces) -> tuple[Ints, Ints, Ints, Ints]:
    """The steps' stretches: (step's position, begin, end, phase label); neighbours in a step differ in phase."""
    parts = phases.split(steps.begins, steps.ends)
    source, begins, ends = (column[parts[2] > parts[1]] for column in parts)
    labels = np.maximum(phases.at(begins), OTHER)
    first = np.flatnonzero((np.diff(source, prepend=-1) != 0) | (np.diff(labels, prepend=-1) != 0))
    last = np.append(first, len(source))[1:] - 1
    return source[first], begins[first], ends[last], labels[first]


def phase_totals(steps: Pieces, phases: Pieces) -> Ints:
    """Nanoseconds of each phase in each step, shape (steps, labels)."""
    step, begins, ends, labels = stretches(steps, phases)
    totals = np.zeros((len(steps.begins), len(PHASE_NAMES)), np.int64)
    np.add.at(totals, (step, labels), ends - begins)
    return totals
