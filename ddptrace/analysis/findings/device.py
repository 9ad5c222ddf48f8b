"""Finds what profiler windows of a device show or leave out, and kernels that may communicate."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.device.copies import is_in_copy
from ddptrace.analysis.device.digest import less_to_launch
from ddptrace.analysis.device.idle import LONG_GAP_NS, HeldBy, held_by
from ddptrace.analysis.device.rows import LAUNCH_BOUND_RATIO
from ddptrace.analysis.findings.copies import blocking_copies, exposed_copies
from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.device import IdleRow, LaunchRow, Population, RankRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.findings import (
    ALLOCATION_BOUND,
    BLOCKING_COPIES,
    BUCKETS_BY_ORDER,
    COMM_KERNEL_SUSPECTED,
    DATA_BOUND,
    GARBAGE_COLLECTION,
    HOST_STANDS_STILL,
    HOST_SYNCHRONIZES,
    IDLE_WHILE_QUEUED,
    LAUNCH_BOUND,
    LAUNCH_MISSING,
    OUTSIDE_WINDOW,
    WITHOUT_LAUNCH,
    Finding,
    FindingKind,
)
from ddptrace.units import duration, named, percent

OUTSIDE_MAX_RATIO: Final = 0.001
"""Of all device work. Less of it outside of all steps is not told."""
UNKNOWN: Final = "not known"
Idle = tuple[Sequence[IdleRow], Sequence[int], str]
"""Rows of `idle`, the windows' lengths in ns, and where that was, in words."""


def device_findings(ranks: Sequence[RankFacts], result: Result) -> Iterator[Finding]:
    yield from _without_launch(result)
    yield from _launches_missing(result)
    yield from _outside(ranks, result)
    yield from _by_order(result)
    yield from _idle(result)
    yield from exposed_copies(result)


def _without_launch(result: Result) -> Iterator[Finding]:
    rows = [row for row in result.ranks if row.gpu_events and row.gpu_events_with_launch != row.gpu_events]
    if rows:
        events = sum(row.gpu_events or 0 for row in rows)
        without = events - sum(row.gpu_events_with_launch or 0 for row in rows)
        yield WITHOUT_LAUNCH(
            _of(rows),
            f"{without} of {events} device events ({percent(without / events)}) on {_of(rows)} have no launch in the"
            f" file; most were queued before the window. Each counts to the step in which it ran.{_overlaps(rows)}",
        )


def _overlaps(rows: Sequence[RankRow]) -> str:
    """Where these events change it by as much as can be seen."""
    every, launched = _overlap([row.all for row in rows]), _overlap([row.with_launch for row in rows])
    if every in (UNKNOWN, launched):
        return ""
    return f" With them {every} of the communication is hidden, without them {launched}."


def _of(rows: Sequence[RankRow]) -> str:
    return named("rank", [row.rank for row in rows])


def _overlap(populations: Sequence[Population | None]) -> str:
    known = [population for population in populations if population is not None]
    comm = sum(population.comm_ns for population in known)
    return percent(sum(population.hidden_ns for population in known) / comm) if comm else UNKNOWN


def _launches_missing(result: Result) -> Iterator[Finding]:
    rows = [row for row in result.collectives if not row.launch_recorded and row.part == 0]
    if rows:
        where = named("rank", sorted({row.rank for row in rows}))
        yield LAUNCH_MISSING(
            where,
            f"The launches of {len(rows)} collectives on {where} are not in the files (queued before the profiler"
            " started?). They are shown with the latest possible launch, so their queue delay is a lower bound.",
        )


def _outside(ranks: Sequence[RankFacts], result: Result) -> Iterator[Finding]:
    strays = [rank for rank in ranks if rank.outside_ns]
    ran_ns = sum(row.all.span_ns - row.all.idle_ns for row in result.ranks if row.all is not None)
    if sum(rank.outside_ns for rank in strays) > OUTSIDE_MAX_RATIO * ran_ns:
        where = named("rank", [rank.rank for rank in strays])
        ns = sum(rank.outside_ns for rank in strays)
        exact = "" if duration(ns) == f"{ns} ns" else f" ({ns} ns)"
        yield OUTSIDE_WINDOW(
            where,
            f"{duration(ns)}{exact} of device work on {where} ran before the first step or after the last, so that no"
            " step counts them; the tables of ranks, streams and scopes do.",
        )


def _by_order(result: Result) -> Iterator[Finding]:
    rows = [row for row in result.buckets if row.identity == "order"]
    if rows:
        where = named("rank", sorted({row.rank for row in rows}))
        changes = max(row.layout for row in rows)
        often = "once" if changes == 1 else f"{changes} times"
        several = f" Their sizes changed {often}: compare only buckets of the same layout." if changes else ""
        yield BUCKETS_BY_ORDER(
            where,
            f"DDP's buckets on {where} were not recorded: they are the all-reduces of each backward, numbered by"
            f" launch, without names of parameters.{several} Trace with ddptrace.trace() to see which parameters a"
            " bucket holds and when they were ready.",
        )


def _idle(result: Result) -> Iterator[Finding]:
    """Each cause that costs much; where none does by itself, the largest."""
    rows, windows_ns, where = _idle_told(result)
    blocking, whole_ns, in_copies_ns = blocking_copies(result), sum(windows_ns), 0
    if blocking is not None:
        yield blocking
        in_copies_ns = sum(row.idle_ns for row in rows if is_in_copy(row))
        rows = [row for row in rows if not is_in_copy(row)]
    causes = held_by(rows)
    if not whole_ns or sum(held.idle_ns for held in causes) <= LAUNCH_BOUND_RATIO * whole_ns:
        return
    by_step, less = rows[0].step is not None, less_to_launch(result)
    large = [held for held in causes if held.idle_ns > LAUNCH_BOUND_RATIO * whole_ns]
    ranks = named("rank", sorted({row.rank for row in rows}))
    for held in large or (causes[:1] if blocking is None else []):
        if held.cause == "queued" and held.idle_ns < in_copies_ns:  # unexplained, and less than what is explained
            continue
        each = duration(held.idle_ns / len(windows_ns)) + (" a step" if by_step else " a window")
        share = f"{percent(held.idle_ns / whole_ns)} of the time ({each})"
        gaps = f"half of it in gaps of at least {duration(held.half_gap_ns)}"
        if held.cause == "queued":
            yield IDLE_WHILE_QUEUED(ranks, _queued_words(where, share, gaps, held))
        else:
            kind, doing, advice = _held_words(held, less)
            yield kind(ranks, f"{where} the device is idle for {share} {doing}, {gaps}: {advice}.")


def _idle_told(result: Result) -> Idle:
    if result.launches:
        return _idle_steps(result)
    by_events = [row for row in measured_steps(result.steps)[0] if row.unsure_ns is not None]
    if not by_events:
        return _idle_windows(result)
    return _idle_in(by_events, result), [row.window_ns for row in by_events], "In the typical step"


def _idle_steps(result: Result) -> Idle:
    """Of the typical steps; where the device is seldom idle in those, of the steps in which it is idle for long. The
    profiler's own start holds up the first step of a window."""
    typical = {(row.rank, row.step) for row in measured_steps(result.steps)[0]}
    usual = [row for row in result.launches if (row.rank, row.step) in typical]
    if sum(row.idle_ns for row in usual) > LAUNCH_BOUND_RATIO * sum(row.window_ns for row in usual):
        return _idle_in(usual, result), [row.window_ns for row in usual], "In the typical step"
    known = {(row.rank, row.step) for row in result.launches}
    later = [row for row in result.launches if (row.rank, row.step - 1) in known]
    bound = [row for row in later if row.idle_ns > LAUNCH_BOUND_RATIO * row.window_ns]
    if not bound:
        return [], [], ""
    ranks = named("rank", sorted({row.rank for row in bound}))
    where = f"In {len(bound)} of {len(later)} steps on {ranks}"
    return _idle_in(bound, result), [row.window_ns for row in bound], where


def _idle_in(steps: Sequence[LaunchRow | StepRow], result: Result) -> list[IdleRow]:
    keys = {(row.rank, row.step) for row in steps}
    return [row for row in result.idle if (row.rank, row.step) in keys]


def _idle_windows(result: Result) -> Idle:
    """Of the windows whole, where no step tells."""
    windows = [row for row in result.windows if row.on_device and row.window_ns]
    ranks = {row.rank for row in windows}
    rows = [row for row in result.idle if row.step is None and row.rank in ranks]
    return rows, [row.window_ns for row in windows], f"On {named('rank', sorted(ranks))}" if ranks else ""


def _held_words(held: HeldBy, less: str) -> tuple[FindingKind, str, str]:
    """The kind, what the host does meanwhile, and what to try. `less`: what gives the host less to launch."""
    name = _place(held)
    largest = f"most of it in {name}" if held.ratio > MOST else f"the largest part ({percent(held.ratio)}) in {name}"
    if held.cause == "still":
        return HOST_STANDS_STILL, "while all threads of the process sleep or wait for something else", STILL_ADVICE
    match held.cause:
        case "data":
            doing, (kind, advice) = "fetches a batch", (DATA_BOUND, _loader_advice(held.name))
        case "copy":
            doing, (kind, advice) = "is blocked in copies, or catches up after them", (BLOCKING_COPIES, COPY_ADVICE)
        case "synchronize":
            doing, (kind, advice) = (
                "waits for the device, or catches up after that",
                (HOST_SYNCHRONIZES, SYNCHRONIZE_ADVICE),
            )
        case "allocate":
            doing, (kind, advice) = "allocates or frees memory", (ALLOCATION_BOUND, ALLOCATE_ADVICE)
        case "collect":
            doing, (kind, advice) = "collects Python's garbage", (GARBAGE_COLLECTION, COLLECT_ADVICE)
        case _:
            doing, (kind, advice) = "is at work", (LAUNCH_BOUND, _launch_advice(held, less))
    is_placed = held.cause != "data" or held.name  # events tell no more of it
    return kind, f"while the host {doing}" + (f", {largest}" if is_placed else ""), advice


def _place(held: HeldBy) -> str:
    return held.place or "no operator or call that the profiler records"


def _queued_words(where: str, share: str, gaps: str, held: HeldBy) -> str:
    """Work that waits may wait for what the file does not hold: the device is not said to be idle, nor why."""
    copies = f" {QUEUED_COPY}" if "memcpy" in held.name.lower() else ""
    return (
        f"{where} the trace shows nothing running on the device for {share}, although work is queued; {gaps}. The trace"
        f" does not tell why that work waits: {QUEUED_ADVICE}. Meanwhile the host is in {_place(held)} for"
        f" {percent(held.ratio)} of that time.{copies}"
    )


MOST: Final = 0.6
STILL_ADVICE: Final = "look for what the program waits for there (files, locks, other processes, sleep)"
COPY_ADVICE: Final = "pin the memory (pin_memory=True), copy with non_blocking=True, and read results back less often"
SYNCHRONIZE_ADVICE: Final = "avoid .item(), .cpu() and printing tensors in each step"
ALLOCATE_ADVICE: Final = (
    "the caching allocator does not keep the memory; look at PYTORCH_NO_CUDA_MEMORY_CACHING, at empty_cache() and at"
    " fragmentation (expandable_segments)"
)
COLLECT_ADVICE: Final = "call gc.freeze() after setup, and collect at a time of your choice"
QUEUED_ADVICE: Final = (
    "it can wait for kernels that the profiler did not record (those of CUDA graphs, of other processes on the device)"
    " or for another stream"
)
QUEUED_COPY: Final = (
    "A copy can block the host until all work before it is over; one to pinned memory with non_blocking=True does not,"
    " and the host can launch more, unless it needs the result at once."
)


def _loader_advice(name: str) -> str:
    if "_SingleProcess" in name:
        return "it loads each batch in the training process, so give the loader workers (num_workers)"
    return "use more or faster workers (num_workers, prefetch_factor), or cheaper transforms"


def _launch_advice(held: HeldBy, less: str) -> str:
    if held.half_gap_ns <= LONG_GAP_NS:
        return f"the host launches too slowly; give it less to launch: {less}"
    return "look for what holds it there" + ("" if held.name else "; record with with_stack=True to see it")


# Kernels that may communicate -----------------------------------------------------------------------------------------


MOST_NAMED: Final = 4
"""Kernels, and places."""


def comm_kernel_findings(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Tell of all ranks together in one sentence."""
    some = [rank for rank in ranks if rank.comm_like]
    if not some:
        return
    by_kernel: Counter[str] = Counter()
    by_place: Counter[str] = Counter()
    for kernel in (kernel for rank in some for kernel in rank.comm_like):
        by_kernel[_pattern_of(kernel.kernel)] += kernel.device_ns
        by_place[kernel.where] += kernel.device_ns
    where = named("rank", [rank.rank for rank in some])
    options = " ".join(f"--comm-kernel '{pattern}'" for pattern, _ in by_kernel.most_common(MOST_NAMED))
    left = len(by_kernel) - MOST_NAMED
    more = f" (and {left} more)" if left > 0 else ""
    places = ", ".join(place for place, _ in by_place.most_common(MOST_NAMED))
    yield COMM_KERNEL_SUSPECTED(
        where,
        f"On {where}, kernels that no rule knows run for {duration(by_kernel.total() / len(some))} a rank in ranges or"
        f" on streams that are named after communication ({places}). They count as compute here. If they communicate,"
        f" name them: {options}{more}.",
    )


def _pattern_of(kernel: str) -> str:
    """Find the part of the kernel's name to give to `--comm-kernel`: the function with its namespaces. Of
    `void mine::ep::send<8>(int)`: mine::ep::send."""
    bare = re.split("[<(]", kernel.rpartition("(anonymous namespace)::")[2], maxsplit=1)[0].strip()
    words = re.findall(r"[\w:]+", bare) or re.findall(r"\w+", kernel)
    return words[-1].strip(":") if words else re.escape(kernel[:40])
