"""Which step a collective belongs to, each once: the one that launched it, whatever steps it ran in."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.steps import StepRow


class StepsAt:
    """One rank's steps by time."""

    def __init__(self, steps: Sequence[StepRow]) -> None:
        self._steps = steps
        self._begins = [row.begin_at_ns for row in steps]

    def __call__(self, at_ns: int) -> int | None:
        """The ordinal of the step under way; None outside of all steps."""
        position = bisect_right(self._begins, at_ns) - 1
        return self._steps[position].step if position >= 0 and at_ns < self._steps[position].end_at_ns else None


def whole_calls(rows: Iterable[CollectiveRow]) -> Iterator[CollectiveRow]:
    """One row per call: one that ran past the end of its step is told in parts, a row for each step it ran in."""
    parts: dict[int, list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        parts[row.seq].append(row)
    for first, *others in parts.values():
        yield _joined(first, others) if others else first


def _joined(first: CollectiveRow, others: list[CollectiveRow]) -> CollectiveRow:
    every = (first, *others)
    return replace(
        first,
        exec_end_at_ns=others[-1].exec_end_at_ns,
        comm_ns=sum(row.comm_ns or 0 for row in every),
        hidden_ns=_sum(row.hidden_ns for row in every),
        exposed_ns=_sum(row.exposed_ns for row in every),
        exposed_charged_ns=_sum(row.exposed_charged_ns for row in every),
    )


def _sum(parts: Iterable[int | None]) -> int | None:
    """None where one of them is."""
    every = list(parts)
    known = [ns for ns in every if ns is not None]
    return sum(known) if len(known) == len(every) else None
