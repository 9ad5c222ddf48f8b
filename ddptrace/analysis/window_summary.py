"""The profiler windows of a run without steps, in short: what stands in for the typical step."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Protocol

from ddptrace.analysis.collectives.execution import weakest
from ddptrace.analysis.summary import PARTS, Share, WindowSummary
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.tables.windows import WindowRow


class Windowed(Protocol):
    """What it is made of: a `Result`, or another that has these tables."""

    @property
    def steps(self) -> Table[StepRow]: ...
    @property
    def windows(self) -> Table[WindowRow]: ...


def summarize_windows(result: Windowed) -> WindowSummary | None:
    """Sum up the windows of all ranks; None where steps are known, or no window tells anything."""
    rows = [row for row in result.windows if row.window_ns]
    if len(result.steps) or not rows:
        return None
    comm = sum(row.comm_ns for row in rows)
    return WindowSummary(
        len(rows),
        len({row.rank for row in rows}),
        all(row.on_device for row in rows),
        round(mean(row.window_ns for row in rows)),
        round(mean(row.comm_ns for row in rows)),
        round(mean(row.hidden_ns for row in rows)),
        round(mean(row.queued_ns for row in rows)),
        sum(row.hidden_ns for row in rows) / comm if comm else None,
        weakest(row.evidence for row in rows),
        _parts(rows),
    )


def _parts(rows: Sequence[WindowRow]) -> tuple[Share, ...]:
    all_ns = sum(row.window_ns for row in rows)
    sums = ((name, sum(getattr(row, f"{name}_ns") for row in rows)) for name in PARTS)
    return tuple(Share(name, round(ns / len(rows)), ns / all_ns) for name, ns in sums)
