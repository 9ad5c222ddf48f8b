"""Which kernels take a device's time, as rows of a table: on the terminal and in the report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.device.busiest import KernelDigest, Utilization, categories, kernels, utilization
from ddptrace.analysis.result import Result
from ddptrace.errors import printable
from ddptrace.render.device.kernels import kernel_name
from ddptrace.render.markup import folded, label, text
from ddptrace.render.words import WIDTH, both_ends, indented
from ddptrace.units import NOT_MEASURED, calls_words, duration, millis, percent, three_figures

MOST_KERNELS: Final = 5  # on the terminal
ROWS_MAX: Final = 60  # in the report
ROWS_OPEN: Final = 12
KNOWN_NEARLY_ALL: Final = 0.99
TERA: Final = 1e12
HEADS: Final = tuple(
    (head, "words" if head in ("category", "kernel") else "")
    for head in ("category", "kernel", "total ms", "of all", "count", "mean", "TFLOP/s", "of peak")
)
SUB: Final = (
    "Durations of kernels, copies and fills, added up over all profiled windows; means per rank. FLOPs come from the"
    " input shapes of matrix products and attention, where the trace holds them (record_shapes=True), as"
    " torch.utils.flop_counter counts them. The peak is what the device's maker states for the type of number."
)


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
        yield f"  {_figures(kind, with_flops)}  {kind.category}"
    of = f"  ({MOST_KERNELS} of {len(found)})" if len(found) > MOST_KERNELS else ""
    yield f"  {'total ms':>9} {'of all':>6} {'count':>7} {'mean':>8}{_flops_heads(with_flops)}  kernel{of}"
    for kernel in found[:MOST_KERNELS]:
        figures = _figures(kernel, with_flops)
        yield f"  {figures}  {both_ends(printable(kernel_name(kernel.name)), WIDTH - 4 - len(figures))}"
    if used is not None:
        yield from indented(utilization_words(used))


def _flops_heads(with_flops: bool) -> str:
    return f" {'TFLOP/s':>8} {'of peak':>7}" if with_flops else ""


def _figures(one: KernelDigest, with_flops: bool) -> str:
    times = f"{millis(one.total_ns):>9} {percent(one.ratio):>6} {calls_words(one.events):>7} {duration(one.mean_ns):>8}"
    return times + (f" {tera(one.flops_per_s):>8} {percent(one.peak_ratio):>7}" if with_flops else "")


def tera(flops_per_s: float | None) -> str:
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
    kinds, found = categories(result), kernels(result)[:ROWS_MAX]
    if not found:
        return ""
    used = utilization(result)
    above = f'<p class="sub">{text(utilization_words(used))}.</p>' if used is not None else ""
    by_category = folded(HEADS, list(map(_cells, kinds)), len(kinds), "categories")
    return above + by_category + folded(HEADS, list(map(_cells, found)), ROWS_OPEN, "kernels")


def _cells(one: KernelDigest) -> list[str]:
    return [
        label(one.category),
        label(kernel_name(one.name)) if one.name else "all",
        millis(one.total_ns),
        label(percent(one.ratio)),
        calls_words(one.events),
        duration(one.mean_ns),
        tera(one.flops_per_s),
        label(percent(one.peak_ratio)),
    ]
