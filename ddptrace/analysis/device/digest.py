"""Sums up what devices did: by rank, stream, scope and kernel, and what gives the host less to launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from ddptrace.analysis.device.copies import CopyDigest, copy_digest
from ddptrace.analysis.device.idle import IdleDigest, idle_digest, is_compiled, without_identity
from ddptrace.analysis.device.kernels import Category
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import PARTS, Share, measured_steps
from ddptrace.analysis.tables.device import KernelRow, LaunchRow, Population, ScopeRow, StreamRow
from ddptrace.analysis.tables.parallelism import Kind
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


# What gives the host less to launch -----------------------------------------------------------------------------------


def less_to_launch(result: Result) -> str:
    """As in "torch.compile, CUDA graphs, larger batches". A model that is served has no optimizer, and one that is
    compiled is not told to be."""
    is_served = any(row.kind == Kind.INFERENCE for row in result.parallelism)
    names = {row.name for row in result.idle} | {row.operator for row in result.idle}  # few, of many rows
    compiled = any(map(is_compiled, names))
    ways = [
        'CUDA graphs (torch.compile with mode="reduce-overhead")' if compiled else "torch.compile, CUDA graphs",
        *([] if is_served else ["fused optimizers"]),
        "larger batches",
    ]
    return ", ".join(ways)


# Kernels, and how much of the peak they reach -------------------------------------------------------------------------


MULTIPLYING: Final = frozenset((Category.MATRIX, Category.ATTENTION, Category.CONVOLUTION))
"""Categories that hold nearly all FLOPs of a model."""
KNOWN_MIN_RATIO: Final = 0.5
"""Of the time of some kernels: where the FLOPs of less are known, a speed or a utilization would mislead."""
NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class KernelDigest:
    """Kernels of one category, or of one name and category: means over the ranks whose devices worked."""

    category: str
    name: str  # empty for the whole category
    events: float
    total_ns: int
    mean_ns: float
    ratio: float  # of all device work, as a sum of durations
    flops_per_s: float | None  # of those whose FLOPs are known, where that is most of them
    peak_ratio: float | None  # of the device's stated peak


def categories(result: Result) -> list[KernelDigest]:
    """Sum up kernels by category, the longest first."""
    return _kernel_digests(result.kernels, by_name=False)


def kernels(result: Result) -> list[KernelDigest]:
    """Sum up kernels by name and category, the longest first."""
    return _kernel_digests(result.kernels, by_name=True)


def _kernel_digests(rows: Sequence[KernelRow], by_name: bool) -> list[KernelDigest]:
    groups: defaultdict[tuple[str, str], list[KernelRow]] = defaultdict(list)
    for row in rows:
        groups[row.category, row.name if by_name else ""].append(row)
    whole_ns, ranks = sum(row.total_ns for row in rows), len({row.rank for row in rows})
    found = [_kernel_digest(key, mine, whole_ns, ranks) for key, mine in groups.items()]
    return sorted(found, key=lambda one: (-one.total_ns, one.category, one.name))


def _kernel_digest(key: tuple[str, str], rows: Sequence[KernelRow], whole_ns: int, ranks: int) -> KernelDigest:
    events, total_ns = (sum(getattr(row, column) for row in rows) for column in ("events", "total_ns"))
    flops, counted_ns = sum(row.flops or 0 for row in rows), sum(row.counted_ns for row in rows)
    is_known = flops > 0 and counted_ns >= KNOWN_MIN_RATIO * total_ns
    is_told = is_known and all(row.ideal_ns is not None for row in rows if row.flops)
    ideal_ns = sum(row.ideal_ns or 0 for row in rows)
    return KernelDigest(
        *key,
        events / ranks,
        round(total_ns / ranks),
        total_ns / events,
        total_ns / whole_ns if whole_ns else 0.0,
        flops / counted_ns * NS_PER_S if is_known else None,
        ideal_ns / counted_ns if is_told else None,
    )


@dataclass(frozen=True, slots=True)
class Utilization:
    """How much of what the devices could compute they did compute (MFU), over the profiled time of all ranks."""

    ratio: float  # of the stated peak, in the types of number that the kernels multiply
    flops: int
    known_ratio: float  # of the time of `MULTIPLYING`: that whose FLOPs and peak are known
    devices: tuple[str, ...]


def utilization(result: Result) -> Utilization | None:
    """None where a device's peak is unknown, or too few FLOPs are known."""
    spans = {row.rank: row.all.span_ns for row in result.ranks if row.all is not None}
    rows = [row for row in result.kernels if row.rank in spans and row.category in MULTIPLYING]
    told = [row for row in rows if row.flops is not None and (not row.flops or row.ideal_ns is not None)]
    whole_ns, known_ns = sum(row.total_ns for row in rows), sum(row.counted_ns for row in told)
    time_ns = sum(span_ns * _devices_of(result, rank) for rank, span_ns in spans.items())
    ideal_ns = sum(row.ideal_ns or 0 for row in told)
    if not ideal_ns or not time_ns or known_ns < KNOWN_MIN_RATIO * whole_ns:
        return None
    devices = tuple(dict.fromkeys(row.device for row in result.ranks if row.rank in spans))
    return Utilization(ideal_ns / time_ns, sum(row.flops or 0 for row in told), known_ns / whole_ns, devices)


def _devices_of(result: Result, rank: int) -> int:
    """How many devices a rank worked on."""
    return len({row.stream.partition(":")[0] for row in result.streams if row.rank == rank}) or 1
