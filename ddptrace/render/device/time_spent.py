"""What takes a device's time, as tables for the terminal and the report: kernels, copies, and what held the host while
it was idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.device.copies import CopyDigest
from ddptrace.analysis.device.digest import (
    KernelDigest,
    Utilization,
    categories,
    copies,
    idle,
    kernels,
    launches,
    utilization,
)
from ddptrace.analysis.device.idle import IdleDigest
from ddptrace.analysis.result import Result
from ddptrace.errors import printable
from ddptrace.render.markup import folded, label, text
from ddptrace.render.words import WIDTH, both_ends, indented, kernel_name
from ddptrace.units import NOT_MEASURED, calls_words, duration, millis, percent, rate, size, three_figures

MOST_KERNELS: Final = 5  # on the terminal
KERNEL_ROWS_MAX: Final = 60  # in the report
KERNEL_ROWS_OPEN: Final = 12
KERNEL_HEADS: Final = tuple(
    (head, "words" if head in ("category", "kernel") else "")
    for head in ("category", "kernel", "total ms", "of all", "count", "mean", "TFLOP/s", "of peak")
)
KERNEL_SUB: Final = (
    "Durations of kernels, copies and fills, added up over all profiled windows; means per rank. FLOPs come from the"
    " input shapes of matrix products and attention, where the trace holds them (record_shapes=True), as"
    " torch.utils.flop_counter counts them. The peak is what the device's maker states for the type of number."
)
KNOWN_NEARLY_ALL: Final = 0.99
TERA: Final = 1e12

MOST_COPIES: Final = 4  # on the terminal
COPY_ROWS_MAX: Final = 40  # in the report
COPY_ROWS_OPEN: Final = 10
COPY_MIN_RATIO: Final = 0.02  # of the window: copies that cost less are not worth a table
COPY_HEADS: Final = tuple(
    (head, "words" if head == "copies" else "")
    for head in ("rank", "exposed ms", "host blocked ms", "device idle ms", "count", "bytes", "rate", "copies")
)
COPY_SUB: Final = (
    "Exposed: a copy ran, and no kernel. Host blocked: the host was inside the calls that copy pageable memory; they"
    " return when the copy is over, and a copy to the host waits for all work before it. Device idle: nothing ran"
    " meanwhile. Means per step; if no step was found, sums over all windows."
)

MOST_CAUSES: Final = 5  # on the terminal
CAUSES_MAX: Final = 12  # of a rank, in the report
IDLE_RANKS_MAX: Final = 16  # in the report
IDLE_ROWS_OPEN: Final = 10
IDLE_MIN_RATIO: Final = 0.05  # of the window: below, what held the host is not worth a table
IDLE_HEADS: Final = tuple(
    (head, "words" if head == "cause" else "") for head in ("rank", "idle ms", "of idle", "gaps", "gap ms", "cause")
)
IDLE_SUB: Final = (
    "What the host did while the device was idle: the thread that launched the next work, and the innermost operator,"
    " call or function that it was in. The times add up to the idle time. Half of a row's idle time lies in gaps that"
    " are at least as long as its 'gap ms'. Means per step; if no step was found, sums over all windows."
)
ENGINE: Final = "autograd::engine::evaluate_function: "
CAUSES: Final = {
    "nothing": "nothing recorded",
    "operator": "operator",
    "python": "Python",
    "launch": "launch",
    "runtime": "runtime call",
    "data": "data loader",
    "copy": "copy",
    "synchronize": "synchronization",
    "allocate": "allocation",
    "collect": "garbage collection",
    "queued": "work was queued",
    "still": "no thread ran",
}


def kernel_lines(result: Result) -> Iterator[str]:
    """The categories, the kernels that take most, and how much of the peak that is."""
    found = kernels(result)
    if not found:
        return
    kinds, used = categories(result), utilization(result)
    with_flops = any(kind.flops_per_s is not None for kind in kinds)
    yield "Kernels  (durations added up over all windows, mean per rank)"
    yield f"  {'total ms':>9} {'of all':>6} {'count':>7} {'mean':>8}{_flops_heads(with_flops)}  category"
    for kind in kinds:
        yield f"  {_kernel_figures(kind, with_flops)}  {kind.category}"
    of = f"  ({MOST_KERNELS} of {len(found)})" if len(found) > MOST_KERNELS else ""
    yield f"  {'total ms':>9} {'of all':>6} {'count':>7} {'mean':>8}{_flops_heads(with_flops)}  kernel{of}"
    for kernel in found[:MOST_KERNELS]:
        figures = _kernel_figures(kernel, with_flops)
        yield f"  {figures}  {both_ends(printable(kernel_name(kernel.name)), WIDTH - 4 - len(figures))}"
    if used is not None:
        yield from indented(utilization_words(used))


def _flops_heads(with_flops: bool) -> str:
    return f" {'TFLOP/s':>8} {'of peak':>7}" if with_flops else ""


def _kernel_figures(one: KernelDigest, with_flops: bool) -> str:
    times = f"{millis(one.total_ns):>9} {percent(one.ratio):>6} {calls_words(one.events):>7} {duration(one.mean_ns):>8}"
    return times + (f" {_tera(one.flops_per_s):>8} {percent(one.peak_ratio):>7}" if with_flops else "")


def _tera(flops_per_s: float | None) -> str:
    return NOT_MEASURED if flops_per_s is None else three_figures(flops_per_s / TERA)


def utilization_words(used: Utilization) -> str:
    """As in "MFU 31 % of the stated peak of NVIDIA A100-SXM4-80GB"."""
    devices = ", ".join(map(printable, used.devices))
    if used.known_ratio >= KNOWN_NEARLY_ALL:
        return f"MFU {percent(used.ratio)} of the stated peak of {devices}"
    known = f"FLOPs are known for {percent(used.known_ratio)} of the time of matrix products and attention"
    return f"MFU at least {percent(used.ratio)} of the stated peak of {devices}; {known}"


def kernel_table(result: Result) -> str:
    """Each category, then the kernels that take most."""
    kinds, found = categories(result), kernels(result)[:KERNEL_ROWS_MAX]
    if not found:
        return ""
    used = utilization(result)
    above = f'<p class="sub">{text(utilization_words(used))}.</p>' if used is not None else ""
    by_category = folded(KERNEL_HEADS, list(map(_kernel_cells, kinds)), len(kinds), "categories")
    return above + by_category + folded(KERNEL_HEADS, list(map(_kernel_cells, found)), KERNEL_ROWS_OPEN, "kernels")


def _kernel_cells(one: KernelDigest) -> list[str]:
    return [
        label(one.category),
        label(kernel_name(one.name)) if one.name else "all",
        millis(one.total_ns),
        label(percent(one.ratio)),
        calls_words(one.events),
        duration(one.mean_ns),
        _tera(one.flops_per_s),
        label(percent(one.peak_ratio)),
    ]


def copy_lines(result: Result) -> Iterator[str]:
    """The costliest copies of the rank that they cost most; nothing where they cost little."""
    found = costly_copies(result)
    if not found:
        return
    rank = max(found, key=lambda copy: copy.cost_ns).rank
    mine = [copy for copy in found if copy.rank == rank]
    of = f"{MOST_COPIES} of {len(mine)}, " if len(mine) > MOST_COPIES else ""
    yield f"Copies of rank {rank}  ({of}{'per step' if result.launches else 'in all windows'})"
    yield f"  {'exposed ms':>10} {'blocked ms':>10} {'idle ms':>8} {'count':>6} {'bytes':>8} {'rate':>9}  copies"
    for copy in mine[:MOST_COPIES]:
        times = f"{millis(copy.exposed_ns):>10} {millis(copy.blocked_ns):>10} {millis(copy.blocked_idle_ns):>8}"
        moved = f"{calls_words(copy.events):>6} {size(copy.nbytes):>8} {rate(copy.nbytes_per_s):>9}"
        yield f"  {times} {moved}  {both_ends(printable(copy.name), WIDTH - 60)}"
    yield "  blocked: the host was in calls that copy pageable memory; idle: the device was idle meanwhile"


def copy_table(result: Result) -> str:
    rows = list(map(_copy_cells, costly_copies(result)[:COPY_ROWS_MAX]))
    return folded(COPY_HEADS, rows, COPY_ROWS_OPEN, "kinds of copies") if rows else ""


def costly_copies(result: Result) -> list[CopyDigest]:
    """All copies of the ranks on which some cost a share of the time that matters."""
    spans = _spans(result)
    found = copies(result)
    ranks = {copy.rank for copy in found if copy.cost_ns > COPY_MIN_RATIO * spans.get(copy.rank, 0)}
    return [copy for copy in found if copy.rank in ranks]


def _copy_cells(copy: CopyDigest) -> list[str]:
    return [
        str(copy.rank),
        millis(copy.exposed_ns),
        millis(copy.blocked_ns),
        millis(copy.blocked_idle_ns),
        calls_words(copy.events),
        size(copy.nbytes),
        rate(copy.nbytes_per_s),
        label(copy.name),
    ]


def idle_lines(result: Result) -> Iterator[str]:
    """The causes of the rank whose device was idle longest; nothing where it was hardly idle."""
    ranks = idle_ranks(result)
    if not ranks:
        return
    rank, causes = ranks[0]
    of = f"{MOST_CAUSES} of {len(causes)}, " if len(causes) > MOST_CAUSES else ""
    per = "per step" if result.launches else "in all windows"
    yield f"Idle time of rank {rank}'s device, by what held the host  ({of}{per})"
    yield f"  {'idle ms':>9} {'of idle':>8} {'gaps':>7} {'gap ms':>8}  cause"
    for cause in causes[:MOST_CAUSES]:
        figures = f"{millis(cause.idle_ns):>9} {percent(cause.ratio):>8} {calls_words(cause.gaps):>7}"
        yield f"  {figures} {millis(cause.half_gap_ns):>8}  {both_ends(printable(idle_words(cause)), WIDTH - 39)}"
    yield "  gap ms: half of the idle time lies in gaps that are at least as long"


def idle_table(result: Result) -> str:
    """The causes of each rank, the longest idle first; of many ranks these."""
    rows = [_idle_cells(cause) for _, causes in idle_ranks(result)[:IDLE_RANKS_MAX] for cause in causes[:CAUSES_MAX]]
    return folded(IDLE_HEADS, rows, IDLE_ROWS_OPEN, "causes") if rows else ""


def idle_ranks(result: Result) -> list[tuple[int, list[IdleDigest]]]:
    """Ranks whose device was idle for a share of the time that matters, the longest first."""
    spans = _spans(result)
    by_rank: defaultdict[int, list[IdleDigest]] = defaultdict(list)
    for digest in idle(result):
        by_rank[digest.rank].append(digest)
    totals = {rank: sum(digest.idle_ns for digest in causes) for rank, causes in by_rank.items()}
    worth = [rank for rank in by_rank if totals[rank] > IDLE_MIN_RATIO * spans.get(rank, 0)]
    return [(rank, by_rank[rank]) for rank in sorted(worth, key=lambda rank: -totals[rank])]


def _idle_cells(cause: IdleDigest) -> list[str]:
    return [
        str(cause.rank),
        millis(cause.idle_ns),
        label(percent(cause.ratio)),
        calls_words(cause.gaps),
        millis(cause.half_gap_ns),
        label(idle_words(cause)),
    ]


def idle_words(cause: IdleDigest) -> str:
    """As in "copy: cudaMemcpyAsync in aten::to"."""
    names = (name.removeprefix(ENGINE) for name in (cause.name, cause.operator))
    where = " in ".join(dict.fromkeys(filter(None, names)))
    if cause.cause == "queued":
        return f"{CAUSES[cause.cause]}; host in {where}" if where else CAUSES[cause.cause]
    return f"{CAUSES[cause.cause]}: {where}" if where else CAUSES[cause.cause]


def _spans(result: Result) -> dict[int, int]:
    """Return by rank the time that its device's parts are a share of: of the typical step, or of all windows."""
    spans = {row.rank: row.all.span_ns for row in result.ranks if row.all is not None}
    return spans | {row.rank: row.window_ns for row in launches(result)}
