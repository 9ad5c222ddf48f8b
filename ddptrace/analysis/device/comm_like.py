"""Kernels that count as compute, although where they run is named after communication.

thread   ## dispatch(F) ##   ├────────────┤
           cudaLaunchKernel     ├┤
stream                             ├──────────────┤ my_exchange<8>      no rule takes it: compute, as far as is known

Such a range holds other kernels too: layouts, casts, permutations. So a kernel counts only if it runs long, nearly
always in such places, under no operator that computes, and if its name is not that of known compute.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.statistics import alike
from ddptrace.load.tables import DeviceWork, Work
from ddptrace.ops import is_named_after_communication

SPAN_MIN_RATIO: Final = 0.01
"""Of the device's span: a kernel that runs for less, all launches together, is not worth a question."""
MEAN_MIN_NS: Final = 20_000
INSIDE_MIN_RATIO: Final = 0.9
"""Of a kernel's time."""
COMPUTES: Final = re.compile(
    r"at::native|cub::|thrust::|rocprim|cutlass|cudnn|fbgemm|gemm|Cijk_|triton|elementwise|reduce_kernel|cast|quant"
    r"|permut|transpos|layout|index|norm|softmax|attention|flash|fmha|conv|grouped|expert",
    re.IGNORECASE,
)
"""Names of libraries and of work that is done on one device."""


@dataclass(frozen=True, slots=True)
class CommLike:
    """One kernel of one rank. `where`: the range, operator or stream that is named after communication."""

    kernel: str
    where: str
    events: int
    device_ns: int  # sum of its durations


def comm_like(view: RankView) -> tuple[CommLike, ...]:
    """Find them in all windows of a rank, the longest first."""
    inside: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by kernel and place, ns
    events: Counter[str] = Counter()
    every_ns: Counter[str] = Counter()
    span_ns = 0
    for window, on_streams in zip(view.device.profiled, _comm_streams(view), strict=True):
        span_ns += _span_ns(window.work)
        for kernel, place, count, ns in _compute(window.work, on_streams):
            every_ns[kernel] += ns
            if place:
                inside[kernel][place] += ns
                events[kernel] += count
    names = (kernel for kernel in inside if not COMPUTES.search(kernel))
    found = (
        CommLike(name, max(inside[name], key=inside[name].__getitem__), events[name], inside[name].total())
        for name in names
    )
    worth = (
        one
        for one in found
        if one.device_ns >= SPAN_MIN_RATIO * span_ns
        and one.device_ns >= MEAN_MIN_NS * one.events
        and one.device_ns >= INSIDE_MIN_RATIO * every_ns[one.kernel]
    )
    return tuple(sorted(worth, key=lambda one: -one.device_ns))


def _comm_streams(view: RankView) -> Iterator[frozenset[str]]:
    """By window that saw a device: streams that are named after communication."""
    for window in view.rank.windows:
        if window.device is not None:
            yield frozenset(window.comm_streams)


def _compute(work: DeviceWork, on_streams: frozenset[str]) -> Iterator[tuple[str, str, int, int]]:
    """Kernels that count as compute by where they ran: name, the place that is named after communication or "", how
    often, and ns."""
    names = _named(work)
    streams = np.array([stream in on_streams for stream in work.streams], np.bool_)
    is_compute = work.kind == Work.COMPUTE
    inside = names[work.annotation] | streams[work.stream]
    placed = is_compute & np.where(work.operator >= 0, names[work.operator], inside)
    if not placed.any():
        return
    kernels = np.unique(work.name[placed])
    mine = np.flatnonzero(is_compute & np.isin(work.name, kernels))
    place = np.where(placed, 1, 0)[mine]
    columns = (np.where(place, column[mine], -1) for column in (work.annotation, work.operator, work.stream))
    found = alike(work.name[mine], place, *columns)
    times = found.sums((work.end_at_ns - work.begin_at_ns)[mine]).tolist()
    for (kernel, is_placed, *where), count, ns in zip(found.keys.tolist(), found.counts.tolist(), times, strict=True):
        yield work.names[kernel], _place(work, *where) if is_placed else "", count, ns


def _named(work: DeviceWork) -> NDArray[np.bool_]:
    """Which of the names that ranges and operators have are named after communication; the last one is nobody's."""
    named = np.zeros(len(work.names) + 1, np.bool_)
    named[work.annotation] = named[work.operator] = True
    for number in np.flatnonzero(named[:-1]).tolist():
        named[number] = is_named_after_communication(work.names[number])
    named[-1] = False
    return named


def _place(work: DeviceWork, annotation: int, operator: int, stream: int) -> str:
    """What is named after communication; an operator that is not says that its kernels compute."""
    if operator >= 0:
        return work.names[operator]
    if annotation >= 0 and is_named_after_communication(work.names[annotation]):
        return work.names[annotation]
    return f"stream {work.streams[stream]}"


def _span_ns(work: DeviceWork) -> int:
    return int(work.end_at_ns.max() - work.begin_at_ns.min()) if len(work.kind) else 0
