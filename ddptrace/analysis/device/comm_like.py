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

from ddptrace.analysis.rank_view import RankView
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
    mine = np.flatnonzero(work.kind == Work.COMPUTE)
    columns = work.name, work.annotation, work.operator, work.stream
    keys, again, counts = np.unique(
        np.column_stack([column[mine] for column in columns]), axis=0, return_inverse=True, return_counts=True
    )
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, again.reshape(-1), (work.end_at_ns - work.begin_at_ns)[mine])
    for (kernel, annotation, operator, stream), count, ns in zip(
        keys.tolist(), counts.tolist(), sums.tolist(), strict=True
    ):
        yield work.names[kernel], _place(work, annotation, operator, work.streams[stream], on_streams), count, ns


def _place(work: DeviceWork, annotation: int, operator: int, stream: str, on_streams: frozenset[str]) -> str:
    """What is named after communication; an operator that is not says that its kernels compute."""
    if operator >= 0:
        name = work.names[operator]
        return name if is_named_after_communication(name) else ""
    if annotation >= 0 and is_named_after_communication(work.names[annotation]):
        return work.names[annotation]
    return f"stream {stream}" if stream in on_streams else ""


def _span_ns(work: DeviceWork) -> int:
    return int(work.end_at_ns.max() - work.begin_at_ns.min()) if len(work.kind) else 0
