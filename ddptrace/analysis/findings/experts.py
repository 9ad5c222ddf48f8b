"""Experts: a router that sends one rank far more than the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.experts.digest import LayerDigest, layer_digests
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import WORTH_RATIO, Summary
from ddptrace.findings import EXPERT_IMBALANCE, Finding
from ddptrace.units import duration, percent, size

UNEVEN_MIN_RATIO: Final = 1.2
"""What the rank with most gets / mean."""


def expert_findings(result: Result, summary: Summary) -> Iterator[Finding]:
    """Name the layer whose imbalance costs most; of several that cost as much, the most uneven one."""
    window = summary.window_ns or 0
    uneven = [one for one in layer_digests(result) if one.imbalance_ratio >= UNEVEN_MIN_RATIO and _matters(one, window)]
    if uneven:
        worst = max(uneven, key=lambda one: (one.cost_ns or 0, one.imbalance_ratio))
        yield EXPERT_IMBALANCE(worst.layer, _words(worst, len(uneven), window))


def _matters(one: LayerDigest, window_ns: int) -> bool:
    return one.cost_ns is None or one.cost_ns >= WORTH_RATIO * window_ns


def _words(one: LayerDigest, count: int, window_ns: int) -> str:
    gets = one.received_nbytes
    more = f" {count - 1} more all-to-alls are uneven, too." if count > 1 else ""
    cost = (
        ""
        if one.cost_ns is None or not window_ns
        else f" In the next all-to-all the ranks wait for it, {duration(one.cost_ns)} of a step on average"
        f" ({percent(one.cost_ns / window_ns)})."
    )
    return (
        f"The all-to-all of layer {one.layer} ({one.phase or 'in no phase'}) is uneven: the rank that gets most gets"
        f" {one.imbalance_ratio:.2f} times the mean of {size(round(sum(gets) / len(gets)))}, most often rank"
        f" {one.largest_rank}.{cost}{more} If these are tokens on their way to experts, limit what an expert takes"
        " (capacity factor), or balance the router by a loss."
    )
