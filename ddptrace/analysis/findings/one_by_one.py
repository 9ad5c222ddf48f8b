"""A program that all-reduces each gradient by itself is told to put many into one call."""

from __future__ import annotations

from collections.abc import Iterator

from ddptrace.analysis.collectives.one_by_one import gradients_one_by_one
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary
from ddptrace.findings import GRADIENTS_ONE_BY_ONE, Finding
from ddptrace.units import duration, percent, size


def one_by_one_findings(summary: Summary, result: Result) -> Iterator[Finding]:
    """One for the run, if that is most of what the typical step waits for."""
    found = gradients_one_by_one(summary, result)
    if found is None or not summary.window_ns:
        return
    large = f" of {size(round(found.mean_nbytes))} in the mean" if found.mean_nbytes is not None else ""
    yield GRADIENTS_ONE_BY_ONE(
        "run",
        f"The program all-reduces each gradient by itself: {found.calls:.0f} calls in a step{large}, each of"
        f" {duration(found.mean_ns)}. {duration(found.exposed_ns)} of a step wait for them,"
        f" {percent(found.exposed_ns / summary.window_ns)}, and the host launches each one. Put many gradients into one"
        " call: DistributedDataParallel sends buckets of 25 MB while backward computes; without it, flatten gradients"
        " into a few tensors before the all-reduce.",
    )
