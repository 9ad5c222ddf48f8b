"""The verdict on a run without steps: how much of its profiler windows waits for communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddptrace.analysis.findings.collectives import TRY
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import WORTH_RATIO
from ddptrace.analysis.window_summary import summarize_windows
from ddptrace.findings import EXPOSED_COMMUNICATION, WELL_HIDDEN, Finding
from ddptrace.units import duration, percent


def window_findings(result: Result) -> Iterator[Finding]:
    """Judge the mean window as `bucket_findings` judges the typical step; nothing where steps are known."""
    window = summarize_windows(result)
    if window is None or not window.comm_ns:
        return
    exposed = window.part("exposed_comm")
    if exposed.ratio < WORTH_RATIO:
        yield WELL_HIDDEN(
            "run",
            f"Communication is well hidden: only {percent(exposed.ratio)} of the profiled window waits for it"
            f" ({duration(exposed.ns)} exposed of {duration(window.comm_ns)}). Look for time elsewhere.",
        )
        return
    by_kind: Counter[tuple[str, str | None]] = Counter()
    for row in result.collectives:
        by_kind[row.op.rstrip("_"), row.origin] += row.exposed_charged_ns or 0
    said = f"{duration(exposed.ns)} of communication are exposed, {percent(exposed.ratio)} of the profiled window."
    largest = next(iter(by_kind.most_common(1)), None)
    if largest is None:
        yield EXPOSED_COMMUNICATION("run", f"{said} No kernel of it could be joined to a collective.")
    else:
        (op, origin), ns = largest
        source = f" ({origin or 'origin unknown'})"
        part = f"The largest part is {op}{source} with {duration(ns / window.windows)}"
        yield EXPOSED_COMMUNICATION("run", f"{said} {part}: {TRY.get(origin or '', 'look at what it waits for')}.")
