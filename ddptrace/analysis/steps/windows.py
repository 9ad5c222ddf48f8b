"""Tells where the time of each profiler window went, and sums up the windows of a run without steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Protocol

from ddptrace.analysis.collectives.execution import weakest
from ddptrace.analysis.device.rows import population
from ddptrace.analysis.intervals import clip, intersect, total, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.steps.breakdown import communicating
from ddptrace.analysis.summary import PARTS, Share, WindowSummary
from ddptrace.analysis.tables.steps import StepRow, WindowRow
from ddptrace.analysis.tables.table import Table
from ddptrace.load.tables import DeviceIdle, DeviceWork, IdleCause, Window
from ddptrace.schema import Evidence


def window_rows(view: RankView) -> list[WindowRow]:
    """One row per window that tells what the rank computed, in time order."""
    return list(_rows(view))


def _rows(view: RankView) -> Iterator[WindowRow]:
    for number, window in enumerate(view.rank.windows):
        if window.on_device and window.device is not None:
            yield _on_device(view.rank.rank, number, window, window.device)
        elif not view.is_on_device and window.end_at_ns > window.begin_at_ns:
            yield _on_host(view, number, window)


def _on_device(rank: int, number: int, window: Window, work: DeviceWork) -> WindowRow:
    """From the device's first work to its last, as in the table of ranks."""
    whole = population([work], launched_only=False)
    assert whole is not None  # the device did some work
    begin = int(work.begin_at_ns.min())
    memory_ns = whole.span_ns - whole.compute_ns - whole.exposed_ns - whole.idle_ns
    queued_ns = 0 if window.idle is None else _queued_ns(window.idle, begin, begin + whole.span_ns)
    return WindowRow(
        rank,
        number,
        window.file,
        True,
        begin,
        begin + whole.span_ns,
        whole.span_ns,
        whole.compute_ns,
        whole.comm_ns,
        whole.hidden_ns,
        whole.exposed_ns,
        memory_ns,
        whole.idle_ns,
        queued_ns,
        whole.overlap_ratio,
        Evidence.DEVICE if whole.comm_ns else None,
    )


def _queued_ns(idle: DeviceIdle, begin: int, end: int) -> int:
    mine = (idle.cause == IdleCause.QUEUED) & (idle.begin_at_ns >= begin) & (idle.end_at_ns <= end)
    return int((idle.end_at_ns - idle.begin_at_ns)[mine].sum())


def _on_host(view: RankView, number: int, window: Window) -> WindowRow:
    begin, end = window.begin_at_ns, window.end_at_ns
    compute, comm = clip(union(window.compute), begin, end), clip(communicating(view), begin, end)
    comm_ns, hidden_ns = total(comm), total(intersect(comm, compute))
    ran = (
        one.evidence
        for one in view.comms
        if one.begin_at_ns is not None and one.end_at_ns is not None and begin < one.end_at_ns and one.begin_at_ns < end
    )
    return WindowRow(
        view.rank.rank,
        number,
        window.file,
        False,
        begin,
        end,
        end - begin,
        total(compute),
        comm_ns,
        hidden_ns,
        comm_ns - hidden_ns,
        0,
        end - begin - total(union(compute, comm)),
        0,
        hidden_ns / comm_ns if comm_ns else None,
        weakest(ran),
    )


# Of a run without steps -----------------------------------------------------------------------------------------------


class Windowed(Protocol):
    """What a summary is made of: a `Result`, or another that has these tables."""

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
