"""Which bucket costs the step most, why, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddptrace.analysis.findings.exposed_collectives import exposed_collective
from ddptrace.analysis.findings.facts import RankFacts
from ddptrace.analysis.findings.late_rank import late_rank
from ddptrace.analysis.findings.next_look import next_look
from ddptrace.analysis.ranks.suspects import MIN_STEPS
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketSummary, Summary
from ddptrace.analysis.wording import ms, percent
from ddptrace.load.tables import Finding

WELL_HIDDEN_RATIO = 0.02
"""Exposed communication below this share of the step is not worth a change."""


def bucket_findings(
    summary: Summary, result: Result, ranks: Sequence[RankFacts], comparable: bool
) -> Iterator[Finding]:
    """About the typical step. `comparable`: the ranks are known to have done the same steps together."""
    exposed = next((part for part in summary.parts if part.name == "exposed_comm"), None)
    if exposed is None or not summary.comm_ns:
        return
    if exposed.ratio < WELL_HIDDEN_RATIO:
        yield Finding("well-hidden", "info", "run", (
            f"Communication is well hidden: {percent(exposed.ratio)} of the step waits for it ({ms(exposed.ns)}"
            f" exposed of {ms(summary.comm_ns)}, mean of {summary.steps} rank-steps): look for time elsewhere."
        ))  # fmt: skip
        return
    if result.suspects:  # it is not the communication that is slow, and they are told with what they cost
        return
    judged = {row.step for row in result.blame}
    late = late_rank(summary) if comparable and len(judged) < MIN_STEPS else None
    if late is not None:
        yield late
    elif summary.worst is not None and 2 * sum(one.exposed_charged_ns or 0 for one in summary.buckets) >= exposed.ns:
        yield _exposed(summary.worst, summary, next_look(summary.worst, summary, result, ranks))
    else:
        yield exposed_collective(exposed, result)


def _exposed(worst: BucketSummary, summary: Summary, look: str) -> Finding:
    where = f"reducer {worst.reducer}, layout {worst.layout}, bucket {worst.index}"
    several = len({bucket.reducer for bucket in summary.buckets}) > 1
    named = f"Bucket {worst.index}" + (f" of reducer {worst.reducer}" if several else "")
    names = worst.parameters
    holds = f" ({names[0]} to {names[-1]})" if len(names) > 1 else f" ({names[0]})" if names else ""
    severity = "warning" if (worst.step_ratio or 0) >= WELL_HIDDEN_RATIO else "info"
    return Finding("exposed-bucket", severity, where, (
        f"{named}{holds} costs the step most: {ms(worst.exposed_charged_ns or 0)} of its communication"
        f" are exposed, {percent(worst.step_ratio or 0)} of the step; {look}"
    ))  # fmt: skip
