"""What a setting makes of the lengths along a graph's arrows, and when nothing can be said of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.timeline.build import Timeline
from ddptrace.analysis.timeline.graph import Floats, Graph, Span
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.schema import Origin

HALF: Final = 0.5
NEVER: Final = -(2.0**61)
"""Along an arrow that makes nothing wait."""
GRADIENTS: Final = (Origin.GRADIENTS.word, Origin.HOOK.word, Origin.FSDP.word, Origin.ZERO.word)
REDUCES: Final = ("all_reduce", "reduce_scatter")


def lengths(timeline: Timeline, setting: Setting, start_ns: Floats) -> Floats:
    """Return what passes along each arrow. `start_ns`: by collective, what of its transfer no bandwidth shortens."""
    graph = timeline.graph
    ns = graph.ns.copy()
    ns[graph.span == Span.HOST] /= setting.host
    if setting.free_data:
        ns[graph.span == Span.DATA] = 0.0
    if setting.even is not None:
        ns[(graph.span == Span.ARRIVAL) & (graph.rank == setting.even)] = NEVER
    sends = graph.span == Span.TRANSFER
    if setting.free_network:
        ns[sends] = 0.0
    elif sends.any():
        ns[sends] = _sent(timeline, setting, start_ns)[sends]
    return ns


def _sent(timeline: Timeline, setting: Setting, start_ns: Floats) -> Floats:
    """What each transfer takes over the link of the setting."""
    graph = timeline.graph
    start = np.minimum(np.append(start_ns, 0.0)[graph.call], graph.ns)
    halves = np.array([setting.is_half and is_whole_gradient(row) for row in timeline.calls] + [False])
    bytes_ratio = np.where(halves, HALF, 1.0)[graph.call] / setting.bandwidth
    sent: Floats = start * setting.latency + (graph.ns - start) * bytes_ratio
    return sent


def _ranks(graph: Graph) -> Sequence[int]:
    ranks: list[int] = np.unique(graph.rank).tolist()
    return ranks


def is_whole_gradient(row: CollectiveRow) -> bool:
    """Whether a collective reduces gradients of 32 bits."""
    carries = row.bucket is not None or row.origin in GRADIENTS
    return carries and row.dtype == "float32" and row.op.startswith(REDUCES)


def refusal_of(timeline: Timeline, setting: Setting) -> str | None:
    """Say why nothing can be said; None where something can."""
    return next(_refusals(timeline, setting), None)


def _refusals(timeline: Timeline, setting: Setting) -> Iterator[str]:
    planned = (setting.caps, setting.ranks, setting.accumulate)
    if any(one is not None for one in planned) or setting.order != "ready" or setting.groups != 1:
        yield "on a GPU nothing shows when each gradient was ready, so other buckets and ranks cannot be planned"
    if setting.of_pipeline:
        yield "schedules of pipelines are predicted of runs without profiler windows of a GPU only"
    if changes_network(setting) and not timeline.calls:
        yield "no collective ran in the profiled steps"
    if setting.is_half and not any(map(is_whole_gradient, timeline.calls)):
        yield "no collective is known to reduce gradients of 32 bits"
    if setting.free_data and not (timeline.graph.span == Span.DATA).any():
        yield "no fetching of a batch shows in the profiled steps"
    ranks = _ranks(timeline.graph)
    if setting.even is not None and setting.even not in ranks:
        yield f"there is no rank {setting.even} in the run"
    elif setting.even is not None and len(ranks) < 2:
        yield "there is no other rank"
    elif setting.even is not None and not timeline.meetings:
        yield "no collectives are matched across ranks, so nothing shows who waits for it"


def changes_network(setting: Setting) -> bool:
    """Whether a setting changes what communication takes."""
    speeds = setting.bandwidth != 1 or setting.latency != 1
    return speeds or setting.is_half or setting.free_network or setting.perfect_overlap
