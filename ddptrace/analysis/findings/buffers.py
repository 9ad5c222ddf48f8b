"""Buffers that DDP sends before each forward: what that costs, and what changes without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.collectives.buffer_cost import buffer_cost
from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary
from ddptrace.findings import BUFFER_BROADCASTS, Finding
from ddptrace.units import duration, percent

COST_MIN_RATIO: Final = 0.03
"""Of the step."""
WITHOUT: Final = (
    "Pass broadcast_buffers=False to DistributedDataParallel. Each rank then keeps its own buffers: running statistics"
    " of BatchNorm differ between ranks, which training does not read but evaluation does, so evaluate with rank 0's or"
    " use SyncBatchNorm, whose statistics are the same on all ranks."
)


def buffer_findings(ranks: Sequence[RankFacts], result: Result, summary: Summary) -> Iterator[Finding]:
    """Say what the broadcasts cost the typical step."""
    found = buffer_cost(ranks, result)
    if found is None or not summary.window_ns:
        return
    host, cost = found
    if cost < COST_MIN_RATIO * summary.window_ns:
        return
    idle = f", and the device idles for {duration(cost)} of that" if any(rank.on_device for rank in ranks) else ""
    yield BUFFER_BROADCASTS(
        "run",
        "Before forward, DDP sends the model's buffers from rank 0 to all ranks. Packing, sending and unpacking them"
        f" holds the host for {duration(host)} of a step{idle}: {percent(cost / summary.window_ns)} of the step."
        f" {WITHOUT}",
    )
