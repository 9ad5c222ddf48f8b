"""What devices did, in short, for a reader: by rank, stream and scope, over steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from ddptrace.analysis.device.copies import CopyDigest, copy_digest
from ddptrace.analysis.device.idle import IdleDigest, idle_digest
from ddptrace.analysis.device.names import without_identity
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import PARTS, Share, measured_steps
from ddptrace.analysis.tables.device import LaunchRow, Population, ScopeRow, StreamRow
from ddptrace.load.tables import class_of

SCOPE_KINDS: Final = ("module", "annotation", "operator")
SCOPE_PARTS: Final = ("compute_ns", "comm_ns", "memory_ns")


def device_parts(population: Population) -> tuple[Share, ...]:
    """A partition of the device's span by what it did, each instant counted once, in the order of `summary.PARTS`."""
    known = population.compute_ns + population.exposed_ns + population.idle_ns
    parts = (population.compute_ns, population.exposed_ns, population.span_ns - known, population.idle_ns)
    whole = population.span_ns or 1
    return tuple(Share(name, ns, ns / whole) for name, ns in zip(PARTS, parts, strict=True))


def device_total(result: Result) -> Population | None:
    """The devices of all ranks together, all of their work; None where none worked."""
    known = [row.all for row in result.ranks if row.all is not None]
    if not known:
        return None
    span, idle, compute, comm, memory, hidden, exposed = (
        sum(getattr(population, name) for population in known)
        for name in ("span_ns", "idle_ns", "compute_ns", "comm_ns", "memory_ns", "hidden_ns", "exposed_ns")
    )
    return Population(span, idle, compute, comm, memory, hidden, exposed, hidden / comm if comm else None)


@dataclass(frozen=True, slots=True)
class StreamDigest:
    """One stream of one rank in its typical step; in all windows (`steps` 0) where no step tells."""

    rank: int
    stream: str
    steps: int
    window_ns: int  # that the times below lie in
    events: float
    busy_ns: int
    compute_ns: int
    comm_ns: int
    memory_ns: int


def streams(result: Result) -> list[StreamDigest]:
    """By rank, and of each rank the busiest first."""
    steps, _ = measured_steps(result.steps)
    walls = {(row.rank, row.step): row.window_ns for row in steps}
    on_device = {(row.rank, row.step) for row in result.streams}
    windows: defaultdict[int, list[int]] = defaultdict(list)
    for step, window_ns in walls.items():
        if step in on_device:
            windows[step[0]].append(window_ns)
    spans = {row.rank: row.all.span_ns for row in result.ranks if row.all is not None}
    rows: defaultdict[tuple[int, str], list[StreamRow]] = defaultdict(list)
    for row in result.streams:
        if ((row.rank, row.step) in walls) if windows[row.rank] else row.step is None:
            rows[row.rank, row.stream].append(row)
    found = [_stream(mine, windows[rank], spans.get(rank, 0)) for (rank, _), mine in rows.items()]
    return sorted(found, key=lambda one: (one.rank, -one.busy_ns, one.stream))


def _stream(rows: Sequence[StreamRow], windows: Sequence[int], span_ns: int) -> StreamDigest:
    """A typical step in which the stream did nothing has no row, and counts."""
    count = len(windows) or 1
    names = ("busy_ns", "compute_ns", "comm_ns", "memory_ns")
    means = (round(sum(getattr(row, name) for row in rows) / count) for name in names)
    window_ns = round(fmean(windows)) if windows else span_ns
    events = sum(row.events for row in rows) / count
    return StreamDigest(rows[0].rank, rows[0].stream, len(windows), window_ns, events, *means)


@dataclass(frozen=True, slots=True)
class LaunchDigest:
    """How far one rank's host ran ahead of its device, over all its steps that tell. Times are means over the steps,
    of the delays medians of the steps' own figures; `delay_max_ns` is the largest."""

    rank: int
    steps: int
    bound_steps: int  # in which the device waited much for the host
    launched: float
    late_ratio: float | None  # of what was launched
    delay_p50_ns: int | None
    delay_p90_ns: int | None
    delay_max_ns: int | None
    window_ns: int
    idle_ns: int
    host_idle_ns: int


def launches(result: Result) -> list[LaunchDigest]:
    by_rank: defaultdict[int, list[LaunchRow]] = defaultdict(list)
    for row in result.launches:
        by_rank[row.rank].append(row)
    return [_launches(by_rank[rank]) for rank in sorted(by_rank)]


def _launches(rows: Sequence[LaunchRow]) -> LaunchDigest:
    launched = sum(row.launched for row in rows)
    halves = [row.delay_p50_ns for row in rows if row.delay_p50_ns is not None]
    tenths = [row.delay_p90_ns for row in rows if row.delay_p90_ns is not None]
    means = (round(fmean(getattr(row, name) for row in rows)) for name in ("window_ns", "idle_ns", "host_idle_ns"))
    return LaunchDigest(
        rows[0].rank,
        len(rows),
        sum(row.launch_bound for row in rows),
        launched / len(rows),
        sum(row.late for row in rows) / launched if launched else None,
        round(median(halves)) if halves else None,
        round(median(tenths)) if tenths else None,
        max((row.delay_max_ns for row in rows if row.delay_max_ns is not None), default=None),
        *means,
    )


def idle(result: Result) -> list[IdleDigest]:
    """What held the host while the device was idle, in the typical steps; in all windows where no step tells."""
    return idle_digest(result.idle, telling_steps(result))


def copies(result: Result) -> list[CopyDigest]:
    """What copies and fills cost, in the typical steps; in all windows where no step tells."""
    return copy_digest(result.copies, telling_steps(result))


def telling_steps(result: Result) -> dict[int, set[int]]:
    """By rank, the typical steps whose device time is known."""
    steps, _ = measured_steps(result.steps)
    known = {(row.rank, row.step) for row in result.launches}
    counted: defaultdict[int, set[int]] = defaultdict(set)
    for row in steps:
        if (row.rank, row.step) in known:
            counted[row.rank].add(row.step)
    return counted


@dataclass(frozen=True, slots=True)
class ScopeDigest:
    """Device time launched under one name: means over the ranks that tell scopes of this kind. All modules of one class
    are together."""

    kind: str
    name: str
    events: float
    compute_ns: int
    comm_ns: int
    memory_ns: int
    ratio: float  # of all device time of those ranks, as a sum of durations
    instances: int = 1  # modules of the class; of other kinds one

    @property
    def device_ns(self) -> int:
        return self.compute_ns + self.comm_ns + self.memory_ns


def scopes(result: Result) -> dict[str, list[ScopeDigest]]:
    """By kind, those kinds that the traces tell; of each kind the most device time first."""
    rows: dict[str, defaultdict[str, list[ScopeRow]]] = {kind: defaultdict(list) for kind in SCOPE_KINDS}
    for row in result.scopes:
        rows[row.kind][class_of(row.name) if row.kind == "module" else without_identity(row.name)].append(row)
    worked = {a.rank: sum(int((w.end_at_ns - w.begin_at_ns).sum()) for w in a.device) for a in result.activity}
    return {kind: _scopes(kind, by_name, worked) for kind, by_name in rows.items() if by_name}


def _scopes(kind: str, by_name: dict[str, list[ScopeRow]], worked: dict[int, int]) -> list[ScopeDigest]:
    ranks = {row.rank for rows in by_name.values() for row in rows}
    whole = sum(worked.get(rank, 0) for rank in ranks)
    found = []
    for scope, rows in by_name.items():
        events, *parts = (sum(getattr(row, name) for row in rows) / len(ranks) for name in ("events", *SCOPE_PARTS))
        compute, comm, memory = map(round, parts)
        ratio = sum(parts) * len(ranks) / whole if whole else 0.0
        instances = len({row.name for row in rows}) if kind == "module" else 1
        found.append(ScopeDigest(kind, scope, events, compute, comm, memory, ratio, instances))
    return sorted(found, key=lambda one: (-one.device_ns, one.name))
