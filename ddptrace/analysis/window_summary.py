"""The profiler windows of a run without steps, in short: what stands in for the typical step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import mean
from typing import Any, Protocol

from ddptrace.analysis.collectives.execution import weakest
from ddptrace.analysis.summary import PARTS, Share
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.tables.windows import WindowRow
from ddptrace.schema import Evidence


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """A mean profiler window."""

    windows: int  # that it is the mean of
    ranks: int  # that these are of
    on_device: bool  # all of them are of devices
    window_ns: int  # what the parts add up to
    comm_ns: int  # any collective ran
    hidden_ns: int  # part of comm in which the rank computed
    queued_ns: int  # part of idle in which work was queued
    overlap_ratio: float | None  # all hidden / all comm; None without communication
    evidence: Evidence | None  # the weakest of its collectives
    parts: tuple[Share, ...]  # compute, exposed_comm, exposed_memory, idle: a partition of the window

    def part(self, name: str) -> Share:
        """Return the part of this name."""
        return next(part for part in self.parts if part.name == name)

    def to_json_dict(self) -> dict[str, Any]:
        """Return the documented keys of `summary.window` in the JSON."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {"parts": [asdict(part) for part in self.parts]}


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
